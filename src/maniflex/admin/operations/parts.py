"""What the operations pages are made of: the durable parts of the server, and who may see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from maniflex.admin.declare import Admin, Operations
from maniflex.admin.people import Person
from maniflex.admin.visit import Api, ApiAnswer, Refusal
from maniflex.background.commands import DELIVERY, ENDPOINT, GROUP, MESSAGE, RUN, SCHEDULE, Noun
from maniflex.background.feed.api import Events
from maniflex.background.jobs.api import Jobs
from maniflex.background.outbox.api import Outbox
from maniflex.background.processes.api import Processes
from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import RunHandler
from maniflex.background.scheduled_fields.api import Scheduled
from maniflex.background.schedules.api import Schedules
from maniflex.db.port import Adapter
from maniflex.doctor.check import DoctorReport
from maniflex.errors import NotFound
from maniflex.pipeline.exchange import LOOKS, OPERATES
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.steps.browse import PAGE, PageRequest

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.background.webhooks.api import Webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableParts:
    """Durable work of one server, as the panel shows it."""

    work: Work
    outbox: Outbox
    schedules: Schedules
    scheduled: Scheduled
    jobs: Jobs
    processes: Processes
    events: Events
    webhooks: Webhooks | None  # None where the application has no endpoints
    endpoints: Mapping[str, Endpoint]  # lists and commands by name, behind the guards of the API
    examine: Callable[[], Awaitable[DoctorReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRules:
    """Who sees durable work, and how much of it; `operations=` with its defaults filled in."""

    role: str | None  # None: everybody who may enter, with what the API shows them
    view_role: str | None = None
    show_payloads: bool = True
    redact: Sequence[str] = ()

    def admit(self, person: Person) -> bool:
        """Whether the person sees durable work in the panel."""
        is_viewer = self.view_role is not None and holds_role(person, self.view_role)
        return is_viewer or holds_role(person, self.role)


def holds_role(person: Person, role: str | None) -> bool:
    """Whether the person has the role; everybody on an open panel, and where no role is asked for."""
    return role is None or person.auth is None or role in person.auth.roles


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


# The durable work that one person reaches, in a request or in the background: every list and every
# command is a request as that person.


Filters = Sequence[tuple[str, str, Any]]
MOST_COUNTED = 10_000


@dataclass(eq=False, kw_only=True)
class WorkReach:
    """Durable work as one person reaches it."""

    person: Person
    api: Api
    panel: PanelParts
    parts: DurableParts
    rules: OperationRules
    zone: ZoneInfo
    moment: datetime | None = None  # what filters call now; None: the time it is

    # -- who

    @cached_property
    def can_act(self) -> bool:
        """Whether the person changes durable work here, unless the panel only shows."""
        return holds_role(self.person, self.rules.role) and not self.panel.admin.read_only

    @property
    def tenant(self) -> str:
        return self.person.tenant_id

    @property
    def sees_all(self) -> bool:
        """Whether the person sees what belongs to no tenant: all numbers, messages, processes."""
        return not self.tenant and (self._operates or self._is_admin)

    @property
    def reads_internals(self) -> bool:
        """Whether the person operates all of it: reads texts of exceptions, traces and names of workers."""
        return self.sees_all and holds_role(self.person, self.rules.role)

    @property
    def sees_schedules(self) -> bool:
        """Whether the person sees schedules: those of its tenant or, without one, all."""
        auth = self.person.auth
        return self._operates or (auth is not None and self.parts.schedules.admin_role in auth.roles)

    @property
    def types_to_schedule(self) -> list[str]:
        """The types that the form of a schedule offers: to people with a tenant, what they could submit."""
        work, is_client = self.parts.work, not (self._operates or self.sees_all)
        types = [type for type, handler in self.handlers.items() if not handler.internal]
        return sorted(t for t in types if not is_client or work.access.is_public(t, work.handlers))

    @property
    def _is_admin(self) -> bool:
        auth = self.person.auth
        return auth is not None and self.parts.work.access.admin_role in auth.roles

    @property
    def _operates(self) -> bool:
        """Whether the panel names a role for this; otherwise the API's own rules decide."""
        return self.rules.role is not None or self.person.auth is None

    @property
    def handlers(self) -> dict[str, RunHandler]:
        """The types of runs that this person may know of; internal ones are for operators of all tenants."""
        handlers = self.parts.work.handlers
        hidden_types = () if self.sees_all else handlers.hidden_types()
        return {one.type: one for one in handlers if one.type not in hidden_types}

    @property
    def types_to_submit(self) -> list[str]:
        """The types that a form offers: to people without a role for them, what clients may submit."""
        work, is_client = self.parts.work, not (self._operates or self._is_admin)
        types = [type for type, handler in self.handlers.items() if not handler.internal]
        return sorted(t for t in types if not is_client or work.access.is_public(t, work.handlers))

    def has(self, name: str) -> bool:
        """Whether the part with this endpoint is in use."""
        return name in self.parts.endpoints

    # -- requests

    async def ask(
        self,
        name: str,
        record_id: str = "",
        *,
        query: Sequence[tuple[str, str]] = (),
        json: Any = None,
        page: PageRequest | None = None,
    ) -> ApiAnswer:
        """The answer of one of the endpoints."""
        endpoint = self.parts.endpoints.get(name)
        if endpoint is None:
            raise NotFound(self.panel.texts("no_such_page"))
        scope: dict[str, Any] = {PAGE: page} if page is not None else {}
        if self._operates:
            scope[OPERATES] = True if holds_role(self.person, self.rules.role) else LOOKS
        return await self.api.answer(endpoint, record_id, query=query, json=json, scope=scope)

    async def read_page(
        self, name: str, page: PageRequest, query: Sequence[tuple[str, str]] = ()
    ) -> list[Any]:
        """One page of records; `page` is told where the walk goes on."""
        records: list[Any] = (await self.ask(f"{name}.page", query=query, page=page)).data
        if name == "message" and not self.reads_internals:
            for record in records:
                record["last_error"] = None
        return records

    async def some(
        self, name: str, filters: Filters, most: int, query: Sequence[tuple[str, str]] = ()
    ) -> list[Any]:
        """The newest records that match."""
        return await self.read_page(name, PageRequest(most, filters=tuple(filters)), query)

    async def one(self, name: str, record_id: str, *, deleted: bool = False) -> dict[str, Any]:
        """The record of this id; `NotFound` when it is not there, or not for this person."""
        page = PageRequest(1, filters=(("id", "eq", record_id),), deleted=deleted)
        records = await self.read_page(name, page)
        if not records:
            raise NotFound(self.panel.texts("no_such_record"))
        return dict(records[0])

    async def count(self, name: str, filters: Filters, most: int = MOST_COUNTED) -> int:
        """How many records match, at most one more than `most`."""
        page = PageRequest(most, filters=tuple(filters))
        return int((await self.ask(f"{name}.count", page=page)).data)

    async def command(self, name: str, record_id: str = "", **options: Any) -> Any:
        """Do it, or raise the API's own refusal."""
        answer = await self.ask(name, record_id, **options)
        if not answer.ok:
            raise Refusal(answer.response)
        return answer.data if answer.status != 204 else None

    def now(self) -> datetime:
        return self.moment or self.panel.runtime.clock.now()


def adapter_of(reach: WorkReach, noun: Noun) -> Adapter:
    """The database that records of this kind are in; `NotFound` where the application has none of them."""
    parts = reach.parts
    if not reach.has(f"{noun.name}.page"):
        raise NotFound(reach.panel.texts("no_such_page"))
    if noun in (GROUP, ENDPOINT, DELIVERY):  # which are where the feed is
        return parts.events.store.adapter
    adapters: dict[str, Adapter] = {
        RUN.name: parts.work.engine.store.adapter,
        MESSAGE.name: parts.outbox.store.adapter,
        SCHEDULE.name: parts.schedules.store.adapter,
    }
    return adapters[noun.name]
