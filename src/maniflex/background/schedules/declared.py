"""The schedules of the code, and how the stored ones are brought up to them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from maniflex._names import did_you_mean
from maniflex.background.runs.handlers import RunHandlers
from maniflex.background.schedules.definition import DECLARED_FIELDS, KnownTargets, check, check_firing
from maniflex.background.schedules.model import Schedule
from maniflex.db.records import Records
from maniflex.errors import ConstraintViolation, InvalidSchedule


class DeclaredSchedules:
    """Definitions by the name of their schedule; a second one of a name is a mistake."""

    def __init__(self, handlers: RunHandlers) -> None:
        self._handlers = handlers
        self._definitions: dict[str, dict[str, Any]] = {}
        self._twice: list[str] = []

    def add(self, name: str, definition: dict[str, Any]) -> None:
        if name in self._definitions:
            self._twice.append(name)
        else:
            self._definitions[name] = definition

    def problems(self, targets: KnownTargets) -> Iterator[str]:
        for name in self._twice:
            yield f"schedule {name!r}: there is one of this name already"
        for name, definition in self._definitions.items():
            try:
                check(definition, targets)
                check_firing(definition, targets)
            except InvalidSchedule as error:
                yield f"schedule {name!r}: {error}"

    async def store(
        self,
        records: Records[Schedule],
        *,
        insert: Callable[[Mapping[str, Any]], Awaitable[Schedule]],
        update: Callable[..., Awaitable[Schedule]],
        logger: logging.Logger,
    ) -> None:
        """Bring the stored schedules up to these."""
        if not self._definitions:
            return
        self._warn_of_strangers(logger)
        existing = {one.name: one for one in await records.list([("name", "in", [*self._definitions])])}
        for name, definition in self._definitions.items():
            schedule = existing.get(name)
            if schedule is None:
                try:
                    await insert(definition)
                    continue
                except ConstraintViolation:  # another process was faster
                    [schedule] = await records.list([("name", "eq", name)])
            if changes := _changes(schedule, definition):
                await update(schedule.id, **changes)

    def _warn_of_strangers(self, logger: logging.Logger) -> None:
        """Warn of run types without a handler here; another process may handle them, so it is no error."""
        types = [handler.type for handler in self._handlers if not handler.internal]
        for name, definition in self._definitions.items():
            if definition["kind"] == "run" and self._handlers.get(definition["target"]) is None:
                logger.warning(
                    "schedule %r: no handler of this process takes runs of type %r%s",
                    name,
                    definition["target"],
                    did_you_mean(definition["target"], types),
                )


def _changes(schedule: Schedule, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Code decides what a schedule does; whether it is active is left to the operator."""
    changes = {key: definition[key] for key in DECLARED_FIELDS if definition[key] != getattr(schedule, key)}
    if schedule.last_error is not None:  # it was switched off for a mistake, and the code has none
        changes["status"] = "active"
    return changes
