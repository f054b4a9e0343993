"""Groups: durable subscriptions, each with a relay of its own that hands events to its function.

A delivery is a message of the outbox that names an event. The events of a batch are read at once before the
first of them is handed on. Retries, leases and order per key are the outbox's.
"""

from __future__ import annotations

import logging
import os
import socket
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

from pydantic import ValidationError

from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex._json import clean, encode
from maniflex.background.environment import Environment
from maniflex.background.feed.store import OF_GROUP, DraftEvent, FeedEvent, FeedStore
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.delivery import Policy, Relay, RelayNotes
from maniflex.background.outbox.dispatcher import Dispatcher, Drainer, OutboxWorker
from maniflex.background.outbox.handlers import MessageHandler, MessageHandlers
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import ClaimedMessage, MessageChange
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.payload_types import PayloadType
from maniflex.db.current import transaction
from maniflex.errors import Fatal
from maniflex.events.event import DEAD_LETTER_NAMES, Event
from maniflex.sql.statement import Sql

BATCH = 500  # deliveries of one claim
MOST_HELD = 2000  # events in memory: of a batch, and of handlers that take long
_relays = count(1)


@dataclass(frozen=True, slots=True)
class Group:
    """A durable subscription as the code declares it."""

    name: str
    patterns: tuple[str, ...]
    handler: MessageHandler  # which calls the function of the application with the event of a message
    concurrency: int
    max_attempts: int
    pause: Callable[[int], timedelta]
    dead_letter: str | None
    payload: PayloadType | None
    once: bool
    start: str
    ordered: bool

    @property
    def kind(self) -> str:
        """The kind of its messages."""
        return OF_GROUP + self.name


class GroupNotes(RelayNotes):
    """Counts and logs what the relay of a group does."""

    def __init__(self, group: str, clock: Clock, logger: logging.Logger, metrics: Metrics) -> None:
        super().__init__(clock, logger, metrics)
        self._group = group
        self.failures: dict[str, BaseException] = {}  # of messages that are being delivered

    def note_delivered(self, kind: str, count: int) -> None:
        self.metrics.add("events_delivered_total", count, group=self._group)

    def note_failed(self, message: ClaimedMessage, row_change: MessageChange) -> None:
        self.failures.pop(message.id, None)
        self.metrics.add("events_failed_total", group=self._group)
        about = (self._group, message.about, message.attempts, row_change.last_error)
        self.logger.warning("events: group %s failed on %s, attempt %d: %s", *about)

    def note_dead(self, message: ClaimedMessage, row_change: MessageChange) -> None:
        self.metrics.add("events_dead_total", group=self._group)
        about = (self._group, message.about, message.attempts, row_change.last_error)
        error = self.failures.pop(message.id, None)
        self.logger.error("events: group %s gave up on %s after %d attempts: %s", *about, exc_info=error)


