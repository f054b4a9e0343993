"""One migration file on its way: who is told, what has been done, and how it is noted."""

from __future__ import annotations

import hashlib
import inspect
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.operations import Operations, ops
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import HeadMaintainer, MigrationContext, RevisionStep, StampStep

from maniflex.db.columns import LogEntry, delete_entry, write_entry
from maniflex.db.history_schema import note_change, note_dropped_table, note_renamed_table
from maniflex.db.port import Executor, Tx
from maniflex.errors import ManiflexError
from maniflex.migrations.checks import using_text, value_check
from maniflex.migrations.operations import (
    Action,
    Backfill,
    BackfillAction,
    CodeAction,
    RebuildTable,
    RequireValues,
    RunCode,
    StatementAction,
    StoredRowsCheck,
)
from maniflex.migrations.target import MigrationError
from maniflex.migrations.types import ColumnType
from maniflex.sql.codec import decoder
from maniflex.sql.history_layouts import form_of
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import quote, sa_dialect

if TYPE_CHECKING:
    from maniflex.migrations.files import MigrationFile
    from maniflex.migrations.target import MigrationTarget


@dataclass(slots=True)
class MigrationListener:
    """Whom to tell how far it is; a command prints it."""

    on_file: Callable[[MigrationFile, float], object] = lambda file, seconds: None
    on_step: Callable[[str], object] = lambda text: None
    on_rows: Callable[[str, int], object] = lambda table, count: None
    on_noted: Callable[[MigrationFile], object] = lambda file: None  # as applied, since the start has made it


@dataclass(frozen=True, slots=True)
class FileJob:
    """One file that is applied or undone."""

    file: MigrationFile
    step: RevisionStep
    operations: Sequence[MigrateOperation]
    back: bool
    heads: tuple[str, ...]  # the database was at when it was planned

    def digest(self, count: int) -> str:
        """A digest of the first operations, which must be the same when an interrupted file goes on."""
        words = "\n".join(describe_operation(operation) for operation in self.operations[:count])
        return hashlib.sha256(words.encode()).hexdigest()[:16]


async def run_check(run: Executor, check: StoredRowsCheck) -> None:
    """Refuse to go on when the query of a check has rows."""
    row = await run.fetch_one(check.query)
    if row is not None:
        raise MigrationError(check.sentence(row))


async def run_code(target: MigrationTarget, model: str, fn: Callable[[Any], Any]) -> None:
    """Call a function of a file with the records of a model, inside the open transaction."""
    if target.records is None:
        return
    outcome = fn(target.records(model))
    if inspect.isawaitable(outcome):
        await outcome


async def note_columns(tx: Tx, job: FileJob, operation: MigrateOperation) -> None:
    """Tell histories what an operation did to the columns whose values their versions keep."""
    match operation:
        case ops.RenameTableOp():
            await note_renamed_table(tx, operation.table_name, operation.new_table_name)
        case ops.DropTableOp():
            await note_dropped_table(tx, operation.table_name)
        case ops.DropColumnOp():
            await note_change(tx, operation.table_name, "drop", {"column": operation.column_name})
        case ops.AddColumnOp():
            await note_change(tx, operation.table_name, "add", await _first_values(tx, job, operation))
        case ops.AlterColumnOp(modify_name=str(new)):
            rename = {"column": operation.column_name, "new": new}
            await note_change(tx, operation.table_name, "rename", rename)
        case Backfill():
            for name in operation.set:
                await note_change(tx, operation.table, "fill", {"column": name})
        case RebuildTable():
            for column in operation.columns:
                if isinstance(column.type, ColumnType):
                    is_certain = _is_plain_conversion(
                        operation.using.get(column.name), column.name, tx.dialect
                    )
                    retype = {"column": column.name, "kind": column.type.kind.value, "certain": is_certain}
                    await note_change(tx, operation.table, "retype", retype)


async def _first_values(tx: Tx, job: FileJob, operation: ops.AddColumnOp) -> dict[str, Any]:
    """The new column, and the one value that all rows have in it, as far as its file tells.

    A later file may change the default, so the value is taken from a row.
    """
    column, content = operation.column, {"column": operation.column.name}
    is_changed = any(
        isinstance(other, RunCode | ops.ExecuteSQLOp | ops.BulkInsertOp)
        or (isinstance(other, Backfill) and other.table == operation.table_name and column.name in other.set)
        for other in job.operations
    )
    if is_changed or not _has_constant_default(column, tx.dialect):
        return content
    place, name = quote(operation.table_name, tx.dialect), quote(column.name, tx.dialect)
    row = await tx.fetch_one(Sql(f"SELECT {name} FROM {place} LIMIT 1"))
    if row is None:
        return content
    decode = decoder(column.type.kind, tx.dialect) if isinstance(column.type, ColumnType) else None
    return content | {"value": form_of(decode(row[0]) if decode and row[0] is not None else row[0])}


_CONSTANT = re.compile(
    r"\s*(?:[ex]?'(?:[^']|'')*'|[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|true|false|null)\s*(?:::[\w ]+)?\s*\Z",
    re.IGNORECASE,
)


def _has_constant_default(column: sa.Column[Any], dialect: Dialect) -> bool:
    """Whether the default of a column is the same for every row; none is null for every row."""
    if column.server_default is None:
        return column.computed is None and column.identity is None
    default = getattr(column.server_default, "arg", None)
    if default is None or isinstance(default, str):
        return default is not None
    text = str(default.compile(dialect=sa_dialect(dialect), compile_kwargs={"literal_binds": True}))
    return _CONSTANT.match(text) is not None


