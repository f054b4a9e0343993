"""The statements about webhooks: make deliveries with the router, claim, settle, disable, in any dialect.

`taker_of` gives what the router calls in the transaction that gives events their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from maniflex._ids import new_id, new_ids
from maniflex._json import decode, encode_plain
from maniflex.background.feed.store import RoutedEvent, Taker
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.background.webhooks.attempt import AttemptOutcome, DeliveryChange
from maniflex.background.webhooks.endpoint import OF_ENTRY, Destination
from maniflex.background.webhooks.model import DeliveryStatus
from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.events.event import CONTROL
from maniflex.events.patterns import matcher
from maniflex.sql.statement import load

AT_ONCE = 1000
_MADE = ("ids", "events", "types", "endpoints")


class StoredEndpoint(NamedTuple):
    """An endpoint as its row has it; headers and secrets may be sealed."""

    id: str
    url: str
    patterns: tuple[str, ...]
    format: str
    ordering: str
    signing: str
    headers: str | None
    timeout: int
    status: str
    secret: str | None
    old_secret: str | None
    old_until: datetime | None
    actor_id: str | None
    tenant_id: str | None
    is_declared: bool


class ClaimedDelivery(NamedTuple):
    """A delivery that is ours until its lease ends."""

    id: str
    event_id: str
    type: str
    line: str | None
    attempts: int
    tries: int
    is_visible: bool
    endpoint_id: str
    lease: str


class Disabled(NamedTuple):
    """An endpoint that was just disabled."""

    url: str
    tenant_id: str | None
    actor_id: str | None


class WebhookStore:
    """All statements about webhooks on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.primary = Primary(adapter)
        self._sql = load(PACKAGE, "webhooks", adapter.dialect)
        parameters = parameters_of(adapter.dialect)
        self.time, self._texts, self._rows = parameters.time, parameters.texts, parameters.rows

    # -- making

    async def takers(self, run: Executor) -> list[tuple[str, tuple[str, ...], str | None, bool]]:
        """The endpoints that are told of events: id, patterns, tenant, and whether code declares them."""
        rows = await run.fetch(self._sql["takers"].bind())
        return [
            (id, tuple(_json(patterns)), tenant_id, bool(is_declared))
            for id, patterns, tenant_id, is_declared in rows
        ]

    async def make(self, run: Executor, deliveries: Sequence[tuple[str, str, str]], now: datetime) -> int:
        """Make deliveries of events to endpoints: id of the event, its type, id of the endpoint; how many."""
        count = 0
        for start in range(0, len(deliveries), AT_ONCE):
            part = deliveries[start : start + AT_ONCE]
            values = [(id, *one) for id, one in zip(new_ids(len(part)), part, strict=True)]
            count += len(
                await run.write(self._sql["make"].bind(now=self.time(now), **self._rows(_MADE, values)))
            )
        return count

    # -- sending

    async def due_endpoints(self, now: datetime) -> list[str]:
        """The endpoints that something is due for."""
        rows = await self.primary.fetch(self._sql["due_endpoints"].bind(now=self.time(now)))
        return [id for (id,) in rows]

    async def claim(
        self, endpoint_id: str, limit: int, now: datetime, until: datetime
    ) -> list[ClaimedDelivery]:
        """Lease the oldest due deliveries of an endpoint, each the first of its line."""
        lease = new_id()
        values = {"now": self.time(now), "until": self.time(until), "lease": lease, "limit": limit}
        rows = await self.adapter.write(self._sql["claim"].bind(endpoint_id=endpoint_id, **values))
        return [ClaimedDelivery._make((*row, endpoint_id, lease)) for row in rows]

    async def settle(
        self,
        tx: Tx,
        delivery: ClaimedDelivery,
        outcome: AttemptOutcome,
        change: DeliveryChange,
        now: datetime,
    ) -> bool:
        """Write what came of an attempt, if the delivery is still ours."""
        is_ours = await tx.write(
            self._sql["settle"].bind(
                id=delivery.id,
                lease=delivery.lease,
                status=change.status,
                retry_at=self.time(change.retry_at or now),
                delivered_at=self.time(now if change.status is DeliveryStatus.DELIVERED else None),
                last_status=outcome.status,
                last_error=outcome.error,
                now=self.time(now),
            )
        )
        if not is_ours:
            return False
        await tx.execute(
            self._sql["note_attempt"].bind(
                id=new_id(),
                delivery_id=delivery.id,
                number=delivery.attempts,
                duration_ms=round(outcome.duration.total_seconds() * 1000),
                status=outcome.status,
                error=outcome.error,
                answer=outcome.answer,
                now=self.time(now),
            )
        )
        if change.retry_at is not None and delivery.line is not None:
            values = {"line": delivery.line, "retry_at": self.time(change.retry_at)}
            await tx.write(self._sql["hold_line"].bind(endpoint_id=delivery.endpoint_id, **values))
        return True

    async def note_success(self, tx: Tx, endpoint_id: str) -> None:
        """The endpoint works: it fails since never."""
        await tx.write(self._sql["note_success"].bind(id=endpoint_id))

    async def note_failure(self, tx: Tx, endpoint_id: str, now: datetime) -> datetime:
        """The endpoint failed; since when it does nothing else."""
        rows = await tx.write(self._sql["note_failure"].bind(id=endpoint_id, now=self.time(now)))
        return instant(rows[0][0]) if rows else now

    async def pause(self, tx: Tx, endpoint_id: str, until: datetime) -> None:
        """Send the endpoint nothing until then."""
        await tx.write(self._sql["pause"].bind(id=endpoint_id, until=self.time(until)))

    async def disable(self, tx: Tx, endpoint_id: str, reason: str, now: datetime) -> Disabled | None:
        """Disable an endpoint and cancel what waits for it; None where it was disabled before."""
        values = {"reason": reason, "now": self.time(now)}
        rows = await tx.write(self._sql["disable"].bind(id=endpoint_id, **values))
        await self.cancel(tx, endpoint_id, now)
        return Disabled(*rows[0]) if rows else None

    async def cancel(self, tx: Tx, endpoint_id: str, now: datetime) -> None:
        """Send nothing of what waits for the endpoint."""
        await tx.write(self._sql["cancel"].bind(endpoint_id=endpoint_id, now=self.time(now)))

    async def hand_back(self, delivery: ClaimedDelivery) -> None:
        """It was claimed and not tried."""
        await self.adapter.write(self._sql["hand_back"].bind(id=delivery.id, lease=delivery.lease))

    async def show(self, delivery: ClaimedDelivery) -> None:
        """The owner of the endpoint may see the event, and so the delivery."""
        if not delivery.is_visible:
            await self.adapter.write(self._sql["show"].bind(id=delivery.id))

    async def withhold(self, delivery: ClaimedDelivery) -> bool:
        """Remove a delivery whose event the owner of the endpoint may not see."""
        async with self.adapter.transaction() as tx:
            is_gone = await tx.write(self._sql["withhold"].bind(id=delivery.id, lease=delivery.lease))
            if is_gone:
                await tx.execute(self._sql["forget_attempts"].bind(id=delivery.id))
            return bool(is_gone)

    # -- endpoints

    async def find(self, id: str, run: Executor | None = None) -> StoredEndpoint | None:
        """An endpoint as it is stored."""
        rows = await (run or self.primary).fetch(self._sql["endpoint"].bind(id=id))
        return _endpoint(rows[0]) if rows else None

    async def serve(self, endpoint: Destination, now: datetime) -> None:
        """Say that this process has the code of an endpoint."""
        values = {name: getattr(endpoint, name) for name in ("id", "url", "description")}
        values |= {name: str(getattr(endpoint, name)) for name in ("format", "ordering", "signing")}
        values |= {"patterns": encode_plain(list(endpoint.patterns)), "timeout": round(endpoint.timeout)}
        await self.adapter.write(self._sql["serve"].bind(**values, now=self.time(now)))

    async def touch_declared(self, ids: Collection[str], now: datetime) -> None:
        """This process still has the code of these."""
        statement = self._sql["touch_declared"].bind(ids=self._texts(list(ids)), now=self.time(now))
        await self.adapter.write(statement)

    async def forgotten(self, before: datetime) -> list[str]:
        """The endpoints of code that no process has had since then."""
        rows = await self.primary.fetch(self._sql["forget_declared"].bind(before=self.time(before)))
        return [id for (id,) in rows]

    async def enable(self, tx: Executor, id: str, now: datetime) -> bool:
        """Tell a disabled endpoint of events again."""
        return bool(await tx.write(self._sql["enable"].bind(id=id, now=self.time(now))))

    async def count(self, run: Executor, tenant_id: str | None, actor_id: str | None) -> int:
        """How many endpoints a tenant has, or a caller without one."""
        statement = (
            self._sql["owned_count"].bind(tenant_id=tenant_id)
            if tenant_id
            else self._sql["own_count"].bind(actor_id=actor_id)
        )
        [[count]] = await run.fetch(statement)
        return int(count)

    async def lock_owner(self, tx: Tx, owner: str) -> None:
        """Let one request at a time count and add endpoints of an owner."""
        await tx.fetch(self._sql["lock_owner"].bind(owner=f"webhook_endpoint/{owner}"))

    async def add(
        self, tx: Tx, endpoint: StoredEndpoint, description: str | None, public_key: str | None, now: datetime
    ) -> None:
        """Store an endpoint of a client."""
        values = endpoint._asdict()
        values |= {"patterns": encode_plain(list(endpoint.patterns)), "now": self.time(now)}
        values |= {"description": description, "public_key": public_key}
        await tx.write(self._sql["add"].bind_all(values))

    async def change(self, tx: Tx, id: str, changes: Mapping[str, Any], now: datetime) -> None:
        """Write fields of an endpoint."""
        for name, value in changes.items():
            column = encode_plain(value) if name == "patterns" else value
            statement = self._sql[f"set_{name}"].bind(id=id, value=column, now=self.time(now))
            await tx.write(statement)

    async def remove(self, tx: Tx, id: str) -> None:
        """Remove an endpoint."""
        await tx.write(self._sql["remove"].bind(id=id))

    async def set_secret(
        self, tx: Executor, id: str, secret: str, public_key: str | None, old_until: datetime, now: datetime
    ) -> bool:
        """Sign with another secret; the one before signs along until then."""
        values = {"secret": secret, "public_key": public_key, "old_until": self.time(old_until)}
        return bool(await tx.write(self._sql["set_secret"].bind(id=id, now=self.time(now), **values)))

    # -- by hand

    async def resend(self, run: Executor, id: str, now: datetime) -> bool:
        """Send a delivery that is settled once more."""
        return bool(await run.write(self._sql["resend"].bind(id=id, now=self.time(now))))

    async def recover(self, run: Executor, endpoint_id: str, since: datetime, now: datetime) -> int:
        """Send what failed or was cancelled since then; how many."""
        values = {"since": self.time(since), "now": self.time(now)}
        return len(await run.write(self._sql["recover"].bind(endpoint_id=endpoint_id, **values)))

    async def forget_deliveries(self, tx: Tx, endpoint_id: str) -> None:
        """Remove all deliveries of an endpoint, with their attempts."""
        await tx.execute(self._sql["forget_attempts_of"].bind(endpoint_id=endpoint_id))
        await tx.write(self._sql["forget_deliveries"].bind(endpoint_id=endpoint_id))

    # -- numbers, and going

    async def waiting(self, ids: Collection[str], most: int) -> dict[str, tuple[int, datetime]]:
        """How many deliveries wait for these endpoints, up to `most`, and since when."""
        rows = await self.primary.fetch(self._sql["waiting"].bind(ids=self._texts(list(ids)), most=most))
        return {id: (count, instant(oldest)) for id, count, oldest in rows if count}

    async def pending_count(self) -> int:
        [[count]] = await self.primary.fetch(self._sql["pending_count"].bind())
        return int(count)

    async def prune(self, before: datetime, limit: int) -> int:
        """Remove settled deliveries that are older, with their attempts; how many."""
        async with self.adapter.transaction() as tx:
            rows = await tx.write(self._sql["prune"].bind(before=self.time(before), limit=limit))
            ids = self._texts([id for (id,) in rows])
            await tx.execute(self._sql["prune_attempts"].bind(ids=ids))
        return len(rows)


