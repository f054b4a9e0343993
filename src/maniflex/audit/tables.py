"""The sink that keeps records in tables beside the rows they tell of.

Rows are added and never changed; a record that comes twice is kept once, by its id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import msgspec
import sqlalchemy as sa

from maniflex._callables import explain_class
from maniflex.audit.records import ActionAuditRecord, AnyRecord, AuditRecord, ReadAuditRecord
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.errors import DatabaseError
from maniflex.model.base import Model
from maniflex.model.class_body import utc_now
from maniflex.model.field import field
from maniflex.model.meta import Index, ModelMeta
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.write import insert_behind, insert_many

AT_ONCE = 50  # rows of one statement


class AuditRow(Model, abstract=True):
    """What the rows of all three tables have."""

    __append_only__: ClassVar = True

    timestamp: datetime = field(filterable=True, sortable=True, index=True)
    actor: str | None = field(default=None, filterable=True)
    tenant_id: str | None = field(default=None, filterable=True, relation=None)
    request_id: str | None = field(default=None, filterable=True, relation=None)
    trace_id: str | None = field(default=None, filterable=True, relation=None)
    service_name: str = field(default="", filterable=True)
    # The time of the row itself; what clients look for is `timestamp`.
    created_at: datetime = field(default_factory=utc_now, hidden=True, filterable=False, sortable=False)
    updated_at: datetime = field(default_factory=utc_now, hidden=True, filterable=False, sortable=False)


class AuditLogRow(
    AuditRow,
    table="audit_log",
    indices=[Index(("actor", "timestamp")), Index(("model", "resource_id", "timestamp"))],
):
    """One committed write: who changed which record, and how."""

    model: str = field(filterable=True)
    operation: str = field(filterable=True)
    resource_id: str = field(filterable=True, relation=None)
    source: str = field(default="code", filterable=True)
    reason: str | None = field(default=None)
    result: dict[str, Any] | None = field(default=None)
    changes: dict[str, Any] | None = field(default=None)


class ReadAuditLogRow(
    AuditRow,
    table="read_audit_log",
    indices=[Index(("actor", "timestamp")), Index(("model", "record_id", "timestamp"))],
):
    """One answer that showed records, and to whom."""

    model: str | None = field(default=None, filterable=True)
    operation: str = field(filterable=True)
    record_id: str | None = field(default=None, filterable=True, relation=None)
    record_count: int | None = field(default=None, filterable=True)
    roles: list[str] = field(default_factory=list)
    session_id: str | None = field(default=None, filterable=True, relation=None)
    auth_method: str | None = field(default=None, filterable=True)
    client_ip: str | None = field(default=None, filterable=True)
    user_agent: str | None = field(default=None)


class ActionAuditLogRow(AuditRow, table="action_audit_log", indices=[Index(("actor", "timestamp"))]):
    """One action that was done, and by whom."""

    action: str = field(filterable=True)
    method: str = field(filterable=True)
    path: str = field(filterable=True)
    params: dict[str, str] = field(default_factory=dict)
    status: int = field(filterable=True)
    body: dict[str, Any] | None = field(default=None)


TABLES: Mapping[type[AnyRecord], type[AuditRow]] = {
    AuditRecord: AuditLogRow,
    ReadAuditRecord: ReadAuditLogRow,
    ActionAuditRecord: ActionAuditLogRow,
}


@explain_class
class TableSink:
    """Keeps records in `audit_log`, `read_audit_log` or `action_audit_log`, by their kind.

    With `routes` people with `admin_role` read the tables over REST: those of a tenant see its records.
    """

    def __init__(self, routes: bool = False, *, admin_role: str = "admin") -> None:
        self.routes = routes
        self.admin_role = admin_role
        self.mistakes = list(_mistakes(routes, admin_role))
        self._adapter: Adapter | None = None
        self._metas: dict[type[Model], ModelMeta] = {}
        self._statements: dict[tuple[type[Model], Dialect], ModelSql] = {}

    def attach(self, adapter: Adapter, metas: Collection[ModelMeta]) -> None:
        """The server is sealed: here are its database and the tables."""
        self._adapter = adapter
        self._metas = {meta.cls: meta for meta in metas}
        self._statements.clear()

    async def write(self, record: AnyRecord) -> None:
        """Add the record to its table, in the open transaction if there is one."""
        if self._adapter is None:
            raise DatabaseError("a TableSink writes once the server that it is registered on is started")
        await self._add([record], executor(self._adapter))

    async def write_many(self, records: Sequence[AnyRecord], tx: Tx) -> None:
        """Add records of one kind in this transaction."""
        for start in range(0, len(records), AT_ONCE):
            await self._add(records[start : start + AT_ONCE], tx)

    def statement(self, records: Sequence[AnyRecord], dialect: Dialect) -> Sql:
        """What adds new records of one kind to their table, in databases of this dialect."""
        model = self._model(TABLES[type(records[0])], dialect)
        if len(records) == 1:
            return insert_behind(model, _row_of(records[0]))
        return insert_many(model, [_row_of(record) for record in records])

    async def _add(self, records: Sequence[AnyRecord], run: Executor) -> None:
        model = self._model(TABLES[type(records[0])], run.dialect)
        await run.write(insert_many(model, [_row_of(record) for record in records]))

    def _model(self, table: type[Model], dialect: Dialect) -> ModelSql:
        """The table in databases of this dialect: rows of other databases have theirs beside them."""
        key = (table, dialect)
        if key not in self._statements:
            self._statements[key] = ModelSql(self._metas[table], dialect, sa.MetaData())
        return self._statements[key]


def _row_of(record: AnyRecord) -> dict[str, Any]:
    moment = record.timestamp
    return {**msgspec.to_builtins(record), "timestamp": moment, "created_at": moment, "updated_at": moment}


def _mistakes(routes: Any, admin_role: Any) -> Iterator[str]:
    """Wrong arguments, which stop the start."""
    if not isinstance(routes, bool):
        yield f"TableSink: routes={routes!r} is neither True nor False"
    if not isinstance(admin_role, str) or not admin_role:
        yield f"TableSink: admin_role={admin_role!r} is not the name of a role"
