"""One record: its page, revealing a field, deleting and bringing it back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maniflex.admin.actions import ActionButton, record_actions
from maniflex.admin.audit import NothingStored
from maniflex.admin.inlines import show_form
from maniflex.admin.list_query import read_number
from maniflex.admin.lists import ask_record, neighbours_of, read_deleted, show_list, shown_cell, total_text
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import ApiAnswer, PanelRoute, Refusal, Visit, act, show
from maniflex.admin.widgets import Cell, as_text, is_file_list, note_files
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta, OnDelete, RelationKind, RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

# Files of records: pictures inside the page, everything else as a download.


_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_TELLING = 12  # bytes


async def serve_file(visit: Visit) -> Response:
    """A file of a record, by the API's own rules for reading it."""
    site = visit.site()
    field = site.meta.by_api.get(visit.params["field"])
    if field is None or "file" not in field.extra or field.secret:
        raise NotFound(visit.t("no_such_page"))
    parts = () if site.is_singleton else (visit.params["id"],)
    index = read_number(visit.param("index") or "0", 4)
    if index is None:
        raise NotFound(visit.t("no_such_record"))
    place = (str(index),) if is_file_list(field) else ()
    response = await visit.api.request("GET", visit.api.path(site, *parts, field.api, *place))
    if response.status == 404:
        raise NotFound(visit.t("no_such_record"))
    if response.status >= 300:
        raise Refusal(response)
    content, rest = response.body or b"", response.stream
    if rest is not None:
        content = await _first_bytes(rest)
    kind = kind_of(content)
    headers = {
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "no-store",
        "content-disposition": "inline" if kind else _attachment(response),
    }
    answer = Response(200, content_type=kind or "application/octet-stream", headers=headers)
    if rest is None:
        answer.body = content
    else:
        answer.stream = _whole(content, rest)
    return answer


async def _first_bytes(stream: AsyncGenerator[bytes, None]) -> bytes:
    """As much of a file as tells its type."""
    content = b""
    async for chunk in stream:
        content += chunk
        if len(content) >= _TELLING:
            break
    return content


async def _whole(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A file as it is read; none is too large to be downloaded."""
    try:
        yield first
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()


def kind_of(content: bytes) -> str:
    """The type of a picture that browsers can be shown, by its first bytes; empty for everything else."""
    for start, kind in _PICTURES:
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return "image/avif" if content[4:12] in (b"ftypavif", b"ftypavis") else ""


def _attachment(response: Response) -> str:
    disposition = (response.headers or {}).get("content-disposition", "")
    _, semicolon, name = disposition.partition(";")
    return f"attachment{semicolon}{name}" if semicolon else "attachment"


MOST_RELATED = 100
MOST_ANCESTORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One field of a record."""

    label: str
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedLink:
    """Records that belong to this one."""

    label: str
    count: str
    url: str  # the list of them, where the key can be filtered by
    new_url: str
    items: Sequence[tuple[str, str]] = ()  # of a junction: labels and addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailView:
    """What `detail.html` is given."""

    id: str
    label: str
    title: str  # of the model
    url: str
    facts: Sequence[Fact]
    related: Sequence[RelatedLink]
    edit_url: str
    delete_url: str
    restore_url: str
    history_url: str
    audit_url: str
    work_url: str  # for people who see durable work
    list_url: str
    is_deleted: bool
    json: str
    curl: str
    actions: Sequence[ActionButton]
    previous_url: str
    next_url: str
    reveals: Sequence[tuple[str, str]]  # names and addresses of values that are shown on request


async def show_model(visit: Visit) -> Response:
    """The list of a model, or the one record of a singleton."""
    site = visit.site()
    return await show_form(visit, site) if site.is_singleton else await show_list(visit)


async def show_record(visit: Visit) -> Response:
    """The page of one record."""
    site, record_id = visit.site(), visit.params["id"]
    if not site.has_id or site.is_singleton:
        raise NotFound(visit.t("no_such_page"))
    is_deleted = False
    try:
        record = (await ask_record(visit, site, record_id)).data
    except NotFound:
        deleted_record = await read_deleted(visit, site, record_id)
        if deleted_record is None:
            raise
        record, is_deleted = deleted_record, True
    return await show_detail(visit, site, record, is_deleted=is_deleted)


async def show_detail(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any],
    *,
    is_deleted: bool = False,
    revealed: Fact | None = None,
) -> Response:
    """The page of a record that was read, with a value that was asked for on its own."""
    await note_files(visit, site.fields, [record])
    view = await _detail_view(visit, site, record, is_deleted=is_deleted)
    if revealed is not None:
        view = replace(view, facts=[*view.facts, revealed])
    crumbs = [(site.plural, visit.url(site.table)), *await _ancestors(visit, site, record)]
    return await visit.page("detail.html", view, title=view.label, crumbs=crumbs)


