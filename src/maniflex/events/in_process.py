"""A bus within one process: bounded queues, and handlers of this event loop; for tests and single programs.

Nothing is kept beyond the process. Events are written and read as a broker would have them, so that no
handler sees what another one changed, and what JSON cannot hold is refused here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from maniflex.errors import QueueFull
from maniflex.events.base import BaseBus, check_count, seconds_of
from maniflex.events.cloudevents import read_structured, structured_bytes
from maniflex.events.consuming import DRAIN, Consumer, Lanes, TakenMessage, log
from maniflex.events.event import Event
from maniflex.events.port import SubscriptionPlan


class _QueuedEvent(NamedTuple):
    """An event in a queue."""

    id: str
    key: str | None
    text: bytes


@dataclass(slots=True)
class _SubscriptionQueue:
    """What waits for the consumers of one subscription, who share it."""

    plan: SubscriptionPlan
    lanes: Lanes[_QueuedEvent] = field(default_factory=Lanes)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    in_hand: int = 0
    consumers: int = 0

    def add(self, event: Event, text: bytes) -> None:
        self.lanes.add(event.key, _QueuedEvent(event.id, event.key, text))
        self.changed.set()
        self.idle.clear()

    def finish(self, key: str | None) -> None:
        self.in_hand -= 1
        self.lanes.finish(key)
        self.changed.set()
        if not self.is_busy:
            self.idle.set()

    @property
    def is_busy(self) -> bool:
        return bool(self.in_hand or len(self.lanes))


class InProcessBus(BaseBus):
    """Hands events to subscriptions of this process; each has a queue of `queue_size` events."""

    ordered = True

    def __init__(self, queue_size: int = 1024, drain_timeout: timedelta | float = DRAIN) -> None:
        super().__init__()
        check_count("InProcessBus", "queue_size", queue_size)
        [seconds] = seconds_of("InProcessBus", drain_timeout=drain_timeout)
        self.patience = timedelta(seconds=seconds)
        self._size = queue_size
        self._queues: dict[str, _SubscriptionQueue] = {}

    async def connect(self) -> None:
        """There is nobody to reach."""

    async def hang_up(self) -> None:
        """There is no connection."""

    async def close(self) -> None:
        """Let handlers finish what waits for `drain_timeout`, and say what had to be left."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience.total_seconds()):
                while busy := [queue for queue in self._queues.values() if queue.is_busy]:
                    await busy[0].idle.wait()  # its handlers may publish to the others
        for consumer in self._consumers:
            consumer.patience = timedelta()  # its time is over
        await asyncio.gather(*(consumer.stop(timedelta()) for consumer in list(self._consumers)))

    async def send(self, events: Sequence[Event]) -> None:
        """Put them into the queues, never waiting; `QueueFull` if one had no room, the others have them."""
        texts = [structured_bytes(event) for event in events]  # before the first one is in a queue
        full: dict[str, int] = {}
        for event, text in zip(events, texts, strict=True):
            for queue in self._queues.values():
                if not queue.plan.matches(event.type):
                    continue
                if len(queue.lanes) < self._size:
                    queue.add(event, text)
                else:
                    full[queue.plan.group] = full.get(queue.plan.group, 0) + 1
        if full:
            counts = ", ".join(f"{group} ({count})" for group, count in full.items())
            raise QueueFull(f"the queues of these groups had no room for all events: {counts}")

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        queue = self._queues.setdefault(plan.id, _SubscriptionQueue(plan))
        queue.consumers += 1
        return _InProcessConsumer(plan, self, queue)

    async def remove(self, plan: SubscriptionPlan) -> None:
        """Nothing is kept for a subscription that is not at work."""

    def drop(self, queue: _SubscriptionQueue) -> None:
        """A consumer is gone; with the last one goes what waits."""
        queue.consumers -= 1
        if queue.consumers:
            return
        self._queues.pop(queue.plan.id, None)
        if waiting := len(queue.lanes):
            log.warning("group %s: %d events are left unhandled in this process", queue.plan.group, waiting)


class _InProcessConsumer(Consumer):
    def __init__(self, plan: SubscriptionPlan, bus: InProcessBus, queue: _SubscriptionQueue) -> None:
        super().__init__(plan, bus.send_letter)
        self._bus = bus
        self._queue = queue

    async def take(self, room: int) -> Sequence[TakenMessage]:
        while not self._stopping.is_set():
            deliveries: list[TakenMessage] = []
            while len(deliveries) < room and (item := self._queue.lanes.take()) is not None:
                self._queue.in_hand += 1
                deliveries.append(_QueuedMessage(self._queue, item[1]))
            if deliveries:
                return deliveries
            self._queue.changed.clear()
            await self._queue.changed.wait()
        return ()

    async def stop_taking(self) -> None:
        self._queue.changed.set()

    async def finish(self) -> None:
        self._bus.drop(self._queue)


class _QueuedMessage(TakenMessage):
    def __init__(self, queue: _SubscriptionQueue, waiting: _QueuedEvent) -> None:
        self.label = waiting.id
        self._queue = queue
        self._waiting = waiting
        self._is_back = False

    def read(self) -> Event:
        return read_structured(self.raw)

    @property
    def raw(self) -> bytes:
        return self._waiting.text

    async def acknowledge(self) -> None:
        """The queue has it no more."""

    async def hand_back(self, *, is_begun: bool) -> None:
        """To another consumer of this process."""
        self._is_back = True
        self._queue.lanes.put_back(self._waiting.key, self._waiting)
        self._queue.changed.set()

    def let_go(self) -> None:
        if self._is_back:
            self._queue.in_hand -= 1
        else:
            self._queue.finish(self._waiting.key)
