"""Hands messages to their handlers, one after another, and records what becomes of each.

A relay has as many couriers as its concurrency, and one more for every handler that takes long: the
courier of that one is put aside with its message and stops after it, so that other keys go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, assert_never

from maniflex._clock import Clock
from maniflex._fence import Fence, describe, leaves_of
from maniflex._json import clean
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.handlers import MessageHandler, MessageHandlers, UnreadablePayload, readable
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import (
    LAST_ERROR,
    PAYLOAD,
    ClaimedMessage,
    MessageChange,
    MessageStatus,
)
from maniflex.background.runs.outcomes import UNDECRYPTABLE
from maniflex.encryption.sealed_json import is_sealed_json, key_id_in
from maniflex.errors import DecryptionError, EncryptionNotConfigured, Fatal, Unavailable

if TYPE_CHECKING:
    from maniflex.background.outbox.dispatcher import Dispatcher, Ledger


# The outcomes of a delivery, and how each changes the row of the message.


SLOW_AFTER = timedelta(seconds=1)
KEY_AWAY = timedelta(seconds=5)  # after which a key provider that did not answer is asked again
MOST_ASIDE = 64


@dataclass(frozen=True, slots=True)
class Delivered:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class DeliveryFailed:
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


@dataclass(frozen=True, slots=True)
class KeyAway:
    """Its payload cannot be opened while a key provider that is asked elsewhere does not answer."""

    error: str


Outcome = Delivered | DeliveryFailed | Hopeless | HandedBack | KeyAway


@dataclass(frozen=True, slots=True)
class Policy:
    """How a relay works."""

    owner: str
    batch: int
    concurrency: int
    max_attempts: int
    backoff: Callable[[int], timedelta]
    lease: timedelta
    grace: timedelta = timedelta(seconds=30)  # to write down what was done, without a caller's deadline
    slow_after: timedelta = SLOW_AFTER  # a handler that takes longer holds up its own key only
    most_aside: int = MOST_ASIDE  # handlers that do, before the relay claims nothing more

    def of(self, handler: MessageHandler) -> Policy:
        """The same with what the handler says for itself."""
        if handler.max_attempts is None and handler.backoff is None:
            return self
        return replace(
            self,
            max_attempts=handler.max_attempts or self.max_attempts,
            backoff=handler.backoff or self.backoff,
        )


def change(
    message: ClaimedMessage,
    outcome: DeliveryFailed | Hopeless | HandedBack | KeyAway,
    policy: Policy,
    now: datetime,
) -> MessageChange:
    """The change of the message's row. Pure, so every branch is a one-line test."""
    match outcome:
        case DeliveryFailed(error) if message.attempts < policy.max_attempts:
            retry_at = now + policy.backoff(message.attempts)
            return MessageChange(
                message.id, MessageStatus.PENDING, retry_at, last_error=error, key=message.key
            )
        case DeliveryFailed(error):
            return MessageChange(message.id, MessageStatus.DEAD, last_error=error)
        case Hopeless(reason, raw):
            return MessageChange(message.id, MessageStatus.DEAD, last_error=reason, raw=raw)
        case HandedBack():
            return MessageChange(message.id, MessageStatus.PENDING, unspent=1)
        case KeyAway(error):
            pending = MessageStatus.PENDING
            return MessageChange(
                message.id, pending, now + KEY_AWAY, unspent=1, last_error=error, key=message.key
            )
        case _:
            assert_never(outcome)


# The handlers, rules and clock that the dispatcher of a relay and its couriers share.


