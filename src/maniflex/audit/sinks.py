"""Where records go: the seam, and the sink that writes log lines."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from maniflex._callables import explain_class
from maniflex.audit.records import AnyRecord
from maniflex.db.port import Tx

LIMIT = 5.0  # seconds that a sink has for a record, unless the outbox delivers it


class Delivery(StrEnum):
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
