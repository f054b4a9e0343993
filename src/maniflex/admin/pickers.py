"""Records to refer to: what they are called, where a form looks them up, and where a new one is made."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maniflex.admin.controls import Control
from maniflex.model.meta import RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.steps.browse import PageRequest

if TYPE_CHECKING:
    from maniflex.admin.site import ModelSite
    from maniflex.admin.visit import Visit

_MOST_LABELS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Picker:
    """What a person may do with the records that a control refers to."""

    pick_url: str = ""  # empty for somebody who may not list them, and has to know the id
    new_url: str = ""
    new_label: str = ""


NO_PICKER = Picker()


async def label_controls(visit: Visit, controls: Sequence[Control]) -> list[Control]:
    """The controls with what the records are called that were typed, prefilled or left out of the answer."""
    ids: dict[str, set[str]] = {}
    for one in controls:
        if one.pick_model and one.text and not one.pick_label:
            ids.setdefault(one.pick_model, set()).add(one.text)
    labels = await read_labels(visit, ids) if ids else {}
    return [
        replace(one, pick_label=one.pick_label or labels.get((one.pick_model, one.text), ""))
        for one in controls
    ]


async def pickers_of(visit: Visit, relations: Iterable[RelationMeta]) -> dict[str, Picker]:
    """The pickers of relations, by the name of the model that they lead to."""
    return await pickers_to(visit, [relation.target for relation in relations])


async def pickers_to(visit: Visit, models: Iterable[str]) -> dict[str, Picker]:
    """The pickers of records of these models, as far as the panel shows them."""
    pickers: dict[str, Picker] = {}
    for name in dict.fromkeys(models):
        target = visit.panel.sites.by_name.get(name)
        if target is None:
            continue
        may_list = await visit.api.may(target, Operation.LIST)
        may_create = target.can_create and await visit.api.may(target, Operation.CREATE)
        pickers[name] = Picker(
            pick_url=visit.url("-", "pick", target.table) if may_list else "",
            new_url=visit.url(target.table, "new") if may_create and not target.is_singleton else "",
            new_label=visit.t("new_record", name=target.title),
        )
    return pickers


async def read_labels(
    visit: Visit, ids: Mapping[str, Collection[str]], *, deleted: bool = False
) -> dict[tuple[str, str], str]:
    """What records are called, by model and id, as far as this person may list them."""
    labels: dict[tuple[str, str], str] = {}
    for name in ids:
        site, some_ids = visit.panel.sites.by_name.get(name), sorted(filter(None, ids[name]))[:_MOST_LABELS]
        if site is None or not some_ids or not site.has_id or site.is_singleton:
            continue
        page = PageRequest(len(some_ids), filters=(("id", "in", some_ids),), deleted=deleted)
        answer = await visit.api.page(site, _label_alone(site), page)
        for record in answer.data if answer.ok else ():
            labels[name, str(record.get("id"))] = site.label_of(record)
    return labels


def _label_alone(site: ModelSite) -> list[tuple[str, str]]:
    """Have records hold no more than what names them; words of a label that are no field may need all."""
    names = {name for _, name, _, _ in string.Formatter().parse(site.admin.label or "") if name}
    fields = [f for f in site.label_fields if f.visible]
    return [] if len(names) > len(fields) else [("select", ",".join(["id", *(f.api for f in fields)]))]
