"""Brings audit records to their sinks: in the write's transaction, by the outbox, or after the commit."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from maniflex._callables import is_async
from maniflex._fence import describe
from maniflex.audit.records import ActionAuditRecord, AnyRecord, AuditRecord, ReadAuditRecord
from maniflex.audit.sinks import LIMIT
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.background.threads import DaemonThreads, on_thread
from maniflex.db.port import Tx

KIND = "maniflex.audit"
_KINDS: dict[str, type[AnyRecord]] = {
    "write": AuditRecord,
    "read": ReadAuditRecord,
    "action": ActionAuditRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
StartTask = Callable[[Callable[[], Any], str], None]

MOST_THREADS = 8  # of a plain sink


class SinkCaller:
    """Calls the sink of one entry, and counts its failures."""

    def __init__(self, entry: str, sink: Any, metrics: Metrics, logger: logging.Logger) -> None:
        self.entry = entry
        self.sink = sink
        # Its own: a plain sink that hangs must not keep other sinks and handlers from a thread.
        self._threads = DaemonThreads(MOST_THREADS, "maniflex-audit")
        self._metrics = metrics
        self._logger = logger

    async def write(self, record: AnyRecord) -> None:
        """Hand the record to the sink; its errors are the caller's."""
        write = self.sink.write
        outcome = write(record) if is_async(write) else await on_thread(partial(write, record), self._threads)
        if inspect.isawaitable(outcome):
            await outcome

    async def write_in_time(self, record: AnyRecord) -> None:
        """The same; `TimeoutError` when it takes too long."""
        async with asyncio.timeout(LIMIT):
            await self.write(record)

    def note_failure(self, error: BaseException, count: int = 1) -> None:
        """Count and log records that their sink did not take."""
        self._metrics.add("audit_failed_total", count, entry=self.entry)
        records = "a record" if count == 1 else f"{count} records"
        self._logger.error("%s: %s did not reach the sink: %s", self.entry, records, describe(error))


class InTransaction:
    """The sink writes while the transaction is open, so that a write without its record is rolled back."""

    def __init__(self, sink: SinkCaller) -> None:
        self._sink = sink
        self._write_many = getattr(sink.sink, "write_many", None)

    async def deliver(self, records: Sequence[AnyRecord], tx: Tx | None) -> None:
        if tx is not None and self._write_many is not None:
            await self._write_many(records, tx)
            return
        for record in records:
            await self._sink.write_in_time(record)


class ByOutbox:
    """Stored as messages in the transaction of the write, and delivered by a relay, at least once."""

    def __init__(self, outbox: Outbox, address: str) -> None:
        self._outbox = outbox
        self._address = address

    async def deliver(self, records: Sequence[AnyRecord], tx: Tx | None) -> None:
        payloads = [
            {"to": self._address, "kind": _NAMES[type(record)], "record": msgspec.to_builtins(record)}
            for record in records
        ]
        await self._outbox.enqueue_many(KIND, payloads, tx=tx, outside_transaction=tx is None)


class InBackground:
    """A task after the commit: quick, and lost with the process."""

    def __init__(self, sink: SinkCaller, start_task: StartTask) -> None:
        self._sink = sink
        self._start_task = start_task

    async def deliver(self, records: Sequence[AnyRecord], tx: Tx | None) -> None:
        start = partial(self._start_task, partial(self._write, records), "audit")
        if tx is None:
            start()
        else:
            tx.after_commit(start)

    async def _write(self, records: Sequence[AnyRecord]) -> None:
        for place, record in enumerate(records):
            try:
                await self._sink.write_in_time(record)
            except TimeoutError as error:  # the others would wait as long
                self._sink.note_failure(error, len(records) - place)
                return
            except Exception as error:
                self._sink.note_failure(error)
            except asyncio.CancelledError as error:  # the shutdown deadline
                self._sink.note_failure(error, len(records) - place)
                raise


def read_message(message: Message) -> tuple[str, AnyRecord]:
    """The address of the sink and the record of a message."""
    payload: Any = message.payload
    return payload["to"], msgspec.convert(payload["record"], _KINDS[payload["kind"]])
