"""The rules of a schedule's fields, for code, REST and stored rows alike.

`check` gives the `Cron` of a sound definition and raises `InvalidSchedule`, naming the field, for
any other; `check_firing` refuses a definition that would fail at every firing. `fields_of_new` and
`fields_of_change` say which columns a new or changed schedule gets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, get_args

from pydantic import ValidationError

from maniflex._json import decode, encode
from maniflex._names import did_you_mean
from maniflex._outbound import address_problem, url_problem
from maniflex.background.payload_types import PayloadType
from maniflex.background.runs.handlers import RunHandlers, check_type, payload_text
from maniflex.background.schedules.cron import Cron, Times
from maniflex.background.schedules.model import Kind, Policy, Schedule, Status
from maniflex.db.records import Records
from maniflex.errors import ConstraintViolation, InvalidSchedule, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta

KINDS, POLICIES, STATUSES = get_args(Kind), get_args(Policy), get_args(Status)
DECLARED_FIELDS = (
    "cron",
    "timezone",
    "kind",
    "target",
    "payload",
    "policy",
    "attempts",
    "allow_private",
    "actor_id",
)
CHANGEABLE = (*DECLARED_FIELDS, "name", "status")
_LONGEST = {"name": 100, "cron": 100, "timezone": 100, "target": 2000}
_LONGEST_OWNER = 500
_MOST_ATTEMPTS = 100
OWN = "schedule."  # the types of runs that schedules submit on their own behalf
_DEFAULTS = {"timezone": "UTC", "kind": "run", "policy": "once", "status": "active"}
_DOES = {"kind", "target", "payload", "actor_id"}
Models = Mapping[type[Model], ModelMeta]


class Fits(Protocol):
    """Refuses a payload that is no body of an action; the models are known once the server is sealed."""

    def __call__(self, payload: Any, models: Models | None) -> None: ...


@dataclass(frozen=True, slots=True)
class ScopeNeeds:
    """What the scope rules of the server must know of the caller of a run whose handler is scoped."""

    tenant: bool = False
    identity: bool = False  # a tenant or an actor, whichever a rule asks for


@dataclass(frozen=True, slots=True)
class KnownTargets:
    """The targets this process knows; a type that no handler here takes may be another process's."""

    handlers: RunHandlers
    actions: Mapping[str, Fits] | None = None  # all there are, once they are known
    models: Models | None = None
    scopes: ScopeNeeds = ScopeNeeds()


def check(values: Mapping[str, Any], known: KnownTargets) -> Times:
    """The times of a definition; the action it names must be one that is known."""
    for name, longest in _LONGEST.items():
        _check_text(name, values.get(name), longest)
    _check_choice("kind", values.get("kind"), KINDS)
    _check_choice("policy", values.get("policy"), POLICIES)
    _check_choice("status", values.get("status", "active"), STATUSES)
    for name in ("tenant_id", "actor_id"):
        if values.get(name) is not None:
            _check_text(name, values[name], _LONGEST_OWNER)
    attempts = values.get("attempts")
    if attempts is not None and not (type(attempts) is int and 1 <= attempts <= _MOST_ATTEMPTS):
        raise InvalidSchedule("attempts", f"it is a whole number from 1 to {_MOST_ATTEMPTS}")
    check_target(values["kind"], values["target"])
    actions = known.actions
    if values["kind"] == "action" and actions is not None and values["target"] not in actions:
        hint = did_you_mean(values["target"], actions)
        raise InvalidSchedule("target", f"there is no action {values['target']!r}{hint}")
    _check_payload(values.get("payload"))
    return Cron.parse(values["cron"], values["timezone"])


def check_target(kind: str, target: str) -> None:
    """Whether there can be such a target at all."""
    if kind == "run":
        try:
            check_type(target)
        except ValidationFailed as error:
            raise InvalidSchedule("target", error.message) from None
        if target.startswith(OWN):  # their payloads say what only a checked schedule may
            raise InvalidSchedule("target", f"runs of {OWN}* are those of schedules; write action= or url=")
    elif kind == "url":
        problem = url_problem(target)
        if problem:
            raise InvalidSchedule("target", problem)
    elif kind != "action":
        raise InvalidSchedule("kind", f"{kind!r} is none of {', '.join(KINDS)}")


