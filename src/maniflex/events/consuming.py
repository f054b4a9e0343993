"""One delivered event on its way through its handler, and the loop that takes events from a bus.

All buses share it. A bus says how a message is taken, acknowledged and handed back (`Consumer.take`,
`TakenMessage`); everything else is decided here. An exception of any kind is a failed attempt; `Fatal` ends
the attempts at once. A failed attempt is a WARNING, the last one an ERROR with the stack, and the event goes
to its dead letter before it is acknowledged. A broker that is away is asked again after 100 ms to 30 s.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

from maniflex._callables import is_async
from maniflex._clock import Backoff
from maniflex._fence import Fence, describe
from maniflex._logging import guard_logger
from maniflex._threads import DaemonThreads, on_thread
from maniflex.db.current import detached_context
from maniflex.errors import Fatal, QueueFull, ValidationFailed
from maniflex.events.cloudevents import UnreadableEvent
from maniflex.events.event import CONTROL, Event
from maniflex.events.port import Disconnected, EventHandler, SubscriptionPlan, seconds_each

T = TypeVar("T")
log = guard_logger(logging.getLogger("maniflex.events"))
# A little less than half a minute at most, so that with connecting it stays below that.
AWAY = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=28))
DRAIN = timedelta(seconds=30)  # how long running handlers are awaited
TAKING_ENDS_WITHIN = 0.7  # seconds that a take may still use once its consumer stops
FINISHING_ENDS_WITHIN = 0.5
# A broker counts messages as delivered that were lost on a breaking connection. So what came back that often
# gets its last attempt all the same, and is taken for one that ends its consumers only behind two more.
SPARE_DELIVERIES = 2
LONGEST_REASON = 1000  # characters of a dead letter's reason
REMEMBERED_FOR = 600.0  # seconds
MOST_REMEMBERED = 10_000  # messages that were handled and could not be acknowledged


class Gone(Exception):
    """The message is not this consumer's any more: it was taken over, or its connection broke."""


class TakenMessage:
    """One message in the hands of a consumer."""

    label: str  # how the broker calls it
    begun: int = 0  # attempts that consumers have begun before
    identity: Hashable = None  # the same when the same message is delivered again
    is_repeated: bool = True  # whether it may have been delivered before

    def read(self) -> Event:
        """The event, or `UnreadableEvent`."""
        raise NotImplementedError

    @property
    def raw(self) -> bytes:
        """The message as it came."""
        raise NotImplementedError

    async def acknowledge(self) -> None:
        """It is done with; `Gone` where that cannot be said any more."""
        raise NotImplementedError

    async def bury(self) -> None:
        """It is done with, and its handler never succeeded."""
        await self.acknowledge()

    async def note_attempt(self) -> None:
        """Another attempt begins; `Gone` if the message is somebody else's by now."""

    async def retry_later(self, pause: timedelta) -> bool:
        """Let the broker deliver it again after the pause; False: it stays here meanwhile."""
        return False

    async def hand_back(self, *, is_begun: bool) -> None:
        """Let another consumer have it at once; where no attempt was begun, none is counted."""

    def let_go(self) -> None:
        """Nothing here works on it any more, whatever came of it."""


async def call_handler(
    handler: EventHandler, event: Event, threads: Executor | None = None, timeout: timedelta | None = None
) -> None:
    """Call an async handler here and a plain one on a thread, for no longer than the timeout."""
    async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
        if is_async(handler):
            outcome = handler(event)
        else:
            outcome = await on_thread(partial(handler, event), threads)
        if inspect.isawaitable(outcome):
            await outcome


