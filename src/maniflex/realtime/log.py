"""The newest events in memory, and all that are kept behind them: what connections are served from.

One follower per process reads the feed, however many clients there are. A client that is behind what is in
memory is given pages from the database; few do so at once. Where a cursor stands is said here alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from maniflex._clock import Clock
from maniflex.background.feed.store import FeedEvent, FeedStore
from maniflex.background.loop import Loop
from maniflex.events.event import Event

T = TypeVar("T")
PAGE = 200  # events that a replay reads at once
READ_AT_ONCE = 500  # events that the follower reads at once
REPLAYS_AT_ONCE = 8  # from the database
MOST_BEHIND = 100_000  # events; whoever is further behind begins anew
NEWEST = READ_AT_ONCE + 64  # events of which it is remembered who sees them
MOST_BYTES = 8 * 1024 * 1024  # of events in memory, about


class FeedEntry:
    """One event at its place, with what was found out about it for those who may see it."""

    __slots__ = ("cursor", "event", "facts", "is_new", "one", "position", "shapes", "size", "views")

    def __init__(self, one: FeedEvent, position: int, cursor: str) -> None:
        self.one = one
        self.event: Event = one.event
        self.is_new = False
        self.position = position
        self.cursor = cursor
        self.size = 3 * _size_of(one.event.data)  # as it is, encoded, and as a frame
        self.views: dict[Any, Any] = {}  # by who sees it alike, as long as it is new
        self.shapes: dict[Any, Any] = {}  # by the fields that are seen of it
        self.facts: Any = None  # what judges share about it

    def keep(self, key: Any, view: T) -> T:
        """Remember what some callers see of it, while most of them are about to ask."""
        if self.is_new:
            self.views[key] = view
        return view

    def forget(self) -> None:
        """It is new no more."""
        self.is_new, self.views, self.facts = False, {}, None


def _size_of(data: Any) -> int:
    """About how many bytes the data of an event take."""
    if isinstance(data, dict):
        return 64 + sum(len(name) + _size_of(value) for name, value in data.items())
    if isinstance(data, list):
        return 64 + sum(map(_size_of, data))
    return 48 + (len(data) if isinstance(data, str | bytes) else 0)


class CannotContinue(Exception):
    """What comes behind a position is not kept any more, or was never here."""


class EventLog(Protocol):
    """Events in their order, each at a position."""

    @property
    def last(self) -> int:
        """The position of the newest event that this process knows."""

    def cursor(self, position: int) -> str:
        """What clients are told of a position."""

    async def locate(self, cursor: str) -> int:
        """The position of a cursor; `CannotContinue` where nothing can be continued from it."""

    async def read(self, after: int) -> Sequence[FeedEntry]:
        """The next events behind a position; `CannotContinue` where they are gone."""


class Memory:
    """The newest entries, limited in number and in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self.first = 0  # everything behind this position is here, up to the last one

    def begin(self, position: int) -> None:
        """Know nothing of what comes before this position."""
        self._entries.clear()
        self._bytes, self.first = 0, position

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: FeedEntry) -> None:
        entry.is_new = True
        self._entries.append(entry)
        if len(self._entries) > NEWEST:
            self._entries[-1 - NEWEST].forget()
        self._bytes += entry.size
        while len(self._entries) > self._most or (self._bytes > MOST_BYTES and len(self._entries) > 1):
            old = self._entries.popleft()
            self._bytes -= old.size
            self.first = old.position

    def read(self, after: int) -> list[FeedEntry] | None:
        """A page behind a position; None where that is not known here."""
        if after < self.first:
            return None
        entries = self._entries
        if not entries or entries[-1].position <= after:
            return []
        place = len(entries)
        while place > 0 and entries[place - 1].position > after:  # most readers are near the end
            place -= 1
        return [entries[i] for i in range(place, min(place + PAGE, len(entries)))]


Dispatch = Callable[[Sequence[FeedEntry]], Awaitable[None]]


class FeedLog(Loop):
    """The feed of the database."""

    name = "realtime"

    def __init__(
        self, store: FeedStore, clock: Clock, interval: timedelta, logger: logging.Logger, buffer: int
    ) -> None:
        super().__init__(clock, interval, logger)
        self._store = store
        self._memory = Memory(buffer)
        self._open = AsyncExitStack()
        self._epoch = ""
        self.last = 0
        self._replays = asyncio.Semaphore(REPLAYS_AT_ONCE)
        self.dispatch: Dispatch = _ignore
        self.on_new_epoch: Callable[[bool], None] = lambda was_known: None

    async def start(self) -> None:
        self._replays = asyncio.Semaphore(REPLAYS_AT_ONCE)
        await super().start()
        await self._open.enter_async_context(self._store.listen(self.wake))

    async def stop(self) -> None:
        await self._open.aclose()
        await super().stop()

    @property
    def is_known(self) -> bool:
        """Whether it is known where the feed stands."""
        return bool(self._epoch)

    async def know(self) -> None:
        """Find out where the feed stands, if that is not known yet."""
        if not self._epoch:
            await self._find_place()

    async def _find_place(self) -> int:
        """How far the feed is; in another epoch than before, everybody begins anew."""
        position = await self._store.position()
        if not position.epoch:  # the router has not begun
            return 0
        if position.epoch != self._epoch:
            was_known, self._epoch = self.is_known, position.epoch
            self.last = position.last
            self._memory.begin(position.last)
            self.on_new_epoch(was_known)
        return int(position.last)

    async def tick(self) -> bool:
        last = await self._find_place()
        if last <= self.last:
            return False
        events = await self._store.read(self.last, READ_AT_ONCE)
        entries = [self._keep(one) for one in events]
        if entries:
            await self.dispatch(entries)
        return self.last < last and bool(entries)

    def _keep(self, one: FeedEvent) -> FeedEntry:
        entry = self._entry(one)
        self._memory.add(entry)
        self.last = entry.position
        return entry

    def _entry(self, one: FeedEvent) -> FeedEntry:
        position = one.event.position or 0
        return FeedEntry(one, position, self.cursor(position))

    def cursor(self, position: int) -> str:
        return f"{self._epoch}:{position}"

    async def locate(self, cursor: str) -> int:
        position = await self._store.position()
        epoch, _, digits = cursor.partition(":")
        if epoch != position.epoch or not (digits.isascii() and digits.isdecimal()) or len(digits) > 18:
            raise CannotContinue()
        place = int(digits)
        if not position.pruned <= place <= position.last or position.last - place > MOST_BEHIND:
            raise CannotContinue()
        return place

    async def read(self, after: int) -> Sequence[FeedEntry]:
        entries = self._memory.read(after)
        if entries is not None:
            return entries
        epoch = self._epoch
        async with self._replays:
            events = await self._store.read(after, PAGE)
            position = await self._store.position()  # behind them: what was removed meanwhile is missed
        if position.pruned > after or epoch != self._epoch:
            raise CannotContinue()
        return [self._entry(one) for one in events if (one.event.position or 0) <= self.last]


async def _ignore(entries: Sequence[FeedEntry]) -> None:
    """Nobody listens yet."""