class GroupRelay:
    """Hands the events of one group to its function."""

    def __init__(
        self, group: Group, feed: FeedStore, outbox: OutboxStore, environment: Environment, source: str
    ) -> None:
        self.group = group
        self._feed = feed
        self._outbox = outbox
        self._environment = environment
        self._source = source
        self._events: dict[str, FeedEvent] = {}  # of the batch that is being delivered, by message
        self._notes = GroupNotes(group.name, environment.clock, environment.logger, environment.metrics)
        self.handlers = MessageHandlers()
        self.handlers.bind_caller = environment.runs.bind_caller
        self.handlers.tracing = environment.runs.tracing
        self.handlers.set_handler(
            MessageHandler.of(
                group.kind,
                self._handle,
                timeout=group.handler.timeout,
                scoped=group.handler.scoped,
                max_attempts=group.max_attempts,
                backoff=group.pause,
                letter=self._letter if group.dead_letter else None,
            )
        )

    # -- relays

    def worker(self, is_paused: Callable[[], bool]) -> GroupWorker:
        """A relay that stays."""
        environment = self._environment
        return GroupWorker(
            self._outbox,
            lambda stopping: self._dispatcher(lambda: stopping() or is_paused()),
            environment.clock,
            environment.config.event_poll_interval,
            environment.logger,
            environment.metrics,
            name=f"events {self.group.name}",
            is_paused=is_paused,
        )

    def drainer(self) -> Drainer:
        """A relay for one pass."""
        return Drainer(self._environment.adapter, lambda: self._dispatcher(everywhere=True))

    def _dispatcher(
        self, stopping: Callable[[], bool] = lambda: False, *, everywhere: bool = False
    ) -> Dispatcher:
        environment = self._environment
        policy = Policy(
            owner=f"{socket.gethostname()}:{os.getpid()}:e{next(_relays)}",
            batch=BATCH,
            concurrency=self.group.concurrency,
            max_attempts=self.group.max_attempts,
            backoff=self.group.pause,
            lease=environment.config.work_lease,
            grace=environment.config.shutdown_timeout,
        )
        relay = Relay(
            self.handlers,
            policy,
            environment.clock,
            environment.logger,
            environment.metrics,
            self._notes,
            self._read_events,
        )
        return Dispatcher(self._outbox, relay, stopping, everywhere=everywhere)

    # -- one event

    async def _read_events(self, messages: Sequence[ClaimedMessage]) -> None:
        """Read the events that the messages of a batch name."""
        events = {one.row_id: one for one in await self._feed.load({_row_id(m.about) for m in messages})}
        while len(self._events) > MOST_HELD:  # left by messages that were handed back
            self._events.pop(next(iter(self._events)))
        for message in messages:
            if (one := events.get(_row_id(message.about))) is not None:
                self._events[message.id] = one

    async def _handle(self, message: Message) -> None:
        one = self._events.get(message.id) or await self._read_again(message)
        try:
            event = self._with_payload(one.event)
            if self.group.once:
                await self._handle_once(one.row_id, event)
            else:
                await self.group.handler(event)
        except BaseException as error:
            self._notes.failures[message.id] = error
            raise
        self._events.pop(message.id, None)

    async def _read_again(self, message: Message) -> FeedEvent:
        """The event of a message that was in memory too long, behind others."""
        for one in await self._feed.load([_row_id(message.about)]):
            self._events[message.id] = one
            return one
        raise Fatal(f"the {message.about} is not kept any more")

    async def _handle_once(self, row_id: str, event: Event) -> None:
        """Run the function in one transaction with the record that it has seen the event."""
        environment = self._environment
        async with transaction(environment.adapter) as tx:
            if await self._outbox.once(tx, self.group.name, row_id, environment.clock.now()):
                await self.group.handler(event)

    def _with_payload(self, event: Event) -> Event:
        """The event with its data as the type that the function asked for."""
        if self.group.payload is None:
            return event
        try:
            data = self.group.payload.read(encode(event.data, "data"))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
            places = [".".join(map(str, ("data", *e["loc"]))) + f": {e['msg']}" for e in errors[:5]]
            raise Fatal(f"the data do not fit: {'; '.join(places)}") from error
        return event.with_data(data, event.changed)

    def _letter(self, message: ClaimedMessage, reason: str) -> Callable[[datetime], Sql] | None:
        """The dead letter of a message; none for the death of a dead letter."""
        one = self._events.get(message.id)
        if one is None or self.group.dead_letter is None or DEAD_LETTER_NAMES[0] in one.event.headers:
            return None
        letter = one.event.as_dead_letter(self.group.dead_letter, clean(reason, 500))
        draft = draft_of(letter, self._source)._replace(time=self._environment.clock.now())
        return partial(self._feed.append_letter, draft, message.id, reason)


class GroupWorker(OutboxWorker):
    """The relay of a group that stays; it claims nothing while the group is paused."""

    def __init__(self, *arguments: Any, name: str, is_paused: Callable[[], bool]) -> None:
        self.name = name  # before its task is made, which is called so
        super().__init__(*arguments)
        self._is_paused = is_paused

    async def tick(self) -> bool:
        if self._is_paused() and not self._dispatcher.has_claimed:  # what it has is handed back
            return False
        return await super().tick()

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("events_poll_errors_total")


def _row_id(about: str | None) -> str:
    return (about or "").removeprefix("event/")


def draft_of(event: Event, source: str | None = None, *, scope: str | None = None) -> DraftEvent:
    """An event as it is written; with a source, it is that source's own."""
    is_own = source is not None
    return DraftEvent(
        event.id if is_own else new_id(),
        event.id,
        event.type,
        source or event.source,
        event.subject,
        event.time,
        event.key,
        event.model,
        event.operation,
        event.record_id,
        event.actor_id,
        event.tenant_id,
        event.traceparent,
        event.schema_version,
        None if event.changed is None else ",".join(event.changed),
        encode(dict(event.headers), "headers") if event.headers else None,
        event.dataref,
        _data_text(event),
        scope,
    )


def _data_text(event: Event) -> str | None:
    """The data as JSON text; bytes of others become base64."""
    if event.data is None:
        return None
    data = b64encode(event.data).decode() if isinstance(event.data, bytes) else event.data
    return encode(data, "data")
