"""The core of every relay: claim a batch, hand each message to its handler, write down what came of it.

`Drainer` and `Worker` both step a `Dispatcher`. What a message becomes is decided by `change`, which
is pure; what was decided is kept until the database has taken it, so an outage between delivering
and settling repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from maniflex._backoff import Backoff
from maniflex._clock import Clock
from maniflex.background.jsons import clean
from maniflex.background.lease import Heart, Held
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.handlers import Handler, Handlers, Unreadable, readable
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.store import Batch, Change, Claim, Claimed, OutboxStore, Settlement
from maniflex.db.port import Adapter
from maniflex.errors import Fatal

_PAUSE = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=2))
ORPHANED = "every relay that took it died before it was done"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised."""

    error: str


@dataclass(frozen=True, slots=True)
class Hopeless:
    """No further attempt can succeed; `raw` is what a payload was that is not JSON."""

    reason: str
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class HandedBack:
    """It was not tried, or not to its end, for no fault of its own."""


Outcome = Delivered | Failed | Hopeless | HandedBack


@dataclass(frozen=True, slots=True)
class Policy:
    """How a relay works."""

    owner: str
    batch: int
    concurrency: int
    max_attempts: int
    backoff: Backoff
    lease: timedelta
    grace: timedelta = timedelta(seconds=30)  # to write down what was done, without a caller's deadline


def change(
    message: Claimed, outcome: Failed | Hopeless | HandedBack, policy: Policy, now: datetime
) -> Change:
    """What the row becomes. Pure, so every branch is a one-line test."""
    match outcome:
        case Failed(error) if message.attempts < policy.max_attempts:
            retry_at = now + policy.backoff(message.attempts)
            return Change(message.id, "pending", retry_at, last_error=error, key=message.key)
        case Failed(error):
            return Change(message.id, "dead", last_error=error)
        case Hopeless(reason, raw):
            return Change(message.id, "dead", last_error=reason, raw=raw)
        case HandedBack():
            return Change(message.id, "pending", unspent=1)
        case _:
            assert_never(outcome)


