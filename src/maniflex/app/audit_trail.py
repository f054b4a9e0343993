"""Wires audit entries to their sinks: tables, the outbox and background tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from maniflex.app.entry_tables import Use
from maniflex.audit.sinks import Delivery, RecordCourier
from maniflex.audit.tables import TABLES, TableSink
from maniflex.background.audit_delivery import (
    KIND,
    ByOutbox,
    InBackground,
    InTransaction,
    SinkCaller,
    StartTask,
    read_message,
)
from maniflex.background.environment import Environment
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.db.store import Store
from maniflex.middleware.db.audit_entry import AuditEntry
from maniflex.model.base import Model
from maniflex.pipeline.entry import ListeningEntry
from maniflex.pipeline.runtime import Runtime


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
        if not self._has_handler and any(entry.delivery is Delivery.OUTBOX for entry, _ in self._uses):
            self._outbox.handler(KIND)(self._deliver)
            self._has_handler = True

    def routed_tables(self) -> Mapping[type[Model], str]:
        """The tables that are read over REST, each with the role that reads it."""
        return {
            entry.table: entry.sink.admin_role
            for entry, _ in self._uses
            if isinstance(entry.sink, TableSink) and entry.sink.routes
        }

    def problems(self, runtime: Runtime) -> Iterator[str]:
        """Models whose rows are not in the database of the outbox, and tables with two roles."""
        for entry, names in self._uses:
            if entry.delivery is Delivery.OUTBOX and isinstance(entry, ListeningEntry):
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
            case Delivery.TRANSACTION:
                return InTransaction(sink)
            case Delivery.OUTBOX:
                return ByOutbox(self._outbox, address)
            case Delivery.BACKGROUND:
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
