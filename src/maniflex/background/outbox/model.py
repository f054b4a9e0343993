"""The tables of the outbox and the inbox, as ordinary models.

Their statements are in `background/sql`; a model here is how REST, filters, OpenAPI and code read them.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from pydantic import JsonValue

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of


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
