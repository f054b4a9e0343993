"""Brings audit records to their sinks: in the write's transaction, by the outbox, or after the commit.

`AuditTrail` is a part of the server: it gives every entry the way to its sink.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from maniflex._callables import is_async
from maniflex._fence import describe
from maniflex._threads import DaemonThreads, on_thread
from maniflex.audit.entries import AuditEntry, AuditLog
from maniflex.audit.records import (
    LIMIT,
    ActionAuditRecord,
    AnyRecord,
    AuditRecord,
    ReadAuditRecord,
    RecordCourier,
    SinkDelivery,
)
from maniflex.audit.tables import TABLES, TableSink
from maniflex.background.environment import Environment
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.db.port import Tx
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.pipeline.entry import Entry, ListeningEntry
from maniflex.pipeline.runtime import Runtime

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


Use = tuple[Entry, frozenset[str] | None]  # an entry and the models it is registered for; None: all


class AuditTrail:
    """The audit entries of one server."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._uses: list[tuple[AuditEntry, frozenset[str] | None]] = []
        self._sinks: dict[str, SinkCaller] = {}
        self._has_handler = False

    def collect(self, uses: Sequence[Use]) -> None:
        """Find the audit entries, and have the outbox deliver where one of them asks for it."""
        self._uses = [(entry, names) for entry, names in uses if isinstance(entry, AuditEntry)]
        if not self._has_handler and any(entry.delivery is SinkDelivery.OUTBOX for entry, _ in self._uses):
            self._outbox.handler(KIND)(self._deliver)
            self._has_handler = True

    def routed_tables(self) -> Mapping[type[Model], str]:
        """The tables that are read over REST, each with the role that reads it."""
        return {
            entry.table: entry.sink.admin_role
            for entry, _ in self._uses
            if isinstance(entry.sink, TableSink) and entry.sink.routes
        }

    async def note_export(self, subject: str, actor: str | None, reason: str | None) -> None:
        """Tell the sinks of writes that all that is kept of a person was handed out."""
        entries = {id(entry.sink): entry for entry, _ in self._uses if isinstance(entry, AuditLog)}
        for entry in entries.values():
            await entry.deliver_in_time(
                AuditRecord(
                    **entry.common_values(),
                    model="",
                    operation="export",
                    resource_id=subject,
                    actor=actor,
                    reason=reason,
                )
            )

    def problems(self, runtime: Runtime) -> Iterator[str]:
        """Models whose rows are not in the database of the outbox, and tables with two roles."""
        for entry, names in self._uses:
            if entry.delivery is SinkDelivery.OUTBOX and isinstance(entry, ListeningEntry):
                for store in runtime.stores.values():
                    if _is_meant(store, names) and store.adapter is not runtime.adapter:
                        yield (
                            f"pipeline.db: {entry.name}: {store.meta.name} is in a database"
                            ' without the outbox; use delivery="background" or "transaction" for it'
                        )
        roles: dict[type[Model], str] = {}
        for entry, _ in self._uses:
            if isinstance(entry.sink, TableSink) and entry.sink.routes:
                role = roles.setdefault(entry.table, entry.sink.admin_role)
                if role != entry.sink.admin_role:
                    yield (
                        f"{entry.name}: two sinks let different roles read one table:"
                        f" {role!r} and {entry.sink.admin_role!r}"
                    )

    def attach(self, environment: Environment, start_task: StartTask) -> None:
        """The server is sealed: bring every entry to its sink."""
        tables = [environment.stores[t].meta for t in TABLES.values() if t in environment.stores]
        for entry, _ in self._uses:
            if isinstance(entry.sink, TableSink):
                entry.sink.attach(environment.adapter, tables)
            sink = SinkCaller(entry.name, entry.sink, environment.metrics, environment.logger)
            # The same in every process, and after a restart.
            address = f"{entry.label} {entry.number}"
            self._sinks[address] = sink
            entry.attach(
                self._courier(entry, sink, address, start_task),
                environment.clock,
                environment.config.service_name,
                sink.note_failure,
            )

    def _courier(
        self, entry: AuditEntry, sink: SinkCaller, address: str, start_task: StartTask
    ) -> RecordCourier:
        match entry.delivery:
            case SinkDelivery.TRANSACTION:
                return InTransaction(sink)
            case SinkDelivery.OUTBOX:
                return ByOutbox(self._outbox, address)
            case SinkDelivery.BACKGROUND:
                return InBackground(sink, start_task)

    async def _deliver(self, message: Message) -> None:
        address, record = read_message(message)
        sink = self._sinks.get(address)
        if sink is None:
            raise LookupError(f"this server has no {address}")
        await sink.write(record)


def _is_meant(store: Store, names: frozenset[str] | None) -> bool:
    meta = store.meta
    is_stored = meta.options.query is None and meta.options.backend is None and not meta.is_internal
    return is_stored if names is None else meta.name in names