class Consumer:
    """A subscription at work: a `Handle`, and the loop behind it."""

    patience = DRAIN

    def __init__(
        self,
        plan: SubscriptionPlan,
        publish: Callable[[Event], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self._publish = publish
        self.on_disconnected: Disconnected | None = None
        self._threads = DaemonThreads(plan.concurrency, "maniflex-events")
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._hands: dict[asyncio.Task[None], TakenMessage] = {}
        self._working_on: dict[Hashable, asyncio.Future[bool]] = {}
        self._unacknowledged: OrderedDict[Hashable, float] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._failures = 0
        self.on_stopped: Callable[[], None] = lambda: None

    # -- what a bus says

    async def take(self, room: int) -> Sequence[TakenMessage]:
        """At most `room` messages, or none after about half a second; raises while the broker is away."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make at the broker what the subscription needs; raises where that cannot be."""

    async def stop_taking(self) -> None:
        """Let a take that waits come back, and nothing more come: the consumer stops."""

    async def finish(self) -> None:
        """Nothing is taken and nothing is in hand any more."""

    # -- its life

    async def start(self) -> None:
        await self.prepare()
        self._task = asyncio.create_task(
            self._run(), name=f"maniflex-events-{self.plan.group}", context=detached_context()
        )

    async def cancel(self) -> None:
        """Take nothing more, and wait for the handlers that run."""
        await self.stop(self.patience)

    async def stop(self, patience: timedelta) -> None:
        """The same; a handler that runs longer is cancelled, and its event goes to another consumer."""
        if self._stopped is not None:
            await asyncio.shield(self._stopped)
            return
        self._stopped = asyncio.get_running_loop().create_future()
        try:
            self._stopping.set()
            self._room.set()
            with suppress(Exception):  # the broker may be away
                async with asyncio.timeout(FINISHING_ENDS_WITHIN):
                    await self.stop_taking()
            await self._end_taking()
            await self._end_hands(patience)
            with suppress(Exception):  # the broker may be away
                async with asyncio.timeout(FINISHING_ENDS_WITHIN):
                    await self.finish()
        finally:
            self._threads.shutdown(cancel_futures=True)
            self.on_stopped()
            self._stopped.set_result(None)

    async def _end_taking(self) -> None:
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        await asyncio.wait((task,), timeout=TAKING_ENDS_WITHIN)
        while not task.done():  # asyncio.wait_for, which clients use, may swallow a cancellation
            task.cancel()
            await asyncio.wait((task,), timeout=0.1)

    async def _end_hands(self, patience: timedelta) -> None:
        hands = set(self._hands) - {asyncio.current_task()}  # a handler may end its own subscription
        if not hands:
            return
        try:
            _, late = await asyncio.wait(hands, timeout=patience.total_seconds())
        except asyncio.CancelledError:
            for task in hands:
                task.cancel()
            raise
        if late:
            names = ", ".join(self._hands[task].label for task in late if task in self._hands)
            text = "group %s: %d handlers did not end within %s; their events are handed back: %s"
            log.warning(text, self.plan.group, len(late), patience, names)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=1)

    # -- taking

    async def _run(self) -> None:
        while not self._stopping.is_set():
            room = self.plan.concurrency - len(self._hands)
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            for delivery in await self._take_or_wait(room):
                self._begin(delivery)

    async def _take_or_wait(self, room: int) -> Sequence[TakenMessage]:
        fence = Fence()
        try:
            deliveries = await self.take(room)
        except BaseException as error:
            await self._note_failure(fence.absorb(error))
            await self.pause(AWAY(self._failures))
            return ()
        self._note_success()
        return deliveries

    async def _note_failure(self, failure: Exception) -> None:
        self._failures += 1
        await self._tell_of(failure)

    def _note_success(self) -> None:
        if self._failures:
            log.info("group %s: the broker answers again after %d failures", self.plan.group, self._failures)
            self._failures = 0

    async def _tell_of(self, failure: Exception) -> None:
        """The first failure is an ERROR, each further one a WARNING; one more ERROR where the pauses end."""
        text = "group %s: its connection to the broker is lost, it is asked for again: %s"
        if self._failures == 1:
            log.error(text, self.plan.group, describe(failure))
            await self._call_on_disconnected(failure)
            return
        is_at_cap = AWAY.base * 2 ** (self._failures - 1) >= AWAY.cap > AWAY.base * 2 ** (self._failures - 2)
        if is_at_cap:
            text = "group %s: the broker stays away after %d attempts; it is asked twice a minute: %s"
            log.error(text, self.plan.group, self._failures, describe(failure))
        else:
            text = "group %s: attempt %d to reach the broker failed: %s"
            log.warning(text, self.plan.group, self._failures, describe(failure))

    async def _call_on_disconnected(self, failure: Exception) -> None:
        if self.on_disconnected is None:
            return
        fence = Fence()
        try:
            outcome = self.on_disconnected(self.plan.group, failure)
            if inspect.isawaitable(outcome):
                await outcome
        except BaseException as error:
            log.error("on_disconnected failed", exc_info=fence.absorb(error))

    async def pause(self, length: timedelta) -> None:
        """Wait, and no longer than until the consumer stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(length.total_seconds()):
                await self._stopping.wait()

    # -- one delivery

    def _begin(self, delivery: TakenMessage) -> None:
        task = asyncio.create_task(self._work(delivery), name=f"maniflex-event-{delivery.label}")
        self._hands[task] = delivery
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._hands.pop(task).let_go()
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("group %s: an event was left to the broker", self.plan.group, exc_info=error)

    async def _work(self, delivery: TakenMessage) -> None:
        if self._stopping.is_set():  # taken while the consumer was told to stop
            await self._hand_back(delivery, is_begun=False)
            return
        try:
            await self._work_once(delivery)
        except asyncio.CancelledError:
            await self._hand_back(delivery, is_begun=True)
            raise

    async def _work_once(self, delivery: TakenMessage) -> None:
        """A message that comes again while its handler runs, or could not be told done, is handled once."""
        identity = delivery.identity
        if identity is None:
            await self._handle(delivery)
            return
        is_done = False
        while delivery.is_repeated and (outcome := self._working_on.get(identity)) is not None:
            if is_done := await asyncio.shield(outcome):
                break
        if is_done or (delivery.is_repeated and self._is_remembered(identity)):
            await self._settle(delivery, delivery.acknowledge)
            return
        outcome = self._working_on[identity] = asyncio.get_running_loop().create_future()
        try:
            is_done = await self._handle(delivery)
        finally:
            if self._working_on.get(identity) is outcome:
                del self._working_on[identity]
            outcome.set_result(is_done)

    async def _handle(self, delivery: TakenMessage) -> bool:
        """Whether the message is done with."""
        try:
            event = delivery.read()
        except UnreadableEvent as problem:
            return await self._give_up_unreadable(delivery, str(problem))
        if event.type.startswith(CONTROL) or not self.plan.matches(event.type):
            return await self._settle(delivery, delivery.acknowledge)
        try:
            return await self._attempt_until_done(delivery, event)
        except (Gone, _ConsumerStops):  # another consumer has it now, or will
            return False

    async def _attempt_until_done(self, delivery: TakenMessage, event: Event) -> bool:
        attempt, most = delivery.begun + 1, self.plan.max_retry + 1
        if delivery.begun >= most + SPARE_DELIVERIES:
            reason = f"its consumers ended {delivery.begun} times while they worked on it"
            return await self._give_up(delivery, event, reason, None, delivery.begun)
        while (failure := await self._attempt(event)) is not None:
            reason = describe(failure)
            if isinstance(failure, Fatal) or attempt >= most:
                return await self._give_up(delivery, event, reason, failure, attempt)
            pause = self._pause_after(attempt)
            text = "group %s: attempt %d of %d at event %s (%s) failed, the next is in %s: %s"
            log.warning(text, self.plan.group, attempt, most, event.id, event.type, pause, reason)
            if await self._is_retried_elsewhere(delivery, pause):
                return False
            attempt += 1
            await self._persist(delivery.note_attempt)
        return await self._settle(delivery, delivery.acknowledge)

    async def _is_retried_elsewhere(self, delivery: TakenMessage, pause: timedelta) -> bool:
        """Wait until the next attempt is due here; True: another delivery will bring it."""
        fence = Fence()
        try:
            if await delivery.retry_later(pause):
                return True
        except BaseException as error:  # then it is tried here
            fence.absorb(error)
        await self.pause(pause)
        if self._stopping.is_set():
            await self._hand_back(delivery, is_begun=True)
            return True
        return False

    async def _attempt(self, event: Event) -> Exception | None:
        fence = Fence()
        try:
            await call_handler(self.plan.handler, event, self._threads)
        except BaseException as error:
            return fence.absorb(error)
        return None

    def _pause_after(self, attempt: int) -> timedelta:
        fence = Fence()
        try:
            return max(self.plan.pause(attempt), timedelta())
        except BaseException as error:
            failure = fence.absorb(error)
            log.error("group %s: backoff(%d) failed", self.plan.group, attempt, exc_info=failure)
            return seconds_each(attempt)

    # -- the end of a message

    async def _give_up(
        self, delivery: TakenMessage, event: Event, reason: str, failure: Exception | None, attempts: int
    ) -> bool:
        text = "group %s: event %s (%s) is given up after %d attempts: %s"
        if isinstance(failure, Fatal):
            text = "group %s: event %s (%s) is given up after %d attempts, because no other can mend it: %s"
        log.error(text, self.plan.group, event.id, event.type, attempts, reason, exc_info=failure)
        letter = None
        # The death of a dead letter makes no other one: a handler of them that fails would go on for ever.
        if self.plan.dead_letter is not None and not is_dead_letter(event):
            letter = event.as_dead_letter(self.plan.dead_letter, clean_reason(reason))
        return await self._bury(delivery, letter)

    async def _give_up_unreadable(self, delivery: TakenMessage, reason: str) -> bool:
        text = "group %s: message %s is no event and is given up: %s"
        log.error(text, self.plan.group, delivery.label, reason)
        letter = None
        if self.plan.dead_letter is not None:
            letter = unreadable_letter(self.plan.dead_letter, delivery, clean_reason(reason))
        return await self._bury(delivery, letter)

    async def _bury(self, delivery: TakenMessage, letter: Event | None) -> bool:
        try:
            if letter is not None:
                await self._persist(partial(self._publish, letter))
        except (QueueFull, ValidationFailed) as problem:
            text = "group %s: the dead letter of message %s cannot be published: %s"
            log.error(text, self.plan.group, delivery.label, problem)
        except _ConsumerStops:
            await self._hand_back(delivery, is_begun=True)
            return False
        return await self._settle(delivery, delivery.bury)

    async def _settle(self, delivery: TakenMessage, settle: Callable[[], Awaitable[None]]) -> bool:
        """Tell the broker; where it cannot be told, the message will come again and is known then."""
        try:
            await self._persist(settle)
        except (Gone, _ConsumerStops):
            if delivery.identity is not None:
                self.remember(delivery.identity)
        return True

    def remember(self, identity: Hashable) -> None:
        """The message is done with, and the broker may not know: when it comes again, it is acknowledged."""
        self._unacknowledged[identity] = time.monotonic()
        self._unacknowledged.move_to_end(identity)
        while len(self._unacknowledged) > MOST_REMEMBERED:
            self._unacknowledged.popitem(last=False)

    def _is_remembered(self, identity: Hashable) -> bool:
        noted_at = self._unacknowledged.pop(identity, None)
        return noted_at is not None and time.monotonic() - noted_at < REMEMBERED_FOR

    async def _persist(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call until the broker answers; `_ConsumerStops` if the consumer is told to stop before."""
        fence, failures = Fence(), 0
        while True:
            try:
                await call()
                self._note_success()
                return
            except (Gone, QueueFull, ValidationFailed):
                raise
            except BaseException as error:
                failure = fence.absorb(error)
            failures += 1
            await self._note_failure(failure)
            await self.pause(AWAY(failures))
            if self._stopping.is_set():
                raise _ConsumerStops

    async def _hand_back(self, delivery: TakenMessage, *, is_begun: bool) -> None:
        with suppress(Exception):  # what is not handed back comes again when its time with us is over
            async with asyncio.timeout(1):
                await delivery.hand_back(is_begun=is_begun)


class _ConsumerStops(Exception):
    """The consumer stops, and the broker could not be told."""


def is_dead_letter(event: Event) -> bool:
    """Whether the event tells of another one that could not be handled."""
    return "originalid" in event.headers


def unreadable_letter(type: str, delivery: TakenMessage, reason: str) -> Event:
    """The dead letter of a message that is no event: its bytes as they are."""
    fresh = Event(type)
    headers = {"originalid": delivery.label, "deadletterreason": reason}
    return Event.restore(type=type, id=fresh.id, time=fresh.time, data=delivery.raw, headers=headers)


def clean_reason(reason: str) -> str:
    """A reason as brokers can carry it: bounded, without line breaks and halves of characters."""
    text = " ".join(reason[: LONGEST_REASON * 2].split())
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable.encode("utf-8", "replace").decode()[:LONGEST_REASON]


class Lanes(Generic[T]):
    """What waits for a handler: of each key one at a time and in order, of different keys side by side."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable, T]] = deque()
        self._behind: dict[Hashable, deque[T]] = {}  # of keys with one that is ready or in hand
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, key: Hashable, item: T) -> None:
        """Without a key it waits for nothing."""
        self._waiting += 1
        if key is None:
            self._ready.append((key, item))
        elif key in self._behind:
            self._behind[key].append(item)
        else:
            self._behind[key] = deque()
            self._ready.append((key, item))

    def take(self) -> tuple[Hashable, T] | None:
        """The next one whose turn it is; `finish` has to follow."""
        if not self._ready:
            return None
        self._waiting -= 1
        return self._ready.popleft()

    def put_back(self, key: Hashable, item: T) -> None:
        """It was taken and not begun: it is the first of its key again."""
        self._waiting += 1
        self._ready.appendleft((key, item))

    def finish(self, key: Hashable) -> None:
        """What was taken with this key is over: let the next of the key go."""
        if key is None:
            return
        behind = self._behind[key]
        if behind:
            self._ready.append((key, behind.popleft()))
        else:
            del self._behind[key]
