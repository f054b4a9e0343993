"""Pages of durable work: who may see and change it, and how its values are shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.admin.operations.masking import SECRET_NAMES, LostMask, as_json, mask, unmask
from maniflex.admin.operations.parts import may_see
from maniflex.admin.operations.reach import WorkReach
from maniflex.admin.route import Handler
from maniflex.admin.visit import Visit
from maniflex.errors import Abort, Forbidden, NotFound
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
    if not may_see(rules, visit.person):
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
    """A page for those who see durable work."""

    async def handler(visit: Visit) -> Response:
        desk = require_desk(visit, all_tenants=all_tenants, schedules=schedules)
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
