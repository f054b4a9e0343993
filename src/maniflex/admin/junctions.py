"""Many-to-many relations in forms: ids, kept as records of the junction by its own pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from maniflex.admin.call import ApiAnswer
from maniflex.admin.controls import Control, FormInput
from maniflex.admin.inlines import junction_fields
from maniflex.admin.names import title_of
from maniflex.admin.pickers import pickers_of
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.model.meta import RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.steps.browse import PageRequest

MOST_LINKS = 200


def _is_editable(visit: Visit, relation: RelationMeta) -> bool:
    sites = visit.panel.sites
    junction = sites.with_routes.get(relation.through or "")
    return bool(
        junction is not None
        and junction.can_create
        and junction.can_delete
        and relation.target in sites.by_name
        and relation.key
        and relation.far_key
        and not junction_fields(junction, relation)  # those are rows of the form
    )


async def _rows(visit: Visit, relation: RelationMeta, record_id: str) -> list[Mapping[str, Any]] | None:
    """The junction's records of one record; None when they may not be listed or are too many for a form."""
    junction = visit.panel.sites.with_routes[relation.through or ""]
    page = PageRequest(MOST_LINKS, filters=((relation.key or "", "eq", record_id),))
    answer = await visit.api.page(junction, (), page)
    return None if not answer.ok or page.more else list(answer.data)


async def link_controls(
    visit: Visit, site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput | None
) -> list[Control]:
    """A control for each relation through a junction that this person may change."""
    controls = []
    for relation in site.links:
        if not _is_editable(visit, relation):
            continue
        junction = visit.panel.sites.with_routes[relation.through or ""]
        if not await visit.api.may(junction, Operation.CREATE) or not await visit.api.may(
            junction, Operation.LIST
        ):
            continue
        ids: list[str] = []
        first_ids: Collection[str] = ids
        if form_input is not None:
            ids, first_ids = _typed_ids(visit, relation), _base_ids(visit, relation)
        elif record is not None:
            rows = await _rows(visit, relation, str(record.get("id", "")))
            if rows is None:
                continue
            far = junction.meta.by_name[relation.far_key or ""].api
            first_ids = ids = [str(row[far]) for row in rows if far in row]
        picker = (await pickers_of(visit, [relation]))[relation.target]
        controls.append(
            Control(
                kind="links",
                name=relation.name,
                label=title_of(relation.name),
                text="\n".join(ids),
                base_ids=" ".join(sorted(first_ids)),
                help=visit.t("one_id_per_line"),
                errors=() if form_input is None else tuple(form_input.errors.get(relation.name, ())),
                pick_url=picker.pick_url,
                new_url=picker.new_url,
                new_label=picker.new_label,
            )
        )
    return controls


def _typed_ids(visit: Visit, relation: RelationMeta) -> list[str]:
    """The ids of a control: one on each line, or one in each of several controls."""
    texts = visit.form_texts(f"f.{relation.name}")
    return list(dict.fromkeys(one for text in texts for one in text.split()))


def _base_ids(visit: Visit, relation: RelationMeta) -> set[str]:
    """The ids that the form was opened with; a copy begins with none."""
    return (
        set() if visit.form_text("_then") == "copy" else set(visit.form_text(f"seen.{relation.name}").split())
    )


def read_links(visit: Visit, site: ModelSite, form_input: FormInput) -> None:
    """The ids of each relation whose control was changed."""
    for relation in site.links:
        name = f"f.{relation.name}"
        if _is_editable(visit, relation) and name in visit.form:
            ids = _typed_ids(visit, relation)
            if set(ids) != _base_ids(visit, relation):
                form_input.links[relation.name] = ids


async def save_links(
    visit: Visit, site: ModelSite, record_id: str, form_input: FormInput
) -> ApiAnswer | None:
    """Add and remove records of the junctions; the refusal of the first that may not be."""
    for name, ids in form_input.links.items():
        relation = site.meta.relations[name]
        junction = visit.panel.sites.with_routes[relation.through or ""]
        own = junction.meta.by_name[relation.key or ""].api
        far = junction.meta.by_name[relation.far_key or ""].api
        rows = await _rows(visit, relation, record_id) or []
        ids_by_target = {str(row[far]): str(row["id"]) for row in rows}
        before = _base_ids(visit, relation)  # links that somebody else made or removed since then stay so
        for other in (one for one in ids if one not in ids_by_target and one not in before):
            answer = await visit.api.ask("POST", visit.api.path(junction), json={own: record_id, far: other})
            if not answer.ok:
                form_input.errors.setdefault(name, []).append(f"{other}: {answer.message}")
                return answer
        for other in (one for one in ids_by_target if one in before and one not in ids):
            answer = await visit.api.ask("DELETE", visit.api.path(junction, ids_by_target[other]))
            if not answer.ok:
                return answer
    return None
