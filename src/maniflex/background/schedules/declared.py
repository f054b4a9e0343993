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

ScheduleKey = tuple[str | None, str]  # tenant and name, by which no two schedules are alike


class DeclaredSchedules:
    """Definitions by the tenant and name of their schedule; a second one of both is a mistake."""

    def __init__(self, handlers: RunHandlers) -> None:
        self._handlers = handlers
        self._definitions: dict[ScheduleKey, dict[str, Any]] = {}
        self._twice: list[str] = []

    def add(self, definition: dict[str, Any]) -> None:
        key = definition["tenant_id"], definition["name"]
        if key in self._definitions:
            self._twice.append(_words(definition))
        else:
            self._definitions[key] = definition

    def problems(self, targets: KnownTargets) -> Iterator[str]:
        for words in self._twice:
            yield f"{words}: there is one of this name already"
        for definition in self._definitions.values():
            try:
                check(definition, targets)
                check_firing(definition, targets)
            except InvalidSchedule as error:
                yield f"{_words(definition)}: {error}"

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
        existing: dict[ScheduleKey, Schedule] = {}
        for tenant in dict.fromkeys(tenant for tenant, _ in self._definitions):
            names = [name for other, name in self._definitions if other == tenant]
            schedules = await records.list([of_tenant(tenant), ("name", "in", names)])
            existing |= {(tenant, one.name): one for one in schedules}
        for (tenant, name), definition in self._definitions.items():
            schedule = existing.get((tenant, name))
            if schedule is None:
                try:
                    await insert(definition)
                    continue
                except ConstraintViolation:  # another process was faster
                    [schedule] = await records.list([of_tenant(tenant), ("name", "eq", name)])
            if changes := _changes(schedule, definition):
                await update(schedule.id, **changes)

    def _warn_of_strangers(self, logger: logging.Logger) -> None:
        """Warn of run types without a handler here; another process may handle them, so it is no error."""
        types = [handler.type for handler in self._handlers if not handler.internal]
        for definition in self._definitions.values():
            if definition["kind"] == "run" and self._handlers.get(definition["target"]) is None:
                logger.warning(
                    "%s: no handler of this process takes runs of type %r%s",
                    _words(definition),
                    definition["target"],
                    did_you_mean(definition["target"], types),
                )


def of_tenant(tenant_id: str | None) -> tuple[str, str, str | None]:
    """The condition that leaves the schedules of a tenant, or those without one."""
    return ("tenant_id", "eq", tenant_id) if tenant_id else ("tenant_id", "is_null", None)


def _words(definition: Mapping[str, Any]) -> str:
    """A declared schedule as messages name it."""
    tenant = definition["tenant_id"]
    return f"schedule {definition['name']!r}" + (f" of the tenant {tenant!r}" if tenant else "")


def _changes(schedule: Schedule, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Code decides what a schedule does; whether it is active is left to the operator."""
    changes = {key: definition[key] for key in DECLARED_FIELDS if definition[key] != getattr(schedule, key)}
    if schedule.last_error is not None:  # it was switched off for a mistake, and the code has none
        changes["status"] = "active"
    return changes
