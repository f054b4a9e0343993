"""Records of who did what, and the sinks that get them: their seam, and the one that writes log lines.

Values of a record are those of JSON, and none of them is secret.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from maniflex._callables import explain_class
from maniflex.db.port import Tx


class FieldChange(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One field of a record, before and after a write; in JSON `{"from": …, "to": …}`."""

    from_: Any = None
    to: Any = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One write that is committed.

    A sink may get it twice, with the same `id`. `result` is the record after the write, of a delete the one
    that was deleted; `changes` is None unless they were asked for.
    """

    id: str
    timestamp: datetime
    model: str
    operation: str  # create, update, delete or restore
    resource_id: str
    actor: str | None = None
    tenant_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    source: str = "code"
    reason: str | None = None
    result: dict[str, Any] | None = None
    changes: dict[str, FieldChange] | None = None


class ReadAuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that showed records: `record_id` says which one, `record_count` how many."""

    id: str
    timestamp: datetime
    model: str | None
    operation: str
    record_id: str | None = None
    record_count: int | None = None
    actor: str | None = None
    roles: list[str] = msgspec.field(default_factory=list)
    tenant_id: str | None = None
    session_id: str | None = None
    auth_method: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    client_ip: str | None = None
    user_agent: str | None = None


class ActionAuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One action that was done; `body` has the fields of its body that were asked for."""

    id: str
    timestamp: datetime
    action: str
    method: str
    path: str  # as it was declared
    params: dict[str, str] = msgspec.field(default_factory=dict)
    status: int = 200
    actor: str | None = None
    tenant_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    body: dict[str, Any] | None = None


AnyRecord = AuditRecord | ReadAuditRecord | ActionAuditRecord


# Where records go.


LIMIT = 5.0  # seconds that a sink has for a record, unless the outbox delivers it


class SinkDelivery(StrEnum):
    """How a record gets to its sink."""

    TRANSACTION = "transaction"  # in the transaction of the write; a sink that fails fails the write
    OUTBOX = "outbox"  # stored in that transaction, delivered later, at least once
    BACKGROUND = "background"  # after the commit, beside the answer; lost with the process


@runtime_checkable
class AuditSink(Protocol):
    """A place for records."""

    def write(self, record: Any, /) -> Awaitable[object] | object:
        """Keep the record; async, or plain and then called on a thread. One it has by its id it may drop."""


class RecordCourier(Protocol):
    """Brings records to a sink in one of the ways of delivery."""

    async def deliver(self, records: Sequence[AnyRecord], tx: Tx | None) -> None:
        """Take the records of this transaction, or of none."""


@explain_class
class LogSink:
    """Writes each record as one line of a log, in JSON."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("maniflex.audit") if logger is None else logger

    async def write(self, record: AnyRecord) -> None:
        """Write the line."""
        self._logger.info("audit %s", msgspec.json.encode(record).decode())
