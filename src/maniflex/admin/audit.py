"""What was done in the panel: one row for each, in the transaction of the change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from maniflex._client_address import caller_network
from maniflex.admin.person import Visitor
from maniflex.admin.tables import AdminEvent
from maniflex.db.current import transaction
from maniflex.db.port import Adapter, Isolation
from maniflex.db.records import Records
from maniflex.errors import Conflict
from maniflex.pipeline.runtime import Runtime

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
