"""The tables of the feed, as ordinary models: the log of events, where it stands, and who takes events.

Their statements are in `background/sql`; a model here is how REST, filters, OpenAPI and code read them.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import JsonValue

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of

HANDLER, BRIDGE, TAKER = "handler", "bridge", "taker"  # kinds of groups; a taker makes rows of its own


class LoggedEvent(Model, table="event_log"):
    """An event of the feed: what happened, to which record, and where it stands among all others."""

    __append_only__: ClassVar = True
    __shows_unreadable__: ClassVar = True

    seq: int = field(default=0, hidden=True)  # the order of writing, of those that have no position yet
    position: int | None = field(default=None, filterable=True, sortable=True)  # given after the commit
    event_id: str = field(filterable=True, relation=None)
    type: str = field(filterable=True, sortable=True)
    source: str = field(filterable=True)
    subject: str | None = field(default=None, filterable=True)
    time: datetime = field(filterable=True, sortable=True)
    key: str | None = field(default=None, filterable=True)
    model: str | None = field(default=None, filterable=True)
    operation: str | None = field(default=None, filterable=True)
    record_id: str | None = field(default=None, filterable=True, relation=None)
    actor_id: str | None = field(default=None, filterable=True, relation=None)
    tenant_id: str | None = field(default=None, filterable=True, relation=None)
    traceparent: str | None = field(default=None)
    schema_version: int = field(default=0)
    changed: str | None = field(default=None)  # names of fields, with commas between them
    headers: JsonValue | None = field(default=None)
    dataref: str | None = field(default=None)
    data: JsonValue | None = field(default=None)
    erased: bool = field(default=False, filterable=True)
    scope: JsonValue | None = field(default=None, hidden=True)  # digests of hidden fields


class EventPosition(Model, table="event_position", headless=True):
    """Where the feed stands: one row."""

    epoch: str  # positions of another epoch mean other events
    last: int = field(default=0)
    pruned: int = field(default=0)  # the last position of those that were removed: cursors before it are gone
    scope_key: str | None = field(default=None, hidden=True)  # what digests of hidden fields are made with


class EventGroup(
    Model,
    table="event_group",
    indices=[Index(("name",), unique=True, name="event_group_name_idx")],
):
    """Somebody who takes events: a group of handlers, or a bridge to a broker."""

    __table_rules__: ClassVar = TableRules(
        checks={"event_group_kind_check": is_one_of("kind", (HANDLER, BRIDGE, TAKER))}
    )

    name: str = field(filterable=True, sortable=True, readonly=True)
    kind: str = field(default=HANDLER, filterable=True, readonly=True)
    patterns: list[str] = field(default_factory=list, readonly=True)
    is_ordered: bool = field(default=True, readonly=True)
    # Everything up to here was handed on: to the outbox, or by a bridge to its broker.
    position: int = field(default=0, filterable=True, sortable=True, readonly=True)
    paused: bool = field(default=False, filterable=True, readonly=True)
    served_at: datetime | None = field(
        default=None, filterable=True, readonly=True
    )  # by a process with its code
    lease: str | None = field(default=None, hidden=True)
    lease_until: datetime | None = field(default=None, hidden=True)
