"""Who is told of a scheduled change: hooks after the commit, observers inside the transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.db.port import Tx
from maniflex.db.removal import deletion
from maniflex.model.meta import ModelMeta
from maniflex.model.schedule import Action, Schedule

OnDelete = Callable[[str, str], Awaitable[object] | object]
OnSetField = Callable[[str, str, str, Any], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Swept:
    """The change of one batch, which nobody asked for: it has no actor."""

    meta: ModelMeta
    schedule: Schedule
    at: datetime
    before: Sequence[Mapping[str, Any]]  # attribute → value; JSON is text

    @property
    def after(self) -> Sequence[Mapping[str, Any] | None]:
        """The same records as they are now; None where one was removed."""
        match self.schedule.action:
            case Action.HARD_DELETE:
                return [None] * len(self.before)
            case Action.SOFT_DELETE:
                changes = deletion(self.meta, self.at)
            case Action.SET_FIELD:
                changes = {self.schedule.target: self.schedule.to, "updated_at": self.at}
        return [{**row, **changes} for row in self.before]


Observer = Callable[[Tx, Swept], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Told:
    """Everyone a sweep tells."""

    on_delete: Sequence[OnDelete] = ()
    on_set_field: Sequence[OnSetField] = ()
    observers: Sequence[Observer] = ()
