"""The loops of the feed: the router, the reader for this process, and the pruner.

Any number of routers may run; the lock of `event_position` lets one work at a time. The reader follows the
feed for listeners of this process, however many there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from maniflex._clock import Clock
from maniflex.background.feed.store import ROUTE_AT_ONCE, FeedEvent, FeedStore
from maniflex.background.loop import Loop
from maniflex.background.metrics import Metrics
from maniflex.errors import Lagged
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import matcher

BETWEEN_PASSES = 0.005  # seconds: each pass costs several statements, however few events it finds
PRUNE_EVERY = timedelta(minutes=1)
PRUNE_AT_ONCE = 500
READ_AT_ONCE = 500
MOST_WAITING = 1024  # events that one listener of this process may have before it


class EventRouter(Loop):
    """Gives committed events their positions and makes the deliveries of their groups."""

    name = "events"

    def __init__(
        self,
        store: FeedStore,
        begin: Callable[[], Awaitable[None]],
        clock: Clock,
        interval: timedelta,
        logger: logging.Logger,
        metrics: Metrics,
    ) -> None:
        super().__init__(clock, interval, logger)
        self._store = store
        self._begin = begin
        self._metrics = metrics
        self._is_told = False
        self._open = AsyncExitStack()
        self.on_routed: Callable[[], None] = lambda: None
        self.on_paused: Callable[[frozenset[str]], None] = lambda names: None

    async def start(self) -> None:
        await super().start()
        await self._open.enter_async_context(self._store.listen(self.wake))

    async def stop(self) -> None:
        await self._open.aclose()
        await super().stop()

    def note_event(self) -> None:
        """An event of this process is committed: the next pass need not look whether there is one."""
        self._is_told = True
        self.wake()

    async def tick(self) -> bool:
        await self._begin()
        if await self._route():
            return True
        await asyncio.sleep(BETWEEN_PASSES)  # what is committed meanwhile shares the next pass
        return False

    async def _route(self) -> bool:
        """Make one pass, if there is something to do; whether there may be more."""
        is_told, self._is_told = self._is_told, False
        if not is_told:
            is_behind, paused_groups = await self._store.look()
            self.on_paused(paused_groups)
            if not is_behind:
                return False
        outcome = await self._store.route(self.clock.now())
        self.on_paused(outcome.paused)
        if outcome.events:
            self._metrics.add("events_routed_total", outcome.events)
        if outcome.events or outcome.deliveries or not is_told:
            self.on_routed()
        return outcome.events == ROUTE_AT_ONCE or (not outcome.events and outcome.deliveries > 0)

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("events_poll_errors_total")


class EventQueue:
    """One listener of this process: what it waits for, and what waits for it."""

    def __init__(self, patterns: Sequence[str], most: int = MOST_WAITING) -> None:
        self.wants = matcher(patterns)
        self.after = 0  # the position it begins behind
        self._most = most
        self._events: asyncio.Queue[FeedEvent | None] = asyncio.Queue()
        self._has_lagged = False

    def give(self, event: FeedEvent) -> None:
        """Give it an event; one that has too many before it gets no more."""
        if self._has_lagged:
            return
        if self._events.qsize() >= self._most:
            self._has_lagged = True
            self._events.put_nowait(None)
        else:
            self._events.put_nowait(event)

    async def next(self) -> FeedEvent:
        """The next event; `Lagged` where it fell behind."""
        event = await self._events.get()
        if event is None:
            raise Lagged(f"more than {self._most} events came that the listener did not take")
        return event


class FeedReader(Loop):
    """Reads every event once and gives it to the listeners of this process."""

    name = "events reader"

    def __init__(self, store: FeedStore, clock: Clock, interval: timedelta, logger: logging.Logger) -> None:
        super().__init__(clock, interval, logger)
        self._store = store
        self._listeners: set[EventQueue] = set()
        self._position: int | None = None
        self._open = AsyncExitStack()

    async def start(self) -> None:
        await super().start()
        await self._open.enter_async_context(self._store.listen(self.wake))

    async def stop(self) -> None:
        await self._open.aclose()
        await super().stop()

    async def add(self, listener: EventQueue) -> None:
        """Give it every event from now on."""
        listener.after = (await self._store.position()).last
        if self._position is None or not self._listeners:
            self._position = listener.after
        self._listeners.add(listener)

    def remove(self, listener: EventQueue) -> None:
        self._listeners.discard(listener)

    async def tick(self) -> bool:
        if not self._listeners or self._position is None:
            return False
        events = await self._store.read(self._position, READ_AT_ONCE)
        for one in events:
            self._position = position = one.event.position or 0
            if one.event.type.startswith(CONTROL):
                continue
            for listener in tuple(self._listeners):
                if position > listener.after and listener.wants(one.event.type):
                    listener.give(one)
        return len(events) == READ_AT_ONCE


class EventListener:
    """`server.events.listen(...)`: an async iterator over events of this moment on."""

    def __init__(self, patterns: Sequence[str], reader: Callable[[], Awaitable[FeedReader]]) -> None:
        self._listener = EventQueue(patterns)
        self._find_reader = reader
        self._reader: FeedReader | None = None

    async def __aenter__(self) -> EventListener:
        await self._begin()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        await self._begin()
        return (await self._listener.next()).event

    async def _begin(self) -> None:
        if self._reader is None:
            self._reader = await self._find_reader()
            await self._reader.add(self._listener)

    async def aclose(self) -> None:
        """Take no more events."""
        if self._reader is not None:
            self._reader.remove(self._listener)


class EventPruner(Loop):
    """Removes events from long ago that nobody needs any more, in small batches."""

    name = "events pruner"

    def __init__(self, store: FeedStore, retention: timedelta, clock: Clock, logger: logging.Logger) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._store = store
        self._retention = retention

    async def tick(self) -> bool:
        now = self.clock.now()
        count = await self._store.prune(now - self._retention, PRUNE_AT_ONCE, now)
        return count == PRUNE_AT_ONCE
