"""Pages of durable work: who may see and change it, and how its values are shown."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex._json import JsonFault, NotJson, read_text
from maniflex.admin.operations.parts import WorkReach
from maniflex.admin.visit import Handler, Visit
from maniflex.encryption.sealed_json import leaving_shut
from maniflex.errors import Abort, Forbidden, InvalidQuery, NotFound
from maniflex.pipeline.response import Response

_MOST_LETTERS = 12_000


@dataclass(eq=False, kw_only=True)
class WorkDesk(WorkReach):
    """Durable work as the person of one request sees it on pages."""

    visit: Visit

    @property
    def secret_names(self) -> tuple[str, ...]:
        return (*SECRET_NAMES, *self.rules.redact)

    def mask(self, value: Any) -> Any:
        """A value without the secrets in it."""
        return mask(value, self.secret_names)

    def restore_secrets(self, edited: Any, stored: Any) -> Any:
        """What somebody edited who saw `stored` masked, with the secrets that were left."""
        try:
            return unmask(edited, stored, self.mask(stored))
        except LostMask:
            message = self.visit.t("ops_lost_mask")
            details = [{"field": "payload", "message": message, "code": "invalid"}]
            raise Abort(422, "VALIDATION_FAILED", message, details) from None

    def json_of(self, value: Any) -> str:
        """A payload or a result as a page shows it, not too long; empty where payloads are not shown."""
        if not self.rules.show_payloads:
            return ""
        text = as_json(self.mask(value))
        return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}\n…"

    def whole_json_of(self, value: Any) -> str:
        """The same for a form, which sends it back."""
        return as_json(self.mask(value)) if self.rules.show_payloads else ""

    def time(self, moment: datetime | str | None) -> tuple[str, str]:
        """A moment in the zone of this person, and the instant."""
        instant = read_instant(moment)
        if instant is None:
            return "", ""
        return instant.astimezone(self.visit.zone).strftime("%Y-%m-%d %H:%M:%S"), instant.isoformat()


def read_instant(moment: datetime | str | None) -> datetime | None:
    """A moment of an answer of the API."""
    return datetime.fromisoformat(moment) if isinstance(moment, str) else moment


def desk_of(visit: Visit) -> WorkDesk | None:
    """The desk of a person who sees durable work; None for others."""
    parts, rules = visit.panel.durable, visit.panel.operation_rules
    if parts is None or rules is None or not parts.processes.is_used or visit.person is None:
        return None
    if not rules.admit(visit.person):
        return None
    return WorkDesk(
        visit=visit,
        person=visit.person,
        api=visit.api,
        panel=visit.panel,
        parts=parts,
        rules=rules,
        zone=visit.zone,
    )


def require_desk(
    visit: Visit, *, all_tenants: bool = False, schedules: bool = False, acts: bool = False
) -> WorkDesk:
    """The desk, or 403 for people who may not see, or do, what the page is about."""
    parts = visit.panel.durable
    if parts is None or not parts.processes.is_used:
        raise NotFound(visit.t("ops_unused"))
    desk = desk_of(visit)
    if desk is None or (all_tenants and not desk.sees_all) or (acts and not desk.can_act):
        raise Forbidden(visit.t("ops_forbidden"))
    if schedules and not desk.sees_schedules:
        raise Forbidden(visit.t("ops_forbidden"))
    return desk


def seeing(show: Any, *, all_tenants: bool = False, schedules: bool = False) -> Handler:
    """A page for those who see durable work; what is stored encrypted is not shown on it."""

    async def handler(visit: Visit) -> Response:
        desk = require_desk(visit, all_tenants=all_tenants, schedules=schedules)
        with leaving_shut():
            response: Response = await show(visit, desk)
        return response

    return handler


def revealing(show: Any, model: str, *, all_tenants: bool = False) -> Handler:
    """The same page with what it hides otherwise, for those who change durable work; noted in the audit."""

    async def handler(visit: Visit) -> Response:
        desk = require_desk(visit, all_tenants=all_tenants, acts=True)
        adapter, record_id = visit.panel.runtime.adapter, visit.params["id"]
        trail = visit.panel.trail
        async with trail.writing(visit, adapter, "reveal", model=model, record_id=record_id) as entry:
            entry.fields = ["payload"]
            response: Response = await show(visit, desk)
        return response

    return handler


def acting(do: Any, *, all_tenants: bool = False, schedules: bool = False) -> Handler:
    """A form for those who change durable work."""

    async def handler(visit: Visit) -> Response:
        desk = require_desk(visit, all_tenants=all_tenants, schedules=schedules, acts=True)
        response: Response = await do(visit, desk)
        return response

    return handler


# Values of durable work as pages show them: what stands below the name of a secret is masked.


MASK = "•••"
SECRET_NAMES = ("password", "secret", "token", "authorization", "api_key", "apikey", "cookie")
_DEEPEST = 60


class LostMask(ValueError):
    """A mask in a list that was changed around it, so that nobody can say whose secret it stands for."""


def mask(value: Any, names: Sequence[str], depth: int = 0) -> Any:
    """The value with everything below such a key replaced; headers come as pairs or with name and value.

    >>> mask({"user": "ada", "api_key": "k"}, SECRET_NAMES)
    {'user': 'ada', 'api_key': '•••'}
    >>> mask([["Authorization", "Bearer k"], {"name": "Cookie", "value": "k"}], SECRET_NAMES)
    [['Authorization', '•••'], {'name': 'Cookie', 'value': '•••'}]
    """
    if depth > _DEEPEST:
        return MASK
    if isinstance(value, dict):
        label = value.get("name", value.get("key"))
        is_named = isinstance(label, str) and is_secret(label, names)
        return {
            key: MASK
            if child is not None and (is_secret(str(key), names) or (is_named and key == "value"))
            else mask(child, names, depth + 1)
            for key, child in value.items()
        }
    if isinstance(value, list):
        is_pair = len(value) == 2 and isinstance(value[0], str) and is_secret(value[0], names)
        if is_pair and isinstance(value[1], str):
            return [value[0], MASK]
        return [mask(child, names, depth + 1) for child in value]
    return value


def is_secret(key: str, names: Sequence[str]) -> bool:
    """Whether a key looks as if a secret stood below it."""
    text = key.lower().replace("-", "_")
    return any(name.lower().replace("-", "_") in text for name in names)


def unmask(edited: Any, stored: Any, masked: Any) -> Any:
    """What somebody edited who saw `masked`: where a mask is left, the stored value stands again.

    Entries of a list are told apart by what was shown of them; `LostMask` where that does not say which
    one a mask belongs to, because a secret must not move to another address.
    """
    if not _has_mask(edited):
        return edited
    if isinstance(edited, dict) and isinstance(stored, dict) and isinstance(masked, dict):
        return {key: unmask(child, stored.get(key), masked.get(key)) for key, child in edited.items()}
    if isinstance(edited, list) and isinstance(stored, list) and isinstance(masked, list):
        return _unmask_list(edited, stored, masked)
    if edited != masked:
        raise LostMask
    return stored


def _unmask_list(edited: list[Any], stored: list[Any], masked: list[Any]) -> list[Any]:
    is_same_length = len(edited) == len(stored)
    entries = []
    for place, child in enumerate(edited):
        if not _has_mask(child):
            entries.append(child)
            continue
        if is_same_length and child == masked[place]:
            entries.append(stored[place])
            continue
        secrets = [stored[i] for i, shown in enumerate(masked) if shown == child]
        if secrets and all(one == secrets[0] for one in secrets):
            entries.append(secrets[0])
        elif is_same_length and not secrets and masked[place] not in edited:
            entries.append(unmask(child, stored[place], masked[place]))
        else:
            raise LostMask
    return entries


def _has_mask(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_mask, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value == MASK


def as_json(value: Any) -> str:
    """A value as a page shows it."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def read_json(visit: Visit, text: str) -> Any:
    """JSON that somebody typed; empty for null."""
    if not text.strip():
        return None
    try:
        return read_text(text)
    except NotJson as problem:
        is_syntax = problem.fault is JsonFault.SYNTAX
        place = f"line {problem.line}, column {problem.column}" if is_syntax else str(problem)
        message = visit.t("ops_bad_json", place=place)
        details = [{"field": "payload", "message": message, "code": "invalid"}]
        raise Abort(422, "VALIDATION_FAILED", message, details) from None


