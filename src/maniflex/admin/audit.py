"""What was done in the panel: one row for each, in the transaction of the change; and who did it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from maniflex._client_address import caller_network
from maniflex.admin.declare import name_of
from maniflex.admin.people import Visitor
from maniflex.admin.search import read_labels
from maniflex.admin.site import title_of
from maniflex.admin.tables import AdminEvent
from maniflex.admin.visit import show
from maniflex.db.current import transaction
from maniflex.db.port import Adapter, Isolation
from maniflex.db.records import Records
from maniflex.errors import Conflict, InvalidQuery
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.runtime import Runtime

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit


_MOST_SWEPT = 200


class SentTwice(Exception):
    """A form that acted already; `record_id` is what it made."""

    def __init__(self, record_id: str) -> None:
        super().__init__(record_id)
        self.record_id = record_id


class NothingStored(Exception):
    """Ends the transaction of a write that the API refused; `reason` is what the writer answers with."""

    def __init__(self, reason: Any = None) -> None:
        super().__init__()
        self.reason = reason


@dataclass(slots=True)
class EventDraft:
    """An event on its way: what the writer learns is stored when its transaction ends."""

    record_id: str = ""
    fields: Sequence[str] = ()
    reason: str = ""
    outcome: str = "ok"
    refusal: Any = None  # when nothing was stored: why


class Trail:
    """The events of one panel."""

    def __init__(self, runtime: Runtime, retention: timedelta) -> None:
        self._runtime = runtime
        self._retention = retention

    @property
    def records(self) -> Records[AdminEvent]:
        return Records(self._runtime.store(AdminEvent))

    async def note(self, visitor: Visitor, action: str, **values: Any) -> AdminEvent:
        """Store an event of its own."""
        return await self.records.create(**self._who(visitor), action=action, **values)

    @asynccontextmanager
    async def writing(
        self,
        visitor: Visitor,
        adapter: Adapter,
        action: str,
        *,
        model: str,
        form_key: str = "",
        record_id: str = "",
        isolation: Isolation | None = None,
    ) -> AsyncIterator[EventDraft]:
        """A block whose changes and whose event are stored together, or not at all.

        `NothingStored` inside it rolls everything back. With a `form_key` the block runs once for each key:
        `SentTwice` when it has run before.
        """
        entry = EventDraft(record_id)
        event: AdminEvent | None = None
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(transaction(adapter, isolation=isolation))
                await stack.enter_async_context(transaction(self._runtime.adapter))
                if form_key:
                    event = await self._claim(visitor, action, model=model, form_key=form_key)
                yield entry
                await self._settle(visitor, action, model, entry, event)
        except NothingStored as nothing:
            entry.refusal = nothing.reason

    async def _settle(
        self, visitor: Visitor, action: str, model: str, entry: EventDraft, event: AdminEvent | None
    ) -> None:
        values: dict[str, Any] = {
            "model": model,
            "record_id": entry.record_id,
            "fields": list(entry.fields),
            "reason": entry.reason[:500],
            "outcome": entry.outcome,
        }
        if event is None:
            await self.note(visitor, action, **values)
        else:
            await self.records.update(event.id, **values)

    async def _claim(self, visitor: Visitor, action: str, *, model: str, form_key: str) -> AdminEvent:
        earlier = await self.find_by_form_key(form_key)
        if earlier is not None:
            raise SentTwice(earlier.record_id)
        try:
            return await self.note(visitor, action, model=model, form_key=form_key)
        except Conflict:
            raise SentTwice("") from None

    async def find_by_form_key(self, form_key: str) -> AdminEvent | None:
        """The event of a form that was sent before."""
        events = await self.records.list({"form_key": form_key}, limit=1)
        return events[0] if events else None

    async def failures(self, since: datetime, *, most: int, **of: str) -> list[AdminEvent]:
        """The failed logins of a network, an account or both, the latest first, and one more than `most`."""
        filters = [("action", "eq", "login_failed"), ("created_at", "gt", since)]
        filters += [(name, "eq", value) for name, value in of.items()]
        return await self.records.list(filters, "created_at:desc", limit=most + 1)

    async def has_signed_in(self, *, network: str, account: str) -> bool:
        """Whether somebody has signed in to the account from this network, as far as events are kept."""
        filters = {"action": "login", "network": network, "account": account}
        return bool(await self.records.list(filters, limit=1))

    async def sweep(self) -> None:
        """Remove some of the events that are kept no longer."""
        before = self._runtime.clock.now() - self._retention
        for event in await self.records.list([("created_at", "lt", before)], limit=_MOST_SWEPT):
            await self.records.delete(event.id)

    def _who(self, visitor: Visitor) -> dict[str, Any]:
        person = visitor.person
        return {
            "actor_id": (person.id or None) if person is not None else None,
            "actor_name": "" if person is None else person.name[:200],
            "tenant_id": (person.tenant_id or None) if person is not None else None,
            "address": visitor.ctx.client_ip,
            "network": caller_network(visitor.ctx.client_ip),
            "request_id": visitor.ctx.request_id,
        }


# The page of what was done in the panel: who, when, what, from where. Nothing on it can be changed.


_MOST = 50
_FILTERS = {
    "f_action": "action", "f_actor": "actor_name", "f_model": "model", "f_record": "record_id",
    "f_request": "request_id",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event."""

    time: str
    instant: str
    actor: str
    action: str
    model: str  # what kind of record it was about
    target: str  # the record by its label, or by its id
    record_id: str
    url: str
    fields: str
    address: str
    request_id: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """What `audit.html` is given."""

    rows: Sequence[EventRow]
    filters: Sequence[tuple[str, str, str]]  # parameters, labels and values
    url: str
    next_url: str


