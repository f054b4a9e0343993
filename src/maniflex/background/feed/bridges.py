"""Bridges: the feed copied to a broker in the order of positions, and events of others taken into the feed.

A bridge is led by one process at a time and moves on only when the broker has taken responsibility. A broker
that is away costs no event and no attempt: the bridge waits and catches up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from maniflex._clock import Clock
from maniflex._fence import describe
from maniflex._ids import new_id
from maniflex._json import clean
from maniflex.background.feed.groups import draft_of
from maniflex.background.feed.router import EventQueue, FeedReader
from maniflex.background.feed.store import FeedEvent, FeedStore
from maniflex.background.loop import LastingTask, Loop, WatchedPart
from maniflex.background.metrics import Metrics
from maniflex.errors import QueueFull, ValidationFailed
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import matcher
from maniflex.events.port import Bus, Handle

AT_ONCE = 200  # events of one batch
TRIES = 1_000_000  # of an event of others, while the database is away
LONGEST_PAUSE = 30  # seconds
OPEN_AGAIN = timedelta(seconds=5)
_NOT_LEADING = 0, datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BusUse:
    """A bus as `server.events.use` declares it."""

    bus: Bus
    name: str  # of the bridge, and of the consumer group on the broker
    publish: tuple[str, ...]
    ingest: tuple[str, ...]
    start: str

    @property
    def is_in_process(self) -> bool:
        """Whether it carries events within a process, so that each process feeds its own."""
        from maniflex.events.in_process import InProcessBus

        return isinstance(self.bus, InProcessBus)


class Bridge(Loop):
    """Copies the feed to one broker."""

    def __init__(
        self,
        use: BusUse,
        store: FeedStore,
        own_sources: frozenset[str],
        clock: Clock,
        interval: timedelta,
        lease: timedelta,
        logger: logging.Logger,
        metrics: Metrics,
    ) -> None:
        self.name = f"events bridge {use.name}"
        super().__init__(clock, interval, logger)
        self._use = use
        self._store = store
        self._own_sources = own_sources
        self._lease_time = lease
        self._metrics = metrics
        self._lease = new_id()
        self._wants = matcher(use.publish)
        self._lead = _NOT_LEADING  # behind a batch: where it ended, and until when the lease lasts

    async def stop(self) -> None:
        await super().stop()
        with suppress(Exception):  # the database is away: the lease runs out
            await self._store.leave_bridge(self._use.name, self._lease)

    async def tick(self) -> bool:
        position = await self._take_lead()
        if position is None:
            return False
        events = await self._store.read(position, AT_ONCE)
        if not events:
            return False
        own_events = [one for one in events if self._is_meant(one.event)]
        if own_events:
            await self._publish(own_events)
        last, until = events[-1].event.position or position, self.clock.now() + self._lease_time
        if await self._store.move_bridge(self._use.name, self._lease, last, until):
            self._lead = last, until
        return True

    async def _take_lead(self) -> int | None:
        """Where to go on; None where another process leads, or the bridge is paused."""
        (position, until), self._lead = self._lead, _NOT_LEADING
        now = self.clock.now()
        if now < until:  # the batch before has prolonged the lease when it said how far it came
            return position
        return await self._store.lead_bridge(self._use.name, self._lease, now, now + self._lease_time)

    def _is_meant(self, event: Event) -> bool:
        is_own = event.source in self._own_sources and not event.type.startswith(CONTROL)
        return is_own and self._wants(event.type)

    async def _publish(self, events: Sequence[FeedEvent]) -> None:
        try:
            await self._use.bus.publish_many([one.event for one in events])
            return
        except ValidationFailed:  # one of them is such as the broker never takes
            pass
        for one in events:
            try:
                await self._use.bus.publish(one.event)
            except ValidationFailed as refusal:
                reason = clean(describe(refusal))
                self.logger.error("%s: %s is never taken: %s", self.name, one.event.id, reason)
                self._metrics.add("events_dead_total", group=self._use.name)
                await self._store.give_up(self._use.name, one.row_id, reason, self.clock.now())

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("events_poll_errors_total")


class BusKeeper:
    """Opens a bus, gives it the events of this process if it is one within it, and takes those of others."""

    def __init__(
        self,
        use: BusUse,
        store: FeedStore,
        own_sources: frozenset[str],
        find_reader: Callable[[], Awaitable[FeedReader]],
        clock: Clock,
        logger: logging.Logger,
        on_event: Callable[[], None],
    ) -> None:
        self._use = use
        self._store = store
        self._own_sources = own_sources
        self._find_reader = find_reader
        self._clock = clock
        self._logger = logger
        self._on_event = on_event
        self._queue: EventQueue | None = None
        self._handle: Handle | None = None
        self._stopping = asyncio.Event()
        self._task = LastingTask(f"events bus {use.name}", self._work, logger)

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return (self._task,)

    async def start(self) -> None:
        self._stopping = asyncio.Event()
        if self._use.is_in_process:
            await self._use.bus.open()
            self._queue = EventQueue(self._use.publish)
            await (await self._find_reader()).add(self._queue)
        self._task.start()

    async def stop(self) -> None:
        self._stopping.set()
        if self._queue is not None:
            (await self._find_reader()).remove(self._queue)
        self._task.cancel()
        if self._handle is not None:
            with suppress(Exception):
                await self._handle.cancel()
        await self._use.bus.close()

    async def _work(self) -> None:
        if self._use.ingest:
            await self._subscribe()
        if self._queue is None:
            await self._stopping.wait()
            return
        while not self._stopping.is_set():
            one = await self._queue.next()
            with suppress(QueueFull):  # said by the bus; its other subscriptions got the event
                await self._use.bus.publish(one.event)

    async def _subscribe(self) -> None:
        """Subscribe to the events of others, as soon as the broker is there."""
        while True:
            try:
                await self._use.bus.open()
                self._handle = await self._use.bus.subscribe(
                    *self._use.ingest,
                    handler=self._take,
                    group=self._use.name,
                    max_retry=TRIES,
                    backoff=lambda failures: min(failures, LONGEST_PAUSE),
                )
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._logger.warning("events: bus %s cannot be used yet: %s", self._use.name, error)
                await self._clock.sleep(OPEN_AGAIN)

    async def _take(self, event: Event) -> None:
        """Keep an event of others in the feed, once for each source and id."""
        if event.source in self._own_sources:
            return
        await self._store.adapter.write(self._store.append(draft_of(event), self._clock.now()))
        self._on_event()