class WebhookTaker:
    """Makes the deliveries of events to endpoints, in the router's transaction."""

    def __init__(self, store: WebhookStore, on_made: Callable[[Tx], None]) -> None:
        self._store = store
        self._on_made = on_made
        self._matchers: dict[tuple[str, ...], Callable[[str], bool]] = {}

    async def take(self, tx: Tx, events: Sequence[RoutedEvent], now: datetime) -> int:
        """Make deliveries to the endpoints that want these events and have their tenant."""
        endpoints = await self._store.takers(tx)
        if not endpoints:
            return 0
        deliveries: list[tuple[str, str, str]] = []
        ids_by_type: dict[tuple[str, str | None], list[str]] = {}
        declared_ids = {id for id, _, _, is_declared in endpoints if is_declared}
        for id, type, _, tenant_id in events:
            if type.startswith(CONTROL):
                deliveries += _delivery_of_entry(id, type, declared_ids)
                continue
            ids = ids_by_type.get((type, tenant_id))
            if ids is None:
                ids = ids_by_type[type, tenant_id] = [
                    endpoint_id
                    for endpoint_id, patterns, own_tenant, is_declared in endpoints
                    if (is_declared or (own_tenant or None) == (tenant_id or None))
                    and self._matcher(patterns)(type)
                ]
            deliveries += [(id, type, endpoint_id) for endpoint_id in ids]
        count = await self._store.make(tx, deliveries, now)
        if count:
            self._on_made(tx)
        return count

    def _matcher(self, patterns: tuple[str, ...]) -> Callable[[str], bool]:
        is_match = self._matchers.get(patterns)
        if is_match is None:
            if len(self._matchers) > AT_ONCE:
                self._matchers.clear()
            is_match = self._matchers[patterns] = matcher(patterns) if patterns else _matches_nothing
        return is_match