_CONVERSION = re.compile(r"\s*(?:CAST\(\s*(\S+)\s+AS\s+[\w ]+\)|(\S+)(?:\s*<>\s*0)?)\s*\Z", re.IGNORECASE)


def _is_plain_conversion(using: Any, column: str, dialect: Dialect) -> bool:
    """Whether values keep their meaning: a column becomes another type, and nothing is computed."""
    if using is None:
        return True
    match = _CONVERSION.match(using_text(using, dialect))
    return match is not None and (match[1] or match[2]).strip('"') == column


async def note_version(tx: Tx, job: FileJob, seconds: float) -> None:
    """Note in the database that a file was applied or undone."""
    for statement in version_statements(job.step, frozenset(job.heads), tx.dialect):
        await tx.execute(Sql(statement))
    if job.back:
        await delete_entry(tx, job.file.revision)
        return
    applied_at = datetime.now(UTC).isoformat(timespec="seconds")
    await write_entry(tx, LogEntry(job.file.revision, job.file.digest, applied_at, round(seconds, 3), None))


@asynccontextmanager
async def step_errors(job: FileJob, number: int) -> AsyncIterator[None]:
    """Say which operation of which file failed, and why."""
    try:
        yield
    except ManiflexError as error:
        operations = job.operations
        what = describe_operation(operations[number - 1]) if operations else "the file"
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise MigrationError(
            f"{job.file.title}: operation {number} of {len(operations)}, {what}: {error}{cause}"
        ) from error


# Call the functions of a migration file to learn their operations, and write Alembic's as SQL.


_END = ";\x00"  # between two statements; no statement holds it


def _context(dialect: Dialect, output: io.StringIO) -> MigrationContext:
    context = MigrationContext.configure(
        dialect=sa_dialect(dialect),
        opts={"as_sql": True, "literal_binds": True, "output_buffer": output, "transactional_ddl": False},
    )
    context.impl.command_terminator = _END
    return context


class Recorder(Operations):
    """Notes operations instead of running them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(_context(dialect, io.StringIO()))
        self.operations: list[MigrateOperation] = []

    def invoke(self, operation: MigrateOperation) -> Any:
        """Note the operation."""
        self.operations.append(operation)

    def get_bind(self) -> Any:
        """Refuse: there is no connection while a file is read."""
        raise MigrationError(
            "op.get_bind: a file is read before it is applied, so it has no connection; use op.backfill or"
            " op.run"
        )

    def batch_alter_table(self, table_name: str, *_: Any, **__: Any) -> Any:
        """Refuse: Alembic's batch mode loses triggers and collations."""
        raise MigrationError(
            f"op.batch_alter_table({table_name!r}): batch mode would lose triggers and collations on SQLite;"
            " use op.rebuild_table"
        )


# Alembic keeps the functions of `alembic.op` by the class they were made for.
Recorder._setups[Recorder] = Recorder._setups[Operations]


def record(fn: Callable[[], object], dialect: Dialect) -> list[MigrateOperation]:
    """The operations of the `upgrade` or `downgrade` of a file, in their order."""
    recorder = Recorder(dialect)
    recorder._install_proxy()
    try:
        fn()
    finally:
        recorder._remove_proxy()
    return recorder.operations


def statements_of(operation: MigrateOperation, dialect: Dialect) -> list[str]:
    """One of Alembic's operations as SQL."""
    output = io.StringIO()
    try:
        Operations(_context(dialect, output)).invoke(operation)
    except NotImplementedError as error:
        raise MigrationError(
            f"SQLite cannot do {describe_operation(operation)} in place; use op.rebuild_table"
        ) from error
    return _split(output)


def version_statements(step: RevisionStep | StampStep, heads: frozenset[str], dialect: Dialect) -> list[str]:
    """The statements that note a step of the chain in `alembic_version`."""
    output = io.StringIO()
    HeadMaintainer(_context(dialect, output), heads).update_to_step(step)
    return _split(output)


def _split(output: io.StringIO) -> list[str]:
    return [text.strip() for text in output.getvalue().split(_END) if text.strip()]


def describe_operation(operation: MigrateOperation) -> str:
    """An operation in a few words."""
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(operation).__name__)
    name = words.removesuffix(" op").strip()
    table = getattr(operation, "table_name", None) or getattr(operation, "table", None)
    column = getattr(operation, "column_name", None) or getattr(operation, "column", None)
    detail = getattr(operation, "index_name", None) or getattr(column, "name", column)
    place = f"{table}.{detail}" if table and detail else table or detail
    if place is None and name.startswith("execute"):
        place = " ".join(str(getattr(operation, "sqltext", "")).split())[:60]
    return f"{name.replace('_', ' ')} {place}" if place else name


# What operations come to that both databases carry out alike.


def plan_alike(operation: ops.MigrateOperation, dialect: Dialect) -> list[Action]:
    """The actions of an operation that needs nothing but its words, or the SQL that Alembic writes for it."""
    match operation:
        case RequireValues():
            return [value_check(operation, dialect)]
        case Backfill():
            return [BackfillAction(operation)]
        case RunCode():
            return [CodeAction(operation)]
        case ops.ExecuteSQLOp() if isinstance(operation.sqltext, str):
            return [StatementAction(operation.sqltext)]
        case _:
            return statement_actions(statements_of(operation, dialect))


def statement_actions(texts: Iterable[str]) -> list[Action]:
    """One action for each statement."""
    return [StatementAction(text) for text in texts]