class RelayNotes:
    """Counts and logs what a relay does, as the relays of the outbox do."""

    def __init__(self, clock: Clock, logger: logging.Logger, metrics: Metrics) -> None:
        self.clock = clock
        self.logger = logger
        self.metrics = metrics

    def note_delivered(self, kind: str, count: int) -> None:
        """Messages of one kind were delivered."""
        self.metrics.add("outbox_delivered_total", count, kind=kind)
        self.metrics.minutes.of(self.clock.now(), "message", kind).succeeded += count

    def note_failed(self, message: ClaimedMessage, row_change: MessageChange) -> None:
        """An attempt failed, and there will be another."""
        self.metrics.add("outbox_failed_total", kind=message.kind)
        self.metrics.minutes.of(self.clock.now(), "message", message.kind).retried += 1
        about = (message.kind, message.id, message.attempts, row_change.last_error)
        self.logger.warning("outbox: %s %s failed, attempt %d: %s", *about)

    def note_dead(self, message: ClaimedMessage, row_change: MessageChange) -> None:
        """A message was given up."""
        self.metrics.add("outbox_dead_total", kind=message.kind)
        self.metrics.minutes.of(self.clock.now(), "message", message.kind).failed += 1
        about = (message.kind, message.id, message.attempts, row_change.last_error)
        self.logger.error("outbox: gave up on %s %s after %d attempts: %s", *about)


@dataclass(frozen=True, slots=True)
class Relay:
    """How one relay delivers: to whom, by which rules and by which clock."""

    handlers: MessageHandlers
    policy: Policy
    clock: Clock
    logger: logging.Logger
    metrics: Metrics
    notes: RelayNotes
    # Awaited with the messages of a batch before the first of them is delivered.
    prepare: Callable[[Sequence[ClaimedMessage]], Awaitable[None]] | None = None


ORPHANED = "every relay that took it died before it was done"


@dataclass(slots=True)
class BatchDelivery:
    """One batch on its way: the messages left to deliver, and the outcomes of the others."""

    sequences: Iterator[Sequence[ClaimedMessage]]  # messages that must follow each other
    ledger: Ledger
    stuck: set[str] = field(default_factory=set)  # keys whose first message has to wait


