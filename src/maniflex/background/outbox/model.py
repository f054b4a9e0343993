"""The tables of the outbox and the inbox, as ordinary models.

Their statements are in `background/sql`; a model here is how REST, filters, OpenAPI and code read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import JsonValue

from maniflex._caller import Caller
from maniflex.background.leases import Held
from maniflex.background.parameters import instant
from maniflex.db.port import Row
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of
from maniflex.sql.statement import Sql

PAYLOAD = "outbox_event.payload"  # what the payloads of encrypted messages are bound to
LAST_ERROR = "outbox_event.last_error"


class MessageStatus(StrEnum):
    """What became of a message; `common/outbox.sql` draws how one follows from the other."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class OutboxMessage(Model, table="outbox_event"):
    """A message on its way: what it says, how often it was tried and what became of it."""

    __table_rules__: ClassVar = TableRules(
        checks={"outbox_event_status_check": is_one_of("status", tuple(MessageStatus))}
    )

    __shows_unreadable__: ClassVar = True

    # A relay's claim is no part of what a message says, so a message may be a payload or a result.
    __omitted__: ClassVar = frozenset({"lease", "claimed_with"})

    __sealed__: ClassVar = {"payload": ("id",), "last_error": ("id",)}

    seq: int = field(default=0, filterable=True, sortable=True)  # the order of enqueueing
    kind: str = field(filterable=True, sortable=True)
    key: str | None = field(default=None, filterable=True)
    about: str | None = field(default=None, filterable=True)  # a record, as `order/<id>`
    payload: JsonValue | None = field(default=None)
    actor_id: str | None = field(default=None, filterable=True, relation=None)  # who enqueued it
    tenant_id: str | None = field(default=None, filterable=True, relation=None)
    trace_id: str | None = field(default=None, filterable=True, relation=None)
    traceparent: str | None = field(default=None)  # the span that enqueued it
    raw: str | None = field(default=None)  # of a dead message whose payload is not JSON
    status: MessageStatus = field(default=MessageStatus.PENDING, filterable=True, sortable=True)
    attempts: int = field(default=0, filterable=True, sortable=True)
    last_error: str | None = field(default=None)
    retry_at: datetime = field(filterable=True, sortable=True)  # not before
    lease: str | None = field(default=None, hidden=True)
    lease_until: datetime | None = field(default=None, filterable=True)
    leased_by: str | None = field(default=None, filterable=True)
    # How many messages its last claim took; 0 when it was taken alone, after a relay that died with it.
    claimed_with: int = field(default=0, hidden=True)
    published_at: datetime | None = field(default=None, filterable=True, sortable=True)


class InboxMessage(
    Model,
    table="inbox_message",
    headless=True,
    indices=[Index(("consumer", "message_id"), unique=True, name="inbox_message_once_idx")],
):
    """A message a consumer has dealt with."""

    consumer: str
    message_id: str = field(relation=None)


# Messages of the outbox as relays claim and settle them.


class NewMessage(NamedTuple):
    """A message to be stored."""

    id: str
    kind: str
    key: str | None
    text: str  # its payload
    about: str | None


class ClaimedMessage(NamedTuple):
    """A message that is ours until its lease ends."""

    id: str
    seq: int
    kind: str
    key: str | None
    stored: str | bytes
    attempts: int
    created_at: datetime
    orphaned: bool  # the relay that had it before died with it
    last_error: str | None = None  # of the attempt before
    actor_id: str | None = None  # who enqueued it
    tenant_id: str | None = None
    about: str | None = None  # the record it tells about
    trace_id: str | None = None
    traceparent: str | None = None

    @classmethod
    def of(cls, row: Row) -> ClaimedMessage:
        """The message of a row that the statement `claim` returned."""
        id, seq, kind, key, payload, attempts, created_at, claimed_with, last_error, *rest = row
        content = b"" if payload is None else payload
        moment, is_orphan = instant(created_at), claimed_with == 0
        return cls(id, seq, kind, key, content, attempts, moment, is_orphan, last_error, *rest)

    @property
    def caller(self) -> Caller:
        """Who enqueued it."""
        return Caller(self.actor_id, self.tenant_id, self.trace_id, traceparent=self.traceparent)


@dataclass(slots=True)
class Batch:
    """The messages of one claim, in the order of enqueueing; `until` moves on with every renewal."""

    lease: str
    until: datetime
    messages: list[ClaimedMessage]
    due_kinds: Sequence[str] = ()  # those it was claimed from, where they were looked up

    def held_leases(self) -> list[Held]:
        return [Held(message.id, self.lease) for message in self.messages]


Letter = Callable[[datetime], Sql]  # of the moment at which the death of its message is written


class MessageChange(NamedTuple):
    """The change of the row of a message that was not delivered."""

    id: str
    status: MessageStatus
    retry_at: datetime | None = None
    unspent: int = 0  # 1: this attempt does not count
    last_error: str | None = None
    raw: str | None = None  # of a payload that is not JSON
    key: str | None = None
    letter: Letter | None = None  # what is written with its death; it counts as delivered then

    @property
    def stored_status(self) -> MessageStatus:
        """The status of the row: a message whose letter is written is done with."""
        return self.status if self.letter is None else MessageStatus.DELIVERED


@dataclass(slots=True)
class Settlement:
    """The outcomes of some messages of a batch."""

    batch: Batch
    delivered: list[str]
    changes: list[MessageChange]
    messages: list[ClaimedMessage]
    keys: list[str]  # of which nothing of the batch is open any more
    forgotten: Sequence[str] = ()  # delivered ones that keep no payload


class Claim(NamedTuple):
    """What a relay asks for."""

    owner: str
    kinds: tuple[str, ...] | None  # None: all of them, but for those of the framework
    limit: int
    until: datetime
    takes_over: bool = True  # messages whose lease ran out, too
    due_kinds: Sequence[str] = ()  # of a claim just before, which need not be looked up again
    everywhere: bool = False  # also in partitions where nothing was pending
    named_kinds: frozenset[str] = frozenset()  # where it takes all: the framework's that it takes, too