async def _detail_view(
    visit: Visit, site: ModelSite, record: Mapping[str, Any], *, is_deleted: bool
) -> DetailView:
    record_id = str(record["id"])
    may_edit = site.can_edit and not is_deleted and await visit.api.may(site, Operation.UPDATE)
    may_delete = site.can_delete and not is_deleted and await visit.api.may(site, Operation.DELETE)
    may_restore = is_deleted and site.can_write and site.meta.options.restore
    has_history = bool(site.meta.options.versioned or site.meta.options.versioned_diff_only)
    secret_names = {field.api for field in site.meta.fields if field.secret}
    previous_url, next_url = ("", "") if is_deleted else await neighbours_of(visit, site, record)
    json_values = {
        name: value
        for name, value in record.items()
        if (not isinstance(value, dict) or name in site.meta.by_api) and name not in secret_names
    }
    return DetailView(
        id=record_id,
        label=site.label_of(record),
        title=site.title,
        url=visit.url(site.table, record_id),
        facts=facts_of(visit, site, record),
        related=[] if is_deleted else await _related_links(visit, site, record_id),
        edit_url=visit.url(site.table, record_id, "edit") if may_edit else "",
        delete_url=visit.url(site.table, record_id, "delete") if may_delete else "",
        restore_url=visit.url(site.table, record_id, "restore") if may_restore else "",
        history_url=visit.url(site.table, record_id, "history") if has_history else "",
        audit_url=visit.url("-", "audit", f_model=site.meta.name, f_record=record_id),
        work_url=visit.url(site.table, record_id, "work") if visit.sees_work else "",
        list_url=visit.url(site.table),
        is_deleted=is_deleted,
        json=json.dumps(json_values, ensure_ascii=False, indent=2),
        curl=f"curl {visit.public_address}{visit.api.path(site, record_id)}",
        actions=[] if is_deleted else await record_actions(visit, site, record_id),
        previous_url=previous_url,
        next_url=next_url,
        reveals=[]
        if is_deleted or site.read_only
        else [
            (title_of(field.api), visit.url(site.table, record_id, "reveal", field.api))
            for field in map(site.meta.field, site.admin.reveal)
            if field is not None
        ],
    )