class Dispatcher:
    """Delivers batch after batch; `stopping` is asked before every message."""

    def __init__(
        self,
        store: OutboxStore,
        handlers: Handlers,
        policy: Policy,
        clock: Clock,
        logger: logging.Logger,
        metrics: Metrics,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.delivered = 0
        self._store = store
        self._handlers = handlers
        self._policy = policy
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._stopping = stopping
        self._current: Batch | None = None
        self._next: Batch | None = None
        self._turning: asyncio.Future[None] | None = None
        self._owed: list[Settlement] = []
        self._lost: set[str] = set()
        failed = partial(metrics.add, "outbox_renewal_errors_total")
        self.heart = Heart(store.adapter, self._renew, policy.lease / 3, logger, lambda error: failed())

    async def step(self) -> bool:
        """Deliver one batch; whether there is another."""
        if self._next is None:
            await self._turn(claim=True)
        batch, self._next = self._next, None
        if batch is not None:
            await self._work(batch)
            await self._turn(claim=not self._stopping())
        return self._next is not None

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed and nothing is left to write down."""
        return self._next is None and not self._owed

    async def hand_back(self) -> None:
        """Give up what is claimed and not begun, and write down what is owed, until the database takes it.

        The caller's deadline is the only limit.
        """
        if self._turning is not None:
            await asyncio.wait((self._turning,))
        batch, self._next = self._next, None
        if batch is not None:
            self._close(Settlement(batch))
        failures = 0
        while self._owed:
            try:
                await self._turn(claim=False)
            except Exception as error:
                failures += 1
                self._metrics.add("outbox_settle_errors_total")
                if failures == 1:
                    self._logger.warning("outbox: outcomes could not be written yet: %s", error)
                await asyncio.sleep(_PAUSE(failures).total_seconds())

    async def finish(self) -> None:
        """`hand_back` where nobody else sets a deadline."""
        await self.in_time(self.hand_back())

    async def in_time(self, stopping: Awaitable[None]) -> None:
        """Wait for it no longer than a shutdown may take."""
        try:
            async with asyncio.timeout(self._policy.grace.total_seconds()):
                await stopping
        except TimeoutError:
            self._logger.error("outbox: what is claimed stays so until its lease ends")

    # -- between batches

    async def _turn(self, *, claim: bool) -> None:
        """Settle what is owed and claim `_next`; it goes to its end though the caller is cancelled."""
        self._turning = asyncio.ensure_future(self._turned(claim))
        await asyncio.shield(self._turning)

    async def _turned(self, claim: bool) -> None:
        now, policy = self._clock.now(), self._policy
        wanted = (
            Claim(policy.owner, self._handlers.kinds, policy.batch, now + policy.lease) if claim else None
        )
        owed = list(self._owed)
        kept, batch = await self._store.turn(owed, wanted, now)
        del self._owed[: len(owed)]
        for settlement in owed:
            self._settled(settlement, kept)
        if batch is not None:
            self._next = batch
            self._metrics.add("outbox_claimed_total", len(batch.messages))
            for held in batch.held():
                self.heart.hold(held, partial(self._lost.add, held.id))

    def _settled(self, settlement: Settlement, kept: set[str]) -> None:
        for held in settlement.batch.held():
            self.heart.drop(held)
            self._lost.discard(held.id)
        if gone := len(settlement.ids - kept):
            self._metrics.add("outbox_lease_losses_total", gone)
            self._logger.warning("outbox: %d messages were taken over by another relay", gone)
        delivered = kept.intersection(settlement.delivered)
        self.delivered += len(delivered)
        kinds = Counter(message.kind for message in settlement.batch.messages if message.id in delivered)
        for kind, count in kinds.items():
            self._metrics.add("outbox_delivered_total", count, kind=kind)

    async def _renew(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        until = self._clock.now() + self._policy.lease
        gone = await self._store.renew(adapter, held, until)
        batch = self._current
        if batch is not None and any(one.lease == batch.lease for one in held):
            batch.until = until
        return gone

    # -- one batch

    async def _work(self, batch: Batch) -> None:
        settlement = Settlement(batch)
        self._current = batch
        try:
            await self._run(batch, settlement)
        except BaseException:
            self._close(settlement)
            with suppress(Exception):  # whoever stops us tries again
                await self._turn(claim=False)
            raise
        finally:
            self._current = None
        self._close(settlement)

    def _close(self, settlement: Settlement) -> None:
        """Hand back whatever has no outcome, and owe the rest to the database."""
        ids = settlement.ids
        settlement.changes += [
            change(message, HandedBack(), self._policy, self._clock.now())
            for message in settlement.batch.messages
            if message.id not in ids
        ]
        self._owed.append(settlement)

    async def _run(self, batch: Batch, settlement: Settlement) -> None:
        stuck: set[str] = set()  # keys whose first message has to wait
        lanes = iter(_lanes(batch.messages, self._policy.concurrency))
        pulling = (self._pull(lanes, batch, settlement, stuck) for _ in range(self._policy.concurrency))
        if self._policy.concurrency == 1:
            await next(pulling)
            return
        async with asyncio.TaskGroup() as group:
            for pull in pulling:
                group.create_task(pull)

    async def _pull(
        self, lanes: Iterator[Sequence[Claimed]], batch: Batch, settlement: Settlement, stuck: set[str]
    ) -> None:
        for lane in lanes:
            for message in lane:
                if self._stopping() or self._clock.now() >= batch.until:
                    return  # what is left may be somebody else's by now
                if message.key in stuck or message.id in self._lost:
                    continue
                await self._deliver(message, settlement, stuck)

    async def _deliver(self, message: Claimed, settlement: Settlement, stuck: set[str]) -> None:
        handler = self._handlers.of(message.kind)
        assert handler is not None, message.kind
        outcome = await self._perform(message, handler)
        if isinstance(outcome, Delivered):
            settlement.delivered.append(message.id)
            return
        made = change(message, outcome, self._policy, self._clock.now())
        if made.status == "dead":
            made = await self._bury(message, made)
        if made.status == "pending" and message.key is not None:
            stuck.add(message.key)
        self._report(message, made)
        settlement.changes.append(made)

    async def _perform(self, message: Claimed, handler: Handler) -> Delivered | Failed | Hopeless:
        if message.orphaned and message.attempts > self._policy.max_attempts:
            return Hopeless(ORPHANED)
        try:
            payload = handler.read(message.stored)
        except Unreadable as error:
            raw = _text(message.stored) if error.broken else None
            return Hopeless(clean(str(error)), raw)
        return await _attempt(handler, _message(message, payload))

    async def _bury(self, message: Claimed, made: Change) -> Change:
        """Tell the dead-letter handler; a message it could not take stays and is tried again."""
        sink = self._handlers.sink
        if sink is None:
            return made
        outcome = await _attempt(sink, _message(message, readable(message.stored)), made.last_error)
        if isinstance(outcome, Delivered):
            return made
        self._metrics.add("outbox_dead_letter_errors_total", kind=message.kind)
        error = clean(f"{made.last_error}; and the dead-letter handler: {_reason(outcome)}")
        retry_at = self._clock.now() + self._policy.backoff(message.attempts)
        return Change(message.id, "pending", retry_at, last_error=error, key=message.key)

    def _report(self, message: Claimed, made: Change) -> None:
        about = (message.kind, message.id, message.attempts, made.last_error)
        if made.status == "dead":
            self._metrics.add("outbox_dead_total", kind=message.kind)
            self._logger.error("outbox: gave up on %s %s after %d attempts: %s", *about)
        else:
            self._metrics.add("outbox_failed_total", kind=message.kind)
            self._logger.warning("outbox: %s %s failed, attempt %d: %s", *about)


def _lanes(messages: list[Claimed], concurrency: int) -> Iterable[Sequence[Claimed]]:
    """Messages that must follow each other; everything when nothing may run side by side."""
    if concurrency == 1:
        return [messages]
    lanes: dict[str, list[Claimed]] = {}
    for message in messages:
        lanes.setdefault(f"id:{message.id}" if message.key is None else f"key:{message.key}", []).append(
            message
        )
    return lanes.values()


async def _attempt(handler: Handler, *arguments: object) -> Delivered | Failed | Hopeless:
    try:
        await handler(*arguments)
    except Fatal as error:
        return Hopeless(_described(error))
    except (Exception, SystemExit) as error:  # a library that exits must not take the relay along
        return Failed(_described(error))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Failed(_described(error))  # something inside was cancelled, not we
    return Delivered()


def _reason(outcome: Failed | Hopeless) -> str:
    return outcome.error if isinstance(outcome, Failed) else outcome.reason


def _described(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _text(stored: str | bytes) -> str:
    return clean(stored if isinstance(stored, str) else stored.decode(errors="backslashreplace"), 1 << 30)


def _message(claimed: Claimed, payload: object) -> Message:
    return Message(
        claimed.id,
        claimed.kind,
        claimed.key,
        payload,
        claimed.attempts,
        claimed.created_at,
        claimed.stored,
    )