# The tabs above every page of operations, and how such a page is shown.


ROOT = "/-/operations"
# Keys of texts, paths, the endpoint a page needs, and whether it shows what belongs to no tenant.
_TABS = (
    ("ops_overview", "/", "", False),
    ("ops_runs", "/runs", "run.page", False),
    ("ops_schedules", "/schedules", "schedule.page", False),
    ("ops_outbox", "/outbox", "message.page", True),
    ("ops_feed", "/events", "group.page", True),
    ("ops_webhooks", "/webhooks", "endpoint.page", True),
    ("ops_scheduled", "/scheduled", "", True),
    ("ops_jobs", "/jobs", "", False),
    ("ops_processes", "/processes", "", True),
    ("ops_doctor", "/doctor", "", True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A page of operations."""

    label: str
    url: str
    is_current: bool


def tabs_of(desk: WorkDesk, current: str) -> list[Tab]:
    """The pages that this person may see."""
    return [
        Tab(label=desk.visit.t(key), url=f"{desk.visit.root}{ROOT}{path}", is_current=key == current)
        for key, path, endpoint, for_all in _TABS
        if (not endpoint or desk.has(endpoint)) and (desk.sees_all or not for_all) and _is_used(desk, key)
    ]


def _is_used(desk: WorkDesk, key: str) -> bool:
    if key == "ops_jobs":
        return bool(desk.parts.jobs.types) or not desk.parts.jobs.uses_runs
    if key == "ops_schedules":
        return desk.sees_schedules
    return key != "ops_scheduled" or desk.parts.scheduled.has_fields


def read_filters(visit: Visit, names: Collection[str]) -> list[tuple[str, str]]:
    """The filters in the address that say something; an unknown one is refused by name."""
    for name, _ in visit.query:
        if name.startswith("f_") and name not in names:
            raise InvalidQuery(f"{name}: there is no such filter")
    return [(name, text) for name, text in visit.query if name in names and text]


async def show_page(
    desk: WorkDesk, template: str, view: Any, *, tab: str, title: str = "", status: int = 200
) -> Response:
    """A page of operations with its tabs."""
    visit = desk.visit
    layout = await visit.layout(title or visit.t(tab))
    body = visit.panel.render(
        f"operations/{template}", layout=layout, view=view, t=visit.t, tabs=tabs_of(desk, tab)
    )
    return visit.whole(body, layout, status)