def taker_of(store: WebhookStore, on_made: Callable[[Tx], None]) -> Taker:
    """What the router hands events to."""
    condition = "EXISTS (SELECT 1 FROM webhook_delivery w WHERE w.event_id = e.id AND w.status = 'pending')"
    return Taker("maniflex.webhooks", condition, WebhookTaker(store, on_made).take)


def _matches_nothing(type: str) -> bool:
    return False


def _delivery_of_entry(id: str, type: str, declared_ids: Collection[str]) -> list[tuple[str, str, str]]:
    """The delivery of an event of a service.webhook, called `$webhook.<endpoint>.order.created`."""
    if not type.startswith(OF_ENTRY):
        return []
    endpoint_id, _, own_type = type.removeprefix(OF_ENTRY).partition(".")
    return [(id, own_type, endpoint_id)] if endpoint_id in declared_ids else []


def _endpoint(row: Row) -> StoredEndpoint:
    one = StoredEndpoint(*row)
    return one._replace(
        patterns=tuple(_json(one.patterns)),
        old_until=None if one.old_until is None else instant(one.old_until),
        is_declared=bool(one.is_declared),
    )


def _json(stored: Any) -> Any:
    return decode(stored) if isinstance(stored, str | bytes) else stored


def lease_end(now: datetime, timeout: float) -> datetime:
    """When an attempt that began now has ended, whatever became of it."""
    return now + timedelta(seconds=timeout) + LEASE_BEYOND


LEASE_BEYOND = timedelta(seconds=30)  # an attempt that its worker has ended is settled by then