class Courier:
    """Delivers sequence after sequence of a batch, until there is none, or it is put aside."""

    def __init__(self, round: BatchDelivery, relay: Relay, sender: Dispatcher) -> None:
        self.message: ClaimedMessage | None = None  # that is being delivered
        self.aside = False
        self.overdue = False  # its handler was told to stop, or would have been if it could
        self.unfinished: ClaimedMessage | None = None  # the message it was stopped over
        self._round = round
        self._handlers = relay.handlers
        self._policy = relay.policy
        self._clock = relay.clock
        self._metrics = relay.metrics
        self._sender = sender
        self._handler: MessageHandler | None = None
        self._began = 0.0
        self._told_to_stop = False
        self.task = asyncio.create_task(self._run())
        self._fence = Fence(self.task)

    @property
    def ledger(self) -> Ledger:
        return self._round.ledger

    @property
    def is_done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        self.task.cancel()

    def raise_failure(self) -> None:
        """Raise the error that ended the courier, if there is one."""
        self.task.result()

    async def _run(self) -> None:
        ledger, stuck = self.ledger, self._round.stuck
        for sequence in self._round.sequences:
            for message in sequence:
                begin = self._sender.may_begin(message, ledger)
                if begin is None:
                    return  # another relay may have the rest by now
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

    # -- for the dispatcher, which watches

    def handler_seconds(self) -> float:
        """How many seconds the handler that runs has taken."""
        return 0.0 if self._handler is None else monotonic() - self._began

    def put_aside(self) -> None:
        """Deliver nothing after this message; those behind it of its key have to wait."""
        self.aside = True
        if self.message is not None and self.message.key is not None:
            self._round.stuck.add(self.message.key)

    def check_timeout(self) -> bool:
        """Whether its handler became overdue with this call; an async handler is cancelled then."""
        handler = self._handler
        if handler is None or self.overdue or self.handler_seconds() < handler.timeout.total_seconds():
            return False
        self.overdue = True
        if handler.is_async:
            self._told_to_stop = True
            self.task.cancel()
        return True

    # -- one message

    async def _deliver(self, message: ClaimedMessage) -> None:
        handler = self._handlers.of(message.kind)
        assert handler is not None, message.kind
        outcome: Delivered | DeliveryFailed | Hopeless | KeyAway
        key_id, shut = None, None
        try:
            key_id, message, shut = await self._open(message, handler)
            outcome = shut or await self._perform(message, handler)
        except BaseException as error:  # a validator may raise anything, and what we do about it may fail
            self._fence.absorb(error)
            outcome = DeliveryFailed(_error_text(error))
        if isinstance(outcome, Delivered):
            self._round.ledger.deliver(message, forget=handler.forgets_payload)
        else:
            is_plain = shut is not None or handler.has_plain_errors
            await self._settle(message, outcome, handler, None if is_plain else key_id)

    async def _open(
        self, message: ClaimedMessage, handler: MessageHandler
    ) -> tuple[str | None, ClaimedMessage, Hopeless | KeyAway | None]:
        """The key id of an encrypted message and the message as it is open, or why it is not."""
        sealing, content = self._handlers.sealing, message.stored
        text = content if isinstance(content, str) else content.decode(errors="replace")
        key_id = handler.encrypted or key_id_in(text)
        if not is_sealed_json(text):
            is_refused = handler.encrypted is not None and not sealing.keys.takes_plain
            why = Hopeless(f"{UNDECRYPTABLE}: it is plain, which encryption_legacy refuses")
            return key_id, message, why if is_refused else None
        try:
            content = await sealing.open(text, PAYLOAD, message.id)
        except (DecryptionError, EncryptionNotConfigured) as error:
            return key_id, message._replace(stored=b"null"), Hopeless(f"{UNDECRYPTABLE}: {error.problem}")
        except Unavailable as error:
            return key_id, message, KeyAway(f"its payload cannot be opened yet: {error}")
        last_error = await sealing.open_text(message.last_error, LAST_ERROR, message.id)
        return key_id, message._replace(stored=content, last_error=last_error), None

    async def _settle(
        self,
        message: ClaimedMessage,
        outcome: DeliveryFailed | Hopeless | KeyAway,
        handler: MessageHandler,
        key_id: str | None,
    ) -> None:
        row_change = change(message, outcome, self._policy.of(handler), self._clock.now())
        if row_change.status is MessageStatus.DEAD:
            row_change = await self._bury(message, row_change, handler)
        if row_change.status is MessageStatus.PENDING and message.key is not None:
            self._round.stuck.add(message.key)
        public_change = row_change
        if key_id is not None and row_change.last_error is not None:
            public_change = row_change._replace(last_error="an error that is encrypted")
            row_change = await self._seal_error(message, row_change, key_id)
        self.ledger.change(row_change)
        try:
            self._sender.report(message, public_change)
        except BaseException as error:  # out of a log handler: the message has its outcome
            self._fence.absorb(error)

    async def _seal_error(
        self, message: ClaimedMessage, row_change: MessageChange, key_id: str
    ) -> MessageChange:
        """The change with its error as it is stored; without it while no key can be asked."""
        error, keep_text = row_change.last_error or "", self._handlers.sealing.keep_text
        try:
            error_text = await keep_text(error, key_id, LAST_ERROR, message.id)
        except Exception as failure:
            self._fence.absorb(failure)
            error_text = "an error that could not be encrypted"
        return row_change._replace(last_error=error_text, raw=None)

    async def _perform(
        self, message: ClaimedMessage, handler: MessageHandler
    ) -> Delivered | DeliveryFailed | Hopeless:
        if message.orphaned and message.attempts > self._policy.of(handler).max_attempts:
            return Hopeless(ORPHANED)
        try:
            payload = handler.read(message.stored)
        except UnreadablePayload as error:
            raw = _text(message.stored) if error.broken else None
            return Hopeless(clean(str(error)), raw)
        tracing = self._handlers.tracing
        if tracing is None:
            return await self._call(message, handler, _message(message, payload))
        with tracing.message(message) as note_outcome:
            outcome = await self._call(message, handler, _message(message, payload))
            note_outcome(outcome)
            return outcome

    async def _call(
        self, claimed: ClaimedMessage, handler: MessageHandler, message: Message
    ) -> Delivered | DeliveryFailed | Hopeless:
        if not handler.scoped:
            return await self._attempt(handler, message)
        with self._handlers.bind_caller(claimed.caller):
            return await self._attempt(handler, message)

    async def _bury(
        self, message: ClaimedMessage, row_change: MessageChange, handler: MessageHandler
    ) -> MessageChange:
        """Tell the dead-letter handler; a message it could not take stays and is tried again."""
        if handler.letter is not None:
            letter = handler.letter(message, row_change.last_error or "")
            if letter is not None:
                return row_change._replace(letter=letter)
        sink = self._handlers.sink
        if sink is None:
            return row_change
        outcome = await self._attempt(
            sink, _message(message, readable(message.stored)), row_change.last_error
        )
        if isinstance(outcome, Delivered):
            return row_change
        self._metrics.add("outbox_dead_letter_errors_total", kind=message.kind)
        error = clean(f"{row_change.last_error}; and the dead-letter handler: {_reason(outcome)}")
        retry_at = self._clock.now() + self._policy.backoff(message.attempts)
        return MessageChange(message.id, MessageStatus.PENDING, retry_at, last_error=error, key=message.key)

    async def _attempt(
        self, handler: MessageHandler, *arguments: object
    ) -> Delivered | DeliveryFailed | Hopeless:
        self.overdue, self._handler = False, handler
        self._began = monotonic()
        try:
            await handler(*arguments)
        except Fatal as error:
            return Hopeless(_error_text(error))
        except asyncio.CancelledError as error:
            timed_out = self._stop_counts()
            self._fence.absorb(error)
            return DeliveryFailed(_timeout_text(handler.timeout) if timed_out else _error_text(error))
        except BaseException as error:
            self._fence.absorb(error)
            hopeless = any(isinstance(leaf, Fatal) for leaf in leaves_of(error))
            return Hopeless(_error_text(error)) if hopeless else DeliveryFailed(_error_text(error))
        finally:
            self._handler = None
            if self._told_to_stop:
                self._stop_counts()
        return Delivered()

    def _stop_counts(self) -> bool:
        """Whether the timeout told the handler to stop; resets that."""
        timed_out, self._told_to_stop = self._told_to_stop, False
        task = asyncio.current_task()
        if timed_out and task is not None:
            task.uncancel()
        return timed_out


