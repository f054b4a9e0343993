"""Records to refer to: where a form looks them up, and where a new one is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.model.meta import RelationMeta
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Picker:
    """What a person may do with the records that a control refers to."""

    pick_url: str = ""  # empty for somebody who may not list them, and has to know the id
    new_url: str = ""
    new_label: str = ""


NO_PICKER = Picker()


async def pickers_of(visit: Visit, relations: Iterable[RelationMeta]) -> dict[str, Picker]:
    """The pickers of relations, by the name of the model that they lead to."""
    pickers: dict[str, Picker] = {}
    for relation in relations:
        target = visit.panel.sites.by_name.get(relation.target)
        if target is None or relation.target in pickers:
            continue
        may_list = await visit.api.may(target, Operation.LIST)
        may_create = target.can_create and await visit.api.may(target, Operation.CREATE)
        pickers[relation.target] = Picker(
            pick_url=visit.url("-", "pick", target.table) if may_list else "",
            new_url=visit.url(target.table, "new") if may_create and not target.is_singleton else "",
            new_label=visit.t("new_record", name=target.title),
        )
    return pickers
