"""Sends deliveries: who is next, one attempt of each, and the loop that goes on with it.

Of one endpoint at most four requests run at once in this process, and one alone while its last attempt has
timed out or it has not been heard of yet; endpoints that time out have half of all places together. So what
hangs keeps nothing from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import shuffle
from time import perf_counter
from typing import TYPE_CHECKING

from maniflex._clock import Clock
from maniflex._json import clean
from maniflex._outbound import AddressRefused
from maniflex.background.feed.store import FeedStore
from maniflex.background.loop import Loop
from maniflex.background.metrics import Metrics
from maniflex.background.webhooks.attempt import (
    MOST_KEPT,
    AttemptOutcome,
    WebhookRequest,
    make_request,
    read_retry_after,
    settle,
)
from maniflex.background.webhooks.endpoint import LONGEST_TIMEOUT, Destination
from maniflex.background.webhooks.model import DeliveryStatus
from maniflex.background.webhooks.store import ClaimedDelivery, WebhookStore, lease_end
from maniflex.db.port import Tx

if TYPE_CHECKING:
    import httpx2

    from maniflex.background.webhooks.api import Webhooks

MOST_OF_ONE = 4  # requests to one endpoint at once
PRUNE_EVERY = timedelta(minutes=1)
PRUNE_AT_ONCE = 500
FAILING = "failing"
GONE = "gone"


class PublicClients:
    """The HTTP clients of this process: one for public addresses, one for those that code opens."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: dict[bool, httpx2.AsyncClient] = {}

    async def send(self, endpoint: Destination, request: WebhookRequest, now: datetime) -> AttemptOutcome:
        """Send a request; what came back, as a value."""
        import httpx2

        from maniflex._outbound_http import public_client, send

        client = self._clients.get(endpoint.allow_private)
        if client is None:
            client = self._clients[endpoint.allow_private] = public_client(
                timeout=LONGEST_TIMEOUT, allow_private=endpoint.allow_private, most=self._most
            )
        try:
            answer = await send(
                client,
                "POST",
                endpoint.url,
                content=request.body,
                headers=request.headers,
                timeout=endpoint.timeout,
            )
        except AddressRefused as refusal:
            return AttemptOutcome(error=str(refusal))
        except TimeoutError:
            return AttemptOutcome(error=f"no answer within {endpoint.timeout:g} s", timed_out=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as failure:
            # Not its text, which may name an address.
            return AttemptOutcome(error=f"the request failed: {type(failure).__name__}")
        retry_after = read_retry_after(answer.headers.get("retry-after"), now)
        error = None if 200 <= answer.status < 300 else f"answered {answer.status}"
        return AttemptOutcome(answer.status, error, clean(answer.text, MOST_KEPT) or None, retry_after)

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()


class Sender:
    """Claims what is due and sends it, within the limits of this process."""

    def __init__(
        self,
        store: WebhookStore,
        feed: FeedStore,
        webhooks: Webhooks,
        clock: Clock,
        logger: logging.Logger,
        metrics: Metrics,
        *,
        concurrency: int,
        disable_after: timedelta,
    ) -> None:
        self._store = store
        self._feed = feed
        self._webhooks = webhooks
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._concurrency = concurrency
        self._disable_after = disable_after
        self.clients = PublicClients(concurrency)
        self._running: dict[asyncio.Task[None], str] = {}
        self._known: dict[str, bool] = {}  # whether its last attempt has timed out, by endpoint
        self.handled = 0
        self.on_done: Callable[[], None] = lambda: None

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The attempts that are being made."""
        return set(self._running)

    async def begin_due(self) -> int:
        """Begin as many due attempts as there are places for; how many."""
        if self._room() <= 0:
            return 0
        ids = await self._store.due_endpoints(self._clock.now())
        shuffle(ids)  # nobody is last each time
        ids.sort(key=lambda id: self._known.get(id, False))  # those that time out come behind all others
        count = 0
        for id in ids:
            if room := self._room_of(id):
                count += await self._begin_some(id, room)
        return count

    async def _begin_some(self, id: str, room: int) -> int:
        endpoint = await self._webhooks.find_endpoint(id)
        if endpoint is None:  # its code is elsewhere
            return 0
        now = self._clock.now()
        deliveries = await self._store.claim(id, room, now, lease_end(now, endpoint.timeout))
        for delivery in deliveries:
            task = asyncio.create_task(self._attempt(endpoint, delivery), name=f"webhook {delivery.id}")
            self._running[task] = id
            task.add_done_callback(self._end)
        return len(deliveries)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("webhooks: an attempt could not be settled", exc_info=error)
        self.on_done()

    def _room(self) -> int:
        return self._concurrency - len(self._running)

    def _room_of(self, id: str) -> int:
        running = list(self._running.values())
        room = self._concurrency - len(running)
        has_timed_out = self._known.get(id)
        most = MOST_OF_ONE if has_timed_out is False else 1
        if has_timed_out:
            slow = sum(self._known.get(one, False) for one in running)
            room = min(room, max(self._concurrency // 2, 1) - slow)
        return max(0, min(room, most - running.count(id)))

    # -- one attempt

    async def _attempt(self, endpoint: Destination, delivery: ClaimedDelivery) -> None:
        try:
            outcome = await self._send(endpoint, delivery)
        except asyncio.CancelledError:
            await asyncio.shield(self._store.hand_back(delivery))
            raise
        if outcome is None:
            return
        self._note_pace(endpoint.id, outcome)
        self._metrics.add("webhooks_attempts_total", outcome=_word(outcome))
        await self._settle(delivery, outcome)
        self.handled += 1

    def _note_pace(self, id: str, outcome: AttemptOutcome) -> None:
        while len(self._known) > 10_000:
            self._known.pop(next(iter(self._known)))
        self._known[id] = outcome.timed_out

    async def _send(self, endpoint: Destination, delivery: ClaimedDelivery) -> AttemptOutcome | None:
        """Send the event; None where the owner of the endpoint may not see it."""
        events = await self._feed.load([delivery.event_id])
        if not events:
            return AttemptOutcome(error="the event is not kept any more", status=None)
        [one] = events
        event = await self._webhooks.view(endpoint, one.event.with_type(delivery.type), one.scope)
        if event is None:
            await self._store.withhold(delivery)
            self._metrics.add("webhooks_withheld_total")
            return None
        await self._store.show(delivery)
        now = self._clock.now()
        request = make_request(endpoint, delivery.event_id, event, now)
        return await self.post(endpoint, request)

    async def post(self, endpoint: Destination, request: WebhookRequest) -> AttemptOutcome:
        """Send a request and take the time."""
        began = perf_counter()
        outcome = await self.clients.send(endpoint, request, self._clock.now())
        return outcome.taking(timedelta(seconds=perf_counter() - began))

    async def _settle(self, delivery: ClaimedDelivery, outcome: AttemptOutcome) -> None:
        now = self._clock.now()
        change = settle(outcome, delivery.tries, now)
        id = delivery.endpoint_id
        async with self._store.adapter.transaction() as tx:
            if not await self._store.settle(tx, delivery, outcome, change, now):
                return
            if change.status is DeliveryStatus.DELIVERED:
                await self._store.note_success(tx, id)
                return
            if change.pause_until is not None:
                await self._store.pause(tx, id, change.pause_until)
            since = await self._store.note_failure(tx, id, now)
            if change.is_gone or now - since >= self._disable_after:
                await self.disable(tx, id, GONE if change.is_gone else FAILING, now)
        about = (delivery.id, delivery.attempts, outcome.error)
        self._logger.warning("webhooks: delivery %s failed, attempt %d: %s", *about)

    async def disable(self, tx: Tx, id: str, reason: str, now: datetime) -> None:
        """Disable an endpoint, cancel what waits for it and publish that."""
        endpoint = await self._store.disable(tx, id, reason, now)
        if endpoint is not None:
            self._metrics.add("webhooks_disabled_total")
            await self._webhooks.tell_disabled(tx, id, endpoint, reason)

    async def drain(self) -> int:
        """Send all that is due; how many attempts that were."""
        before = self.handled
        while await self.begin_due() or self._running:
            if self._running:
                await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        return self.handled - before


def _word(outcome: AttemptOutcome) -> str:
    if outcome.is_success:
        return "delivered"
    return "timeout" if outcome.timed_out else "failed"


class WebhookWorker(Loop):
    """Sends what is due, for good."""

    name = "webhooks"

    def __init__(
        self,
        sender: Sender,
        clock: Clock,
        interval: timedelta,
        logger: logging.Logger,
        grace: timedelta,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(clock, interval, logger)
        self._sender = sender
        self._grace = grace
        self._refresh = refresh
        sender.on_done = self.wake

    async def tick(self) -> bool:
        await self._refresh()
        return bool(await self._sender.begin_due())

    async def stop(self) -> None:
        """Begin nothing new, wait for what runs, and hand back what takes too long."""
        await super().stop()
        tasks = self._sender.tasks
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._grace.total_seconds() / 2)
        finally:
            late = [task for task in tasks if not task.done()]
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


class WebhookPruner(Loop):
    """Removes settled deliveries of long ago, and disables endpoints whose code is gone."""

    name = "webhooks pruner"

    def __init__(
        self,
        prune: Callable[[], Awaitable[int]],
        clock: Clock,
        logger: logging.Logger,
    ) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._prune = prune

    async def tick(self) -> bool:
        return await self._prune() == PRUNE_AT_ONCE