def sequences_of(messages: list[ClaimedMessage], concurrency: int) -> Iterator[Sequence[ClaimedMessage]]:
    """Messages that must follow each other; one by one when nothing may run side by side."""
    if concurrency == 1:
        return iter([[message] for message in messages])
    sequences: dict[str, list[ClaimedMessage]] = {}
    for message in messages:
        sequences.setdefault(f"id:{message.id}" if message.key is None else f"key:{message.key}", []).append(
            message
        )
    return iter(sequences.values())


def _reason(outcome: DeliveryFailed | Hopeless) -> str:
    return outcome.error if isinstance(outcome, DeliveryFailed) else outcome.reason


def _error_text(error: BaseException) -> str:
    return clean(describe(error))


def _timeout_text(timeout: timedelta) -> str:
    return f"TimeoutError: the handler took longer than {timeout.total_seconds():g} s"


def _text(stored: str | bytes) -> str:
    return clean(stored if isinstance(stored, str) else stored.decode(errors="backslashreplace"), 1 << 30)


def _message(claimed: ClaimedMessage, payload: object) -> Message:
    return Message(
        claimed.id,
        claimed.kind,
        claimed.key,
        payload,
        claimed.attempts,
        claimed.created_at,
        claimed.stored,
        claimed.last_error,
        claimed.actor_id,
        claimed.tenant_id,
        claimed.about,
        claimed.trace_id,
        claimed.traceparent,
    )
