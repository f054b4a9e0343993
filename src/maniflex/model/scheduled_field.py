"""What `scheduled(...)` says, once it has been checked: which time changes what of a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from maniflex.model.meta import FieldMeta, Kind, ModelMeta, SoftDelete


class ScheduledAction(StrEnum):
    """What happens to a record when its time has come."""

    SET_FIELD = "set_field"
    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"


FieldValues = tuple[tuple[str, tuple[Any, ...]], ...]  # fields, and the values they must have


@dataclass(frozen=True, slots=True)
class FieldSchedule:
    """One time of a model and its action; names are attributes."""

    time: str
    action: ScheduledAction
    target: str = ""
    to: Any = None
    from_: Any = None
    conditional: bool = False  # `from_` was given: None is a value like any other
    where: FieldValues = ()

    @property
    def where_beside_target(self) -> FieldValues:
        """The conditions that being served does not end: what the target was says nothing afterwards."""
        return tuple((name, values) for name, values in self.where if name != self.target)


def schedules(meta: ModelMeta) -> tuple[FieldSchedule, ...]:
    """Every schedule of a model, in declaration order."""
    return tuple(_schedule(f.name, f.extra["scheduled"]) for f in meta.fields if "scheduled" in f.extra)


def _schedule(name: str, settings: Mapping[str, Any]) -> FieldSchedule:
    [action] = [action for action in ScheduledAction if settings.get(action)]
    where = tuple(settings.get("where", {}).items())
    if action is not ScheduledAction.SET_FIELD:
        return FieldSchedule(name, action, where=where)
    conditional, from_ = "from_" in settings, settings.get("from_")
    return FieldSchedule(name, action, settings["set_field"], settings["to"], from_, conditional, where)


def target_problems(owner: str, target: FieldMeta, marker: SoftDelete | None) -> Iterator[str]:
    """Why a schedule cannot set this field."""
    if target.name in (owner, "id", "created_at", "updated_at") or target.encrypted is not None:
        yield f"{target.name} cannot be set by a schedule"
    elif target.kind is Kind.JSON:
        yield f"{target.name} is a JSON column and cannot be set by a schedule"
    elif marker is not None and target.name == marker.field:
        yield f"{target.name} marks deleted records; use soft_delete=True"
