"""Hands messages to their handlers, one after another, and says what came of each.

A relay has as many couriers as its concurrency, and one more for every handler that takes long: the
courier of that one is put aside with its message and stops after it, so that other keys go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Protocol

from maniflex._fence import Fence, describe, leaves_of
from maniflex.background.jsons import clean
from maniflex.background.outbox.handlers import Handler, Unreadable, readable
from maniflex.background.outbox.ledger import Ledger
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.outcomes import Delivered, Failed, Hopeless, change
from maniflex.background.outbox.relay import Relay
from maniflex.background.outbox.store import Change, Claimed
from maniflex.errors import Fatal

ORPHANED = "every relay that took it died before it was done"


@dataclass(slots=True)
class Round:
    """One batch on its way: what is left of it, and what came of the rest."""

    lanes: Iterator[Sequence[Claimed]]  # messages that must follow each other
    ledger: Ledger
    stuck: set[str] = field(default_factory=set)  # keys whose first message has to wait


class Sender(Protocol):
    """Who sends couriers out, and hears of what they do."""

    def may_begin(self, message: Claimed, ledger: Ledger) -> bool | None:
        """Whether a message may be delivered; None when nothing may any more."""

    def on_outcome(self) -> None:
        """A message has its outcome."""

    def report(self, message: Claimed, made: Change) -> None:
        """A message was not delivered, and becomes this."""


class Courier:
    """Delivers lane after lane of a round, until there is none, or it is put aside."""

    def __init__(self, round: Round, relay: Relay, sender: Sender) -> None:
        self.message: Claimed | None = None  # that is being delivered
        self.aside = False
        self.overdue = False  # its handler was told to stop, or would have been if it could
        self.unfinished: Claimed | None = None  # the message it was stopped over
        self._round = round
        self._handlers = relay.handlers
        self._policy = relay.policy
        self._clock = relay.clock
        self._metrics = relay.metrics
        self._sender = sender
        self._handler: Handler | None = None
        self._began = 0.0
        self._told_to_stop = False
        self.task = asyncio.create_task(self._run())

    @property
    def ledger(self) -> Ledger:
        return self._round.ledger

    @property
    def is_done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        self.task.cancel()

    def raise_failure(self) -> None:
        """Raise what ended it, if it did not end by itself."""
        self.task.result()

    async def _run(self) -> None:
        ledger, stuck = self.ledger, self._round.stuck
        for lane in self._round.lanes:
            for message in lane:
                begin = self._sender.may_begin(message, ledger)
                if begin is None:
                    return  # what is left may be somebody else's by now
                if not begin or message.key in stuck:
                    continue
                self.message = self.unfinished = message
                try:
                    await self._deliver(message)
                finally:
                    self.message = None
                self.unfinished = None
                self._sender.on_outcome()
                if self.aside:
                    return

    # -- for the one who watches

    def handler_seconds(self) -> float:
        """How many seconds the handler that runs has taken."""
        return 0.0 if self._handler is None else monotonic() - self._began

    def put_aside(self) -> None:
        """Deliver nothing after this message; those behind it of its key have to wait."""
        self.aside = True
        if self.message is not None and self.message.key is not None:
            self._round.stuck.add(self.message.key)

    def check_timeout(self) -> bool:
        """Whether its handler is overdue since this call; one that can be stopped is told to."""
        handler = self._handler
        if handler is None or self.overdue or self.handler_seconds() < handler.timeout.total_seconds():
            return False
        self.overdue = True
        if handler.is_async:
            self._told_to_stop = True
            self.task.cancel()
        return True

    # -- one message

    async def _deliver(self, message: Claimed) -> None:
        handler = self._handlers.of(message.kind)
        assert handler is not None, message.kind
        fence = Fence()
        outcome: Delivered | Failed | Hopeless
        try:
            outcome = await self._perform(message, handler)
        except BaseException as error:  # a validator may raise anything, and what we do about it may fail
            fence.absorb(error)
            outcome = Failed(_error_text(error))
        if isinstance(outcome, Delivered):
            self._round.ledger.deliver(message)
        else:
            await self._settle(message, outcome, fence)

    async def _settle(self, message: Claimed, outcome: Failed | Hopeless, fence: Fence) -> None:
        made = change(message, outcome, self._policy, self._clock.now())
        if made.status == "dead":
            made = await self._bury(message, made)
        if made.status == "pending" and message.key is not None:
            self._round.stuck.add(message.key)
        self.ledger.change(made)
        try:
            self._sender.report(message, made)
        except BaseException as error:  # out of somebody's log: the message has its outcome
            fence.absorb(error)

    async def _perform(self, message: Claimed, handler: Handler) -> Delivered | Failed | Hopeless:
        if message.orphaned and message.attempts > self._policy.max_attempts:
            return Hopeless(ORPHANED)
        try:
            payload = handler.read(message.stored)
        except Unreadable as error:
            raw = _text(message.stored) if error.broken else None
            return Hopeless(clean(str(error)), raw)
        return await self._attempt(handler, _message(message, payload))

    async def _bury(self, message: Claimed, made: Change) -> Change:
        """Tell the dead-letter handler; a message it could not take stays and is tried again."""
        sink = self._handlers.sink
        if sink is None:
            return made
        outcome = await self._attempt(sink, _message(message, readable(message.stored)), made.last_error)
        if isinstance(outcome, Delivered):
            return made
        self._metrics.add("outbox_dead_letter_errors_total", kind=message.kind)
        error = clean(f"{made.last_error}; and the dead-letter handler: {_reason(outcome)}")
        retry_at = self._clock.now() + self._policy.backoff(message.attempts)
        return Change(message.id, "pending", retry_at, last_error=error, key=message.key)

    async def _attempt(self, handler: Handler, *arguments: object) -> Delivered | Failed | Hopeless:
        self.overdue, self._handler = False, handler
        self._began = monotonic()
        fence = Fence()
        try:
            await handler(*arguments)
        except Fatal as error:
            return Hopeless(_error_text(error))
        except asyncio.CancelledError as error:
            told = self._stop_counts()
            fence.absorb(error)
            return Failed(_timed_out(handler.timeout) if told else _error_text(error))
        except BaseException as error:
            fence.absorb(error)
            hopeless = any(isinstance(leaf, Fatal) for leaf in leaves_of(error))
            return Hopeless(_error_text(error)) if hopeless else Failed(_error_text(error))
        finally:
            self._handler = None
            if self._told_to_stop:
                self._stop_counts()
        fence.end_if_forked()
        return Delivered()

    def _stop_counts(self) -> bool:
        """Whether the handler was told to stop by its timeout; from now on it was not."""
        told, self._told_to_stop = self._told_to_stop, False
        task = asyncio.current_task()
        if told and task is not None:
            task.uncancel()
        return told


def lanes_of(messages: list[Claimed], concurrency: int) -> Iterator[Sequence[Claimed]]:
    """Messages that must follow each other; one by one when nothing may run side by side."""
    if concurrency == 1:
        return iter([[message] for message in messages])
    lanes: dict[str, list[Claimed]] = {}
    for message in messages:
        lanes.setdefault(f"id:{message.id}" if message.key is None else f"key:{message.key}", []).append(
            message
        )
    return iter(lanes.values())


def _reason(outcome: Failed | Hopeless) -> str:
    return outcome.error if isinstance(outcome, Failed) else outcome.reason


def _error_text(error: BaseException) -> str:
    return clean(describe(error))


def _timed_out(timeout: timedelta) -> str:
    return f"TimeoutError: the handler took longer than {timeout.total_seconds():g} s"


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
        claimed.last_error,
    )
