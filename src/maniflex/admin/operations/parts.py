"""What the operations pages are made of: the durable parts of the server, and who may see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from maniflex.admin.declare import Admin, Operations
from maniflex.admin.person import Person
from maniflex.background.jobs.api import Jobs
from maniflex.background.outbox.api import Outbox
from maniflex.background.processes.api import Processes
from maniflex.background.runs.api import Work
from maniflex.background.scheduled_fields.api import Scheduled
from maniflex.background.schedules.api import Schedules
from maniflex.doctor.finding import DoctorReport
from maniflex.pipeline.endpoints import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableParts:
    """Durable work of one server, as the panel shows it."""

    work: Work
    outbox: Outbox
    schedules: Schedules
    scheduled: Scheduled
    jobs: Jobs
    processes: Processes
    endpoints: Mapping[str, Endpoint]  # lists and commands by name, behind the guards of the API
    examine: Callable[[], Awaitable[DoctorReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRules:
    """Who sees durable work, and how much of it; `operations=` with its defaults filled in."""

    role: str | None  # None: everybody who may enter, with what the API shows them
    view_role: str | None = None
    show_payloads: bool = True
    redact: Sequence[str] = ()


def holds_role(person: Person, role: str | None) -> bool:
    """Whether the person has the role; everybody on an open panel, and where no role is asked for."""
    return role is None or person.auth is None or role in person.auth.roles


def may_see(rules: OperationRules | None, person: Person) -> bool:
    """Whether the person sees durable work in the panel."""
    if rules is None:
        return False
    is_viewer = rules.view_role is not None and holds_role(person, rules.view_role)
    return is_viewer or holds_role(person, rules.role)


def rules_of(admin: Admin) -> OperationRules | None:
    """The rules of a panel; None for one without operations."""
    operations = admin.operations
    if isinstance(operations, Operations):
        return OperationRules(
            role=operations.role,
            view_role=operations.view_role,
            show_payloads=operations.show_payloads,
            redact=tuple(operations.redact),
        )
    return OperationRules(role=admin.role) if operations else None