def check_firing(values: Mapping[str, Any], known: KnownTargets) -> None:
    """Whether a sound definition can ever do what it says, as far as this process can tell."""
    target, payload = values["target"], values.get("payload")
    match values["kind"]:
        case "url" if not values.get("allow_private"):
            if problem := address_problem(target):
                raise InvalidSchedule("target", f"{problem}; only code can allow_private")
        case "action" if known.actions and target in known.actions:
            known.actions[target](payload, known.models)
        case "run":
            handler = known.handlers.get(target)
            if handler is not None and handler.payload is not None:
                _check_handler_takes(payload, handler.payload)
            if handler is not None and handler.scoped:
                _check_scope(values, known.scopes)


def _check_scope(values: Mapping[str, Any], needs: ScopeNeeds) -> None:
    """Refuse a schedule whose runs no scope rule could bind: their handler would fail at every firing."""
    target, tenant, actor = values["target"], values.get("tenant_id"), values.get("actor_id")
    if needs.tenant and not tenant:
        why = "scope rules bind it by a tenant, and this schedule has none"
        raise InvalidSchedule("tenant_id", f"the handler of {target!r} is scoped: {why}")
    if needs.identity and not tenant and not actor:
        why = "scope rules bind it by a caller, and this schedule has neither actor nor tenant"
        raise InvalidSchedule("actor_id", f"the handler of {target!r} is scoped: {why}")


def fields_of_new(values: Mapping[str, Any], now: datetime, known: KnownTargets) -> dict[str, Any]:
    """The fields of a new schedule, with the time it is due first."""
    full = {**_DEFAULTS, **values}
    cron = check(full, known)
    full["payload"] = _stored_payload(full, known)
    check_firing(full, known)
    return {**full, "next_run_at": _next(cron, now) if full["status"] == "active" else None}


def fields_of_change(
    before: Schedule, changes: Mapping[str, Any], now: datetime, known: KnownTargets
) -> dict[str, Any]:
    """The fields to write so that the changes hold; a due time moves only with what decides it."""
    unknown = [name for name in changes if name not in CHANGEABLE]
    if unknown:
        raise InvalidSchedule(unknown[0], f"it cannot be changed{did_you_mean(unknown[0], CHANGEABLE)}")
    current = {name: getattr(before, name) for name in CHANGEABLE}
    after = {**current, **changes}
    cron = check(after, known)
    if "payload" in changes:
        after["payload"] = _stored_payload(after, known)
    changed_values = {name: value for name, value in after.items() if value != current[name]}
    # One that cannot fire any more can still be renamed, closed to the inner network or switched off.
    if changed_values.keys() & _DOES or changed_values.get("status") == "active":
        check_firing({**after, "tenant_id": before.tenant_id}, known)
    if after["status"] == "inactive":
        return {**changed_values, "next_run_at": None}
    if changed_values.keys() & {"cron", "timezone", "status"} or before.next_run_at is None:
        return {**changed_values, "next_run_at": _next(cron, now), "last_error": None}
    return changed_values


def _next(cron: Times, now: datetime) -> datetime:
    due = cron.after(now)
    if due is None:
        raise InvalidSchedule("cron", "it is not due within fifty years")
    return due


def _check_text(name: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise InvalidSchedule(name, f"it is a text of 1 to {longest} characters")
    if not value.isprintable():
        raise InvalidSchedule(name, "it has characters that cannot be shown")


def _check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if value not in choices:
        raise InvalidSchedule(name, f"{value!r} is none of {', '.join(choices)}")


def _check_payload(payload: Any) -> None:
    try:
        encode(payload, "payload")
    except ValidationFailed as error:
        raise InvalidSchedule("payload", error.message) from None


def _stored_payload(values: Mapping[str, Any], known: KnownTargets) -> Any:
    """The payload as plain JSON, from which a handler of this process reads the same payload."""
    payload = values.get("payload")
    handler = known.handlers.get(values["target"]) if values["kind"] == "run" else None
    if payload is None:
        return None
    try:
        return decode(payload_text(handler, payload))
    except ValidationFailed as error:
        raise InvalidSchedule("payload", error.message) from None


def _check_handler_takes(payload: Any, declared: PayloadType) -> None:
    """Whether a handler takes the payload, as it comes back from the database."""
    try:
        declared.read(encode({} if payload is None else payload, "payload"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSchedule(".".join(("payload", *map(str, first["loc"]))), first["msg"]) from None


# The schedules of the code, and how the stored ones are brought up to them.


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
