"""Messages of the outbox as relays claim and settle them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from maniflex._caller import Caller
from maniflex.background.json_text import instant
from maniflex.background.leases import Held
from maniflex.background.outbox.model import MessageStatus
from maniflex.db.port import Row


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


class MessageChange(NamedTuple):
    """The change of the row of a message that was not delivered."""

    id: str
    status: MessageStatus
    retry_at: datetime | None = None
    unspent: int = 0  # 1: this attempt does not count
    last_error: str | None = None
    raw: str | None = None  # of a payload that is not JSON
    key: str | None = None


@dataclass(slots=True)
class Settlement:
    """The outcomes of some messages of a batch."""

    batch: Batch
    delivered: list[str]
    changes: list[MessageChange]
    messages: list[ClaimedMessage]
    keys: list[str]  # of which nothing of the batch is open any more


class Claim(NamedTuple):
    """What a relay asks for."""

    owner: str
    kinds: tuple[str, ...] | None  # None: all of them
    limit: int
    until: datetime
    takes_over: bool = True  # messages whose lease ran out, too
    due_kinds: Sequence[str] = ()  # of a claim just before, which need not be looked up again
    everywhere: bool = False  # also in partitions where nothing was pending
