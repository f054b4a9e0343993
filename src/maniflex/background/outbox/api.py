"""`server.outbox`: messages that leave with the transaction that made them, and are delivered later.

`enqueue` stores a message in the producer's transaction; a relay (`worker()` for good, `drainer()`
for one pass) hands it to the handler of its kind, at least once, until that succeeds or the message
is dead. Messages of one key go one after another; everything else goes on without them.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar
from weakref import WeakSet

from maniflex._callables import explain_arguments
from maniflex._caller import Caller, caller
from maniflex._clock import Backoff
from maniflex._ids import new_id
from maniflex._json import clean, encode
from maniflex._service import Service
from maniflex.background.declaring import chosen_key_id, role_problems, switch_problems
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.metrics import Labels
from maniflex.background.outbox.delivery import Policy, Relay, RelayNotes
from maniflex.background.outbox.dispatcher import Dispatcher, Drainer, MessagePruner, OutboxWorker
from maniflex.background.outbox.handlers import TIMEOUT, MessageHandlers
from maniflex.background.outbox.message import Draft, Message
from maniflex.background.outbox.model import PAYLOAD, InboxMessage, NewMessage, OutboxMessage
from maniflex.background.outbox.store import Inbox, OutboxStore
from maniflex.background.parameters import PACKAGE, subject_of
from maniflex.background.partitions.keeper import keeper_of
from maniflex.background.partitions.layout import MESSAGES
from maniflex.background.subjects import WorkSubject, note_subjects, read_subjects
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Tx
from maniflex.errors import DeclarationError, TransactionError, ValidationFailed
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql, schema_statements

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_BACKOFF = timedelta(hours=1)
OF_GROUPS = "maniflex.event."  # kinds of deliveries to groups, whose relays are the feed's
_relays = count(1)


class Outbox(DeclaredPart):
    """Declares handlers, enqueues messages and makes the relays that deliver them."""

    too_late = "the server is sealed; outbox handlers are declared before it starts"
    too_early = "the outbox is used once the server is started"
    not_used = (
        "the outbox is not in use: declare a handler with @server.outbox.handler(kind), or call"
        " server.outbox.enable() before the start"
    )
    store: OutboxStore  # from the moment the server is sealed

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(self.require_sealed)
        self._handlers = MessageHandlers()
        self.admin_role, self.routes = "admin", True
        self._workers: WeakSet[OutboxWorker] = WeakSet()

    # -- declaring

    @explain_arguments("server.outbox.handler")
    def handler(
        self,
        kind: str,
        *,
        payload: Any = None,
        timeout: timedelta | float = TIMEOUT,
        scoped: bool = False,
        max_attempts: int | None = None,
        backoff: Callable[[int], timedelta | float] | None = None,
        encrypted: bool | str | None = None,
    ) -> Callable[[F], F]:
        """Deal with messages of one kind, or with `*` of every kind that has no handler of its own.

        `payload` is a type (a pydantic model, say) that the message's payload is read into. A plain
        function runs on a thread. It may be called more than once for a message, with the same id.
        Past its `timeout` (a timedelta or seconds) an async function is cancelled and has failed. With
        `scoped` the scope rules bind `server.db` in it by the caller who enqueued the message; a message
        without what a rule needs is dead at once. `max_attempts` and `backoff(n)`, the pause behind the n-th
        failed attempt, are those of the settings unless they are said. With `encrypted`, True or a key id,
        payloads and errors of these messages are stored encrypted.
        """

        def decorate(fn: F) -> F:
            self.require_open()
            self._handlers.add(kind, fn, payload, timeout, scoped, max_attempts, backoff, encrypted)
            return fn

        return decorate

    def dead_letter(self, fn: F) -> F:
        """Call `fn(message, reason)` when a message is given up; if it fails, the message is kept alive."""
        self.require_open()
        self._handlers.set_sink(fn)
        return fn

    def enable(self, *, admin_role: str = "admin", routes: bool = True) -> None:
        """Use the outbox even where others deliver, and say who sees it over REST."""
        self.require_open()
        self.admin_role, self.routes = admin_role, routes
        self._enabled = True

    def use(self) -> None:
        """Have the tables of the outbox and the inbox, for a part that stores something in them."""
        self.require_open()
        self._enabled = True

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds that have a handler here; None for every kind."""
        return self._handlers.kinds

    # -- being wired

    @property
    def handlers(self) -> MessageHandlers:
        """The handlers that are declared here."""
        return self._handlers

    @property
    def is_used(self) -> bool:
        return self._enabled or bool(self._handlers)

    def models(self) -> Sequence[type[Model]]:
        return (OutboxMessage, InboxMessage) if self.is_used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "outbox", dialect) if self.is_used else ()

    def problems(self) -> list[str]:
        option_problems = [*role_problems(self.admin_role), *switch_problems(routes=self.routes)]
        return [*self._handlers.problems(), *(f"outbox.enable: {problem}" for problem in option_problems)]

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self.store = self.inbox.store = OutboxStore(environment.adapter)
        self._handlers.sealing = environment.runs.sealing
        self._handlers.bind_caller = environment.runs.bind_caller
        self._handlers.tracing = environment.runs.tracing
        self._workers.clear()
        if self.is_used:
            environment.metrics.gauge("outbox_pending", self._pending)
            environment.metrics.gauge("outbox_unhandled", self._unhandled_by_kind)
            environment.metrics.gauge("outbox_oldest_seconds", self._oldest)
            environment.metrics.gauge("outbox_dead", self._dead)

    def services(self) -> Sequence[Service]:
        if not self.is_used:
            return ()
        environment = self.require_sealed()
        services: list[Service] = [self.worker()] if self._handlers else []
        services.extend(keeper_of(environment, (MESSAGES,), self.store))
        if environment.config.outbox_retention:
            services.append(
                MessagePruner(
                    self.store, environment.config.outbox_retention, environment.clock, environment.logger
                )
            )
        return services

    # -- producing

    async def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        key: str | None = None,
        about: Model | str | None = None,
        subjects: Sequence[str] = (),
        tx: Tx | None = None,
        outside_transaction: bool = False,
        encrypted: bool | str | None = None,
    ) -> Message:
        """Store a message in the open transaction, or the one handed over; it leaves when that commits.

        `about` is the record that it tells about: the `subject` of its CloudEvent. `subjects` are the persons
        it is about, whose erasure blanks it. `encrypted`, True or a key id, is said where the handler of the
        kind, which says it too, is in another process.
        """
        [message] = await self.enqueue_many(
            kind,
            [payload],
            keys=[key],
            about=about,
            subjects=subjects,
            tx=tx,
            outside_transaction=outside_transaction,
            encrypted=encrypted,
        )
        return message

    async def enqueue_many(
        self,
        kind: str,
        payloads: Sequence[Any],
        *,
        keys: Sequence[str | None] | None = None,
        about: Model | str | None = None,
        subjects: Sequence[str] = (),
        tx: Tx | None = None,
        outside_transaction: bool = False,
        encrypted: bool | str | None = None,
    ) -> list[Message]:
        """Store several messages of one kind, in this order; `keys` are as many as `payloads`."""
        producer_tx = self._producer_tx(tx, outside_transaction)
        row_keys = [None] * len(payloads) if keys is None else keys
        kind_text = _kind(kind) if payloads else kind
        subject = subject_of(about)
        key_id = self._key_id_for(kind_text, encrypted)
        rows = [
            NewMessage(new_id(), kind_text, _key(key), self._text(kind_text, payload, key_id), subject)
            for payload, key in zip(payloads, row_keys, strict=True)
        ]
        return await self._insert(rows, [key_id] * len(rows), payloads, producer_tx, subjects)

    async def enqueue_drafts(
        self, *drafts: Draft, tx: Tx | None = None, outside_transaction: bool = False
    ) -> list[Message]:
        """Store messages of any kinds with one statement, in this order."""
        producer_tx = self._producer_tx(tx, outside_transaction)
        key_ids = [self._key_id_for(draft.kind, draft.encrypted) for draft in drafts]
        rows = [
            NewMessage(
                new_id(),
                _kind(d.kind),
                _key(d.key),
                self._text(d.kind, d.payload, key_id),
                subject_of(d.about),
            )
            for d, key_id in zip(drafts, key_ids, strict=True)
        ]
        return await self._insert(rows, key_ids, [draft.payload for draft in drafts], producer_tx)

    def _key_id_for(self, kind: str, encrypted: bool | str | None) -> str | None:
        """The key id under which a message of this kind is stored; its handler's counts in any case."""
        handler = self._handlers.of(kind)
        return chosen_key_id(encrypted, None if handler is None else handler.encrypted)

    def _text(self, kind: str, payload: Any, key_id: str | None) -> str:
        """The text to store, from which the handler of the kind, if it is here, reads the same payload."""
        to_seal, handler = key_id is not None, self._handlers.of(kind)
        text = encode(payload, "payload", to_seal=to_seal)
        if handler is None or handler.payload is None:
            return text
        return handler.payload.write(payload, text, to_seal=to_seal)

    async def _seal(self, rows: Sequence[NewMessage], key_ids: Sequence[str | None]) -> list[NewMessage]:
        """New messages as they are stored."""
        keep = self._handlers.sealing.keep
        return [
            row._replace(text=await keep(row.text, key_id, PAYLOAD, row.id))
            for row, key_id in zip(rows, key_ids, strict=True)
        ]

    async def _insert(
        self,
        rows: Sequence[NewMessage],
        key_ids: Sequence[str | None],
        payloads: Sequence[Any],
        tx: Tx | None,
        subjects: Sequence[str] = (),
    ) -> list[Message]:
        if not rows:
            return []
        environment = self._environment
        assert environment is not None  # `_producer_tx` has asked for it
        now, who = environment.clock.now(), caller()
        stored_rows = await self._seal(rows, key_ids)
        if subjects:
            await self._insert_about(read_subjects(subjects, environment.stores), stored_rows, now, who, tx)
        else:
            await self.store.enqueue(tx or environment.adapter, stored_rows, now, who)
        if len(rows) == 1:  # for which a Counter would cost more than all the rest here
            environment.metrics.add("outbox_enqueued_total", kind=rows[0].kind)
        else:
            for kind, number in Counter(row.kind for row in rows).items():
                environment.metrics.add("outbox_enqueued_total", number, kind=kind)
        self._wake_after(tx)
        return [
            Message(
                row.id,
                row.kind,
                row.key,
                payload,
                0,
                now,
                row.text,
                actor_id=who.actor_id,
                tenant_id=who.tenant_id,
                about=row.about,
                trace_id=who.trace_id,
                traceparent=who.traceparent,
            )
            for row, payload in zip(rows, payloads, strict=True)
        ]

    async def _insert_about(
        self, subjects: Sequence[str], rows: Sequence[NewMessage], now: datetime, who: Caller, tx: Tx | None
    ) -> None:
        """Store messages and whom they are about, together."""
        environment = self.require_sealed()
        if tx is None:
            async with transaction(environment.adapter) as own_tx:
                await self._insert_about(subjects, rows, now, who, own_tx)
            return
        await self.store.enqueue(tx, rows, now, who)
        store = environment.stores[WorkSubject]
        await note_subjects(tx, store, "message", [row.id for row in rows], subjects, now)

    def _producer_tx(self, tx: Tx | None, outside_transaction: bool) -> Tx | None:
        environment = self.require_sealed()
        producer_tx = tx or current_tx(environment.adapter)
        if producer_tx is None and not outside_transaction:
            raise TransactionError(
                "TX_REQUIRED",
                "a message is enqueued inside the transaction of what it tells about:"
                " `async with server.transaction():`; outside_transaction=True says that there is none",
            )
        return producer_tx

    def _wake_after(self, tx: Tx | None) -> None:
        """Wake the workers of this process once the message can be seen."""
        if tx is None:
            self._wake()
        elif self._workers:
            tx.after_commit(self._wake)

    def _wake(self) -> None:
        for worker in tuple(self._workers):
            worker.wake()

    async def redrive(self, message_id: str, *, tx: Tx | None = None) -> bool:
        """Put a dead message back, with all its attempts; False when there is no such dead message."""
        environment = self.require_sealed()
        open_tx = tx or current_tx(environment.adapter)
        was_dead = await self.store.redrive(
            open_tx or environment.adapter, message_id, environment.clock.now()
        )
        self._wake_after(open_tx)
        return was_dead

    # -- delivering

    def drainer(self, batch: int | None = None, concurrency: int = 1) -> Drainer:
        """A relay for one pass: `await drainer.drain()` delivers until nothing is left to claim."""
        environment = self.require_sealed()
        return Drainer(environment.adapter, lambda: self._dispatcher(batch, concurrency, everywhere=True))

    def worker(self, batch: int | None = None, concurrency: int = 1) -> OutboxWorker:
        """A relay that stays: start and stop it as a service, or `await worker.run()`.

        Messages are delivered one by one in the order of enqueueing; with more `concurrency`, that many
        at once, though never two of a key.
        """
        environment = self.require_sealed()
        worker = OutboxWorker(
            self.store,
            lambda stopping: self._dispatcher(batch, concurrency, stopping),
            environment.clock,
            environment.config.outbox_poll_interval,
            environment.logger,
            environment.metrics,
        )
        self._workers.add(worker)
        return worker

    def _dispatcher(
        self,
        batch: int | None,
        concurrency: int,
        stopping: Callable[[], bool] = lambda: False,
        *,
        everywhere: bool = False,
    ) -> Dispatcher:
        environment = self.require_sealed()
        config = environment.config
        policy = Policy(
            owner=f"{socket.gethostname()}:{os.getpid()}:{next(_relays)}",
            batch=config.outbox_batch_size if batch is None else _positive("batch", batch),
            concurrency=_positive("concurrency", concurrency),
            max_attempts=config.outbox_max_attempts,
            backoff=Backoff(config.outbox_base_backoff, LONGEST_BACKOFF, jitter=0),
            lease=config.work_lease,
            grace=config.shutdown_timeout,
        )
        clock, logger, metrics = environment.clock, environment.logger, environment.metrics
        notes = RelayNotes(clock, logger, metrics)
        relay = Relay(self._handlers, policy, clock, logger, metrics, notes)
        return Dispatcher(self.store, relay, stopping, everywhere=everywhere)

    # -- numbers

    async def _pending(self) -> list[tuple[Labels, float]]:
        return [((("kind", kind),), float(waiting)) for kind, waiting, _ in await self.store.depth()]

    async def _unhandled_by_kind(self) -> list[tuple[Labels, float]]:
        return [
            ((("kind", kind),), float(waiting))
            for kind, waiting, _ in await self.store.depth()
            if self._handlers.of(kind) is None and not kind.startswith(OF_GROUPS)
        ]

    async def _oldest(self) -> list[tuple[Labels, float]]:
        environment = self.require_sealed()
        now = environment.clock.now()
        ages = [(now - since).total_seconds() for _, _, since in await self.store.depth()]
        return [((), max(ages, default=0.0))]

    async def _dead(self) -> list[tuple[Labels, float]]:
        return [((), float(await self.store.dead()))]


def _kind(kind: Any) -> str:
    if not _is_text(kind) or not kind or kind == "*":
        raise ValidationFailed(
            f"{kind!r} is not a kind of message",
            [{"field": "kind", "message": "is a text such as order.placed"}],
        )
    return str(kind)


def _key(key: Any) -> str | None:
    if key is not None and not _is_text(key):
        raise ValidationFailed(f"{key!r} is not a key", [{"field": "key", "message": "is a text or None"}])
    return None if key is None else str(key)


def _is_text(value: Any) -> bool:
    """Whether every database can store it as text."""
    return isinstance(value, str) and clean(value, len(value)) == value


def _positive(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise DeclarationError(f"outbox {name}: {value!r} is not a positive whole number")
    return value
