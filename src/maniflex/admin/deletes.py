"""Deleting a record, after a look at what goes with it or stands in its way; and bringing it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maniflex.admin.audit import NothingStored
from maniflex.admin.call import ApiAnswer, Refusal
from maniflex.admin.lists import total_text
from maniflex.admin.reading import ask_record
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import PanelRoute, Visit, act
from maniflex.errors import NotFound
from maniflex.model.meta import OnDelete, RelationKind, RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

MOST_COUNTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """What a delete does to the records of one model."""

    label: str
    count: str
    effect: str
    blocks: bool
    url: str = ""  # the list of them, for one record and a key that can be filtered by


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteView:
    """What `delete.html` is given."""

    label: str
    title: str
    action: str
    cancel_url: str
    consequences: Sequence[Consequence]
    is_blocked: bool
    must_type: str  # the label that has to be typed first, when much would go
    is_soft: bool
    error: str = ""
    code: str = ""  # of the API, where it refused


def _referring_relations(visit: Visit, site: ModelSite) -> Iterator[tuple[ModelSite, RelationMeta]]:
    """Models whose records refer to records of this one, with the relation that does."""
    for other in visit.panel.sites.with_routes.values():
        for relation in other.meta.relations.values():
            if (
                relation.kind is RelationKind.BELONGS_TO
                and relation.target == site.meta.name
                and relation.key
            ):
                yield other, relation


async def consequences_of(visit: Visit, site: ModelSite, ids: Sequence[str]) -> tuple[list[Consequence], int]:
    """What the delete of these records does to others, and how many of those go with them, up to a limit."""
    consequences: list[Consequence] = []
    cascade_count = 0
    for other, relation in _referring_relations(visit, site):
        if relation.on_delete is OnDelete.NO_ACTION:
            continue
        may_list = await visit.api.may(other, Operation.LIST)
        filters = [(relation.key or "", "in", list(ids))]
        count = await visit.api.count_some(other, filters, MOST_COUNTED) if may_list else None
        if count == 0:
            continue
        blocks = relation.on_delete is OnDelete.RESTRICT
        if relation.on_delete is OnDelete.CASCADE:
            cascade_count += count or 0
        consequences.append(
            Consequence(
                label=other.plural,
                count=total_text(visit, count, MOST_COUNTED)
                if count is not None
                else visit.t("perhaps_some"),
                effect=visit.t(f"effect_{relation.on_delete.value}", field=title_of(relation.key or "")),
                blocks=blocks and count is not None,
                url=_list_of(visit, other, relation, ids) if count else "",
            )
        )
    return consequences, cascade_count


def _list_of(visit: Visit, other: ModelSite, relation: RelationMeta, ids: Sequence[str]) -> str:
    key = other.meta.by_name[relation.key or ""]
    is_shown = other.meta.name in visit.panel.sites.by_name and key.filterable and len(ids) == 1
    return visit.url(other.table, **{f"f_{key.api}": ids[0]}) if is_shown else ""


async def show_delete(visit: Visit, error: str = "", status: int = 200, code: str = "") -> Response:
    """What would go with the record, or stand in the way."""
    site, record_id = visit.site(), visit.params["id"]
    if not site.can_delete:
        raise NotFound(visit.t("no_such_page"))
    record = (await ask_record(visit, site, record_id)).data
    consequences, cascade_count = await consequences_of(visit, site, [record_id])
    label, here = site.label_of(record), visit.url(site.table, record_id)
    view = DeleteView(
        label=label,
        title=site.title,
        action=visit.url(site.table, record_id, "delete"),
        cancel_url=here,
        consequences=consequences,
        is_blocked=any(one.blocks for one in consequences),
        must_type=label if cascade_count > MOST_COUNTED else "",
        is_soft=site.meta.soft_delete is not None,
        error=error,
        code=code,
    )
    crumbs = [(site.plural, visit.url(site.table)), (label, here)]
    title = visit.t("delete_record", name=site.title)
    return await visit.page("delete.html", view, title=title, crumbs=crumbs, status=status)


async def delete(visit: Visit) -> Response:
    """Delete the record."""
    site, record_id = visit.site(), visit.params["id"]
    if not site.can_delete:
        raise NotFound(visit.t("no_such_page"))
    record = (await ask_record(visit, site, record_id)).data
    _, cascade_count = await consequences_of(visit, site, [record_id])
    if cascade_count > MOST_COUNTED and visit.form_text("confirm").strip() != site.label_of(record).strip():
        return await show_delete(visit, visit.t("type_the_label"), 422)
    answer = await write_one(visit, site, "delete", record_id, reason=visit.short_text("reason", 500))
    if answer.status == 409:
        return await show_delete(visit, answer.message, 409, answer.code)
    if not answer.ok:
        raise Refusal(answer.response)
    return visit.redirect(f"/{site.table}", ok=visit.t("deleted_record", name=site.label_of(record)))


async def restore(visit: Visit) -> Response:
    """Bring the record back."""
    site, record_id = visit.site(), visit.params["id"]
    if not site.meta.options.restore or not site.can_write:
        raise NotFound(visit.t("no_such_page"))
    answer = await write_one(visit, site, "restore", record_id)
    if answer.status == 404:
        raise NotFound(visit.t("no_such_record"))
    if not answer.ok:
        raise Refusal(answer.response)
    here = visit.url(site.table, record_id).removeprefix(visit.root)
    return visit.redirect(here, ok=visit.t("restored"))


async def write_one(
    visit: Visit, site: ModelSite, action: str, record_id: str, *, reason: str = ""
) -> ApiAnswer:
    """Delete or restore one record, and note it in the same transaction."""
    async with visit.panel.trail.writing(
        visit, visit.panel.adapter_of(site.meta), action, model=site.meta.name, record_id=record_id
    ) as entry:
        entry.reason = reason
        method, path = (
            ("DELETE", visit.api.path(site, record_id))
            if action == "delete"
            else (
                "POST",
                f"{visit.api.path(site, record_id)}/restore",
            )
        )
        answer = await visit.api.ask(method, path)
        if not answer.ok:
            raise NothingStored(answer)
    return answer


ROUTES = (
    PanelRoute("GET", "/{model}/{id}/delete", show_delete, writes=True),
    act("/{model}/{id}/delete", delete),
    act("/{model}/{id}/restore", restore),
)