async def find_events(visit: Visit, filters: Sequence[tuple[str, str, Any]], most: int) -> list[AdminEvent]:
    """The newest events that this person may see: of its tenant, and without a role only its own."""
    person = visit.signed_in
    bound_filters = list(filters)
    if person.tenant_id:
        bound_filters.append(("tenant_id", "eq", person.tenant_id))
    closed_models = [
        name
        for name, site in visit.panel.sites.with_routes.items()
        if not await visit.api.may(site, Operation.READ if site.is_singleton else Operation.LIST)
    ]
    if closed_models:  # no id of a record that this person could not find in a list
        bound_filters.append(("model", "not_in", closed_models))
    if visit.panel.admin.role is None:
        bound_filters.append(("actor_id", "eq", person.id))
    return await visit.panel.trail.records.list(bound_filters, "id:desc", limit=most)


async def event_rows(visit: Visit, events: Sequence[AdminEvent]) -> list[EventRow]:
    """Events as the page shows them, their records by the labels that this person may see.

    Those about a record that is there and that this person may not see are left out.
    """
    ids: dict[str, set[str]] = {}
    for event in events:
        if event.record_id:
            ids.setdefault(event.model, set()).add(event.record_id)
    labels = await read_labels(visit, ids)
    hidden_places: set[tuple[str, str]] = set()
    for name in ids:
        site = visit.panel.sites.by_name.get(name)
        unseen = [id for id in ids[name] if (name, id) not in labels]
        if site is None or not unseen or not site.has_id or site.is_singleton:
            continue
        records: Records[Any] = Records(visit.panel.runtime.stores[site.meta.cls])
        hidden_places |= {(name, record.id) for record in await records.list([("id", "in", unseen)])}
    return [
        _event_row(visit, event, labels.get((event.model, event.record_id), ""))
        for event in events
        if (event.model, event.record_id) not in hidden_places
    ]


def _event_row(visit: Visit, event: AdminEvent, label: str) -> EventRow:
    site = visit.panel.sites.by_name.get(event.model)
    has_page = site is not None and event.record_id and site.has_id
    return EventRow(
        time=event.created_at.astimezone(visit.zone).strftime("%Y-%m-%d %H:%M:%S"),
        instant=event.created_at.isoformat(),
        actor=event.actor_name or visit.t("unknown_person"),
        action=event.action,
        model=title_of(event.model) if event.model else "",
        target=label or event.record_id,
        record_id=event.record_id,
        url=visit.url(site.table, event.record_id) if site is not None and has_page else "",
        fields=", ".join(event.fields),
        address=event.address,
        request_id=event.request_id,
        outcome=event.outcome,
        reason=event.reason,
    )


async def show_audit(visit: Visit) -> Response:
    """The newest events, filtered."""
    filters: list[tuple[str, str, Any]] = []
    kept_pairs = []
    for key, value in visit.query:
        if key.startswith("f_") and key not in _FILTERS:
            raise InvalidQuery(f"{key}: there is no such filter")
        if value and key in _FILTERS:
            filters.append((_FILTERS[key], "eq", value))
            kept_pairs.append((key, value))
    before = visit.param("before")
    events = await find_events(visit, [*filters, ("id", "lt", before)] if before else filters, _MOST + 1)
    values = dict(kept_pairs)
    url = visit.url("-", "audit")
    view = AuditView(
        rows=await event_rows(visit, events[:_MOST]),
        filters=[(key, visit.t(f"audit_{key[2:]}"), values.get(key, "")) for key in _FILTERS],
        url=url,
        next_url=f"{url}?{urlencode([*kept_pairs, ('before', events[_MOST - 1].id)])}"
        if len(events) > _MOST
        else "",
    )
    return await visit.page("audit.html", view, title=visit.t("audit"))


# What the people are called who acted: rows of history and of durable work know them by their ids.


_MOST_ASKED = 50


async def account_names(visit: Visit, ids: Collection[str]) -> dict[str, str]:
    """The labels of accounts of the application, by id, as far as this person may list them."""
    accounts = visit.panel.admin.accounts
    site = None if accounts is None else visit.panel.sites.by_name.get(name_of(accounts))
    if site is None or not ids:
        return {}
    labels = await read_labels(visit, {site.meta.name: ids})
    left_ids = {one for one in ids if (site.meta.name, one) not in labels}
    if left_ids and site.meta.soft_delete is not None:  # who has left still did what they did
        labels |= await read_labels(visit, {site.meta.name: left_ids}, deleted=True)
    return {record_id: label for (_, record_id), label in labels.items()}


async def people_names(visit: Visit, ids: Collection[str]) -> dict[str, str]:
    """What these people are called, by id: accounts of the application, and people of the panel."""
    account_ids = {one for one in ids if one}
    names = await account_names(visit, account_ids)
    for one in sorted(account_ids - names.keys())[:_MOST_ASKED]:
        user = await visit.panel.superusers.read(one) if visit.panel.admin.auth == "superuser" else None
        events = [] if user is not None else await find_events(visit, [("actor_id", "eq", one)], 1)
        name = user.email if user is not None else next((event.actor_name for event in events), "")
        names |= {one: name} if name else {}
    return names


ROUTES = (show("/-/audit", show_audit, link="audit"),)
