"""Those a sweep calls: hooks after the commit, observers inside the transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.db.cascade import deletion
from maniflex.db.port import Tx
from maniflex.model.field import FieldSchedule, ScheduledAction
from maniflex.model.meta import ModelMeta

OnDelete = Callable[[str, str], Awaitable[object] | object]
OnSetField = Callable[[str, str, str, Any], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """The change of one batch; it has no actor, because no caller asked for it."""

    meta: ModelMeta
    schedule: FieldSchedule
    at: datetime
    before: Sequence[Mapping[str, Any]]  # attribute → value; JSON is text

    @property
    def after(self) -> Sequence[Mapping[str, Any] | None]:
        """The same records as they are now; None where one was removed."""
        match self.schedule.action:
            case ScheduledAction.HARD_DELETE:
                return [None] * len(self.before)
            case ScheduledAction.SOFT_DELETE:
                changes = deletion(self.meta, self.at)
            case ScheduledAction.SET_FIELD:
                changes = {self.schedule.target: self.schedule.to, "updated_at": self.at}
        return [{**row, **changes} for row in self.before]


Observer = Callable[[Tx, SweepEvent], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Subscribers:
    """The hooks and observers a sweep calls."""

    on_delete: Sequence[OnDelete] = ()
    on_set_field: Sequence[OnSetField] = ()
    observers: Sequence[Observer] = ()