def facts_of(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> list[Fact]:
    """The fields of a record that the API shows, and its computed ones."""
    facts = [
        Fact(label=title_of(field.api), cell=_whole_cell(visit, site, record, field))
        for field in site.fields
        if field.api in record
    ]
    facts += [
        Fact(label=title_of(name), cell=Cell(kind="text", text=as_text(record[name])))
        for name in site.computed
        if name in record
    ]
    return facts


def _whole_cell(visit: Visit, site: ModelSite, record: Mapping[str, Any], field: FieldMeta) -> Cell:
    cell = shown_cell(visit, site, record, field, whole=True)
    widget = site.admin.widgets.get(field.name) or site.admin.widgets.get(field.api)
    return replace(cell, kind="markdown") if widget == "markdown" and cell.kind == "text" else cell


async def _ancestors(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The records above one of a tree, from the top."""
    relation = next((one for one in site.parents.values() if one.target == site.meta.name), None)
    key = None if relation is None else site.meta.by_name[relation.key or ""].api
    crumbs: list[tuple[str, str]] = []
    seen_ids = {str(record.get("id"))}
    while key is not None and record.get(key) and len(crumbs) < MOST_ANCESTORS:
        answer = await visit.api.ask("GET", visit.api.path(site, str(record[key])))
        if not answer.ok or str(record[key]) in seen_ids:
            break
        record = answer.data
        seen_ids.add(str(record.get("id")))
        crumbs.insert(0, (site.label_of(record), visit.url(site.table, str(record["id"]))))
    return crumbs


async def _related_links(visit: Visit, site: ModelSite, record_id: str) -> list[RelatedLink]:
    links = []
    for relation in site.children:
        child = visit.panel.sites.by_name.get(relation.target)
        key = None if child is None or relation.key is None else child.meta.by_name[relation.key]
        if child is None or key is None or not await visit.api.may(child, Operation.LIST):
            continue
        count = await visit.api.count_some(child, [(key.name, "eq", record_id)], MOST_RELATED)
        may_create = child.can_create and await visit.api.may(child, Operation.CREATE)
        links.append(
            RelatedLink(
                label=title_of(relation.name),
                count=total_text(visit, count, MOST_RELATED),
                url=visit.url(child.table, **{f"f_{key.api}": record_id}) if key.filterable else "",
                new_url=visit.url(child.table, "new", **{f"f.{key.api}": record_id}) if may_create else "",
            )
        )
    links += [
        link for relation in site.links if (link := await _junction(visit, site, relation.name, record_id))
    ]
    return links


async def _junction(visit: Visit, site: ModelSite, name: str, record_id: str) -> RelatedLink | None:
    relation = site.meta.relations[name]
    target = visit.panel.sites.by_name.get(relation.target)
    if target is None or not await visit.api.may(target, Operation.LIST):
        return None
    answer = await visit.api.ask("GET", visit.api.path(site, record_id), query={"include": name})
    if not answer.ok:
        return None
    items = [
        (target.label_of(one), visit.url(target.table, str(one.get("id", ""))))
        for one in answer.data.get(name, [])
        if isinstance(one, Mapping)
    ]
    return RelatedLink(
        label=title_of(name), count=str(len(items)), url="", new_url="", items=items[:MOST_RELATED]
    )


# Values that no page shows until somebody asks for one: read of the API again, and noted in the audit.


async def reveal(visit: Visit) -> Response:
    """The page of a record with one value that it hides otherwise."""
    site, record_id, name = visit.site(), visit.params["id"], visit.params["field"]
    field = site.meta.by_api.get(name)
    if field is None or not {field.name, field.api} & set(site.admin.reveal):
        raise NotFound(visit.t("no_such_page"))
    adapter = visit.panel.adapter_of(site.meta)
    async with visit.panel.trail.writing(
        visit, adapter, "reveal", model=site.meta.name, record_id=record_id
    ) as entry:
        entry.fields = [field.api]
        record = (await ask_record(visit, site, record_id)).data
        if field.api not in record:  # by whatever rule, the API does not show it to this person
            raise NothingStored()
    if field.api not in record:
        raise Abort(403, "FORBIDDEN", visit.t("not_revealed"))
    fact = Fact(label=title_of(field.api), cell=Cell(kind="text", text=as_text(record[field.api])))
    return await show_detail(visit, site, record, revealed=fact)


REVEAL_ROUTES = (act("/{model}/{id}/reveal/{field}", reveal),)


# Deleting a record, after a look at what goes with it or stands in its way; and bringing it back.


MOST_UNASKED = 100


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
        count = await visit.api.count_some(other, filters, MOST_UNASKED) if may_list else None
        if count == 0:
            continue
        blocks = relation.on_delete is OnDelete.RESTRICT
        if relation.on_delete is OnDelete.CASCADE:
            cascade_count += count or 0
        consequences.append(
            Consequence(
                label=other.plural,
                count=total_text(visit, count, MOST_UNASKED)
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
        must_type=label if cascade_count > MOST_UNASKED else "",
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
    if cascade_count > MOST_UNASKED and visit.form_text("confirm").strip() != site.label_of(record).strip():
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
    show("/{model}", show_model),
    show("/{model}/{id}", show_record),
    show("/{model}/{id}/file/{field}", serve_file),
    PanelRoute("GET", "/{model}/{id}/delete", show_delete, writes=True),
    act("/{model}/{id}/delete", delete),
    act("/{model}/{id}/restore", restore),
)
