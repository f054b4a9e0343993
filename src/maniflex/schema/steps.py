"""The steps of one file on its way: what an operation comes to is carried out, noted, and told.

On PostgreSQL that is one transaction after the other, beside writers that go on. A statement that needs a
strong lock waits for it half a second and no longer, because all requests for the table queue up behind one
that waits; then it tries again a little later.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_never

import sqlalchemy as sa
from alembic.operations import ops
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import RevisionStep

from maniflex.db.current import reading
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.short_locks import LockNotFree, change_tables, lift_timeouts
from maniflex.errors import ConstraintViolation, ManiflexError, ValidationFailed
from maniflex.model.meta import FieldMeta
from maniflex.schema.history import note_change, note_dropped_table, note_renamed_table
from maniflex.schema.operations import (
    Action,
    Backfill,
    BackfillAction,
    CodeAction,
    Commit,
    FieldFactory,
    IndexBuild,
    RebuildTable,
    RunCode,
    StatementAction,
    StoredRowsCheck,
    describe_operation,
    using_text,
    version_statements,
)
from maniflex.schema.plan_postgres import plan_on_postgres
from maniflex.schema.read import LogEntry, delete_entry, read_log, write_entry
from maniflex.schema.target import MigrationError, MigrationTarget
from maniflex.schema.types import ByDatabase, ColumnType
from maniflex.sql.codec import decoder
from maniflex.sql.history_layouts import form_of
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect, sa_dialect
from maniflex.sql.tables import quote

if TYPE_CHECKING:
    from maniflex.schema.files import MigrationFile
    from maniflex.schema.target import MigrationTarget


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


async def act(
    tx: Tx,
    action: Action,
    models: Sequence[ModelSql],
    *,
    records: Callable[[str], Any] | None = None,
    on_rows: Callable[[str, int], object] = lambda table, count: None,
) -> None:
    """Carry out an action inside an open transaction; without `records`, no function of a file is called."""
    match action:
        case StatementAction(text):
            await tx.execute(Sql(text))
        case StoredRowsCheck():
            await run_check(tx, action)
        case BackfillAction(backfill):
            backfiller, last, rows = Backfiller(backfill, models), None, 0
            while count := (batch := await backfiller.run_batch(tx, last))[0]:
                last, rows = batch[1], rows + count
                on_rows(backfill.table, rows)
        case CodeAction(run):
            outcome = run.fn(records(run.model)) if records is not None else None
            if inspect.isawaitable(outcome):
                await outcome
        case Commit():
            pass  # everything stays in the one transaction
        case IndexBuild():
            raise AssertionError("an index that is built beside writers stands in no transaction")
        case _:
            assert_never(action)


# What operations do to the columns of histories.


async def note_columns(
    tx: Tx,
    operations: Sequence[MigrateOperation],
    operation: MigrateOperation,
    models: Sequence[ModelSql],
) -> None:
    """Tell histories what an operation did to the columns whose values their versions keep."""
    match operation:
        case ops.RenameTableOp():
            await note_renamed_table(tx, operation.table_name, operation.new_table_name)
        case ops.DropTableOp():
            await note_dropped_table(tx, operation.table_name)
        case ops.DropColumnOp():
            await note_change(tx, operation.table_name, "drop", {"column": operation.column_name})
        case ops.AddColumnOp():
            content: dict[str, Any] = {"column": operation.column.name}
            if not _is_secret(operation, models):
                content |= await _first_values(tx, operations, operation)
            await note_change(tx, operation.table_name, "add", content)
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


def _is_secret(operation: ops.AddColumnOp, models: Sequence[ModelSql]) -> bool:
    return any(
        field.secret
        for model in models
        for field in model.meta.stored
        if (model.table.name, field.column) == (operation.table_name, operation.column.name)
    )


async def _first_values(
    tx: Tx, operations: Sequence[MigrateOperation], operation: ops.AddColumnOp
) -> dict[str, Any]:
    """The one value that all rows have in a new column, as far as the operations tell.

    A later file may change the default, so the value is taken from a row.
    """
    column = operation.column
    is_changed = any(
        isinstance(other, RunCode | ops.ExecuteSQLOp | ops.BulkInsertOp)
        or (isinstance(other, Backfill) and other.table == operation.table_name and column.name in other.set)
        for other in operations
    )
    if is_changed or not _has_constant_default(column, tx.dialect):
        return {}
    place, name = quote(operation.table_name, tx.dialect), quote(column.name, tx.dialect)
    row = await tx.fetch_one(Sql(f"SELECT {name} FROM {place} LIMIT 1"))
    if row is None:
        return {}
    decode = decoder(column.type.kind, tx.dialect) if isinstance(column.type, ColumnType) else None
    return {"value": form_of(decode(row[0]) if decode and row[0] is not None else row[0])}


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


# PostgreSQL: operations in transactions of their own, and indexes beside the writers.


LOCK = 0x6D616E69666C6579 >> 1  # not that of the start, which may wait for us
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5  # seconds between two tries
_STATE = """
SELECT i.indisvalid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
 WHERE c.oid = to_regclass($1)
"""


@asynccontextmanager
async def migration_lock(adapter: Adapter, tell: Callable[[str], object]) -> AsyncIterator[None]:
    """Let no other process migrate this database meanwhile; wait for one that does."""
    holder = adapter.sibling(patient=True)
    await holder.open()
    is_told = False
    try:
        while True:
            # A transaction of its own: a lock of a session would not survive a transaction pooler.
            async with holder.transaction() as tx:
                if await _take_lock(tx):
                    yield
                    return
            if not is_told:
                tell("another process migrates this database; waiting for it")
                is_told = True
            # In no transaction: an index that the other builds concurrently waits for all snapshots, so it
            # and a statement that waits for the lock would wait for each other.
            await asyncio.sleep(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))
    finally:
        await holder.close()


async def _take_lock(tx: Tx) -> bool:
    await lift_timeouts(tx)
    rows = await tx.fetch(Sql("SELECT pg_try_advisory_xact_lock($1)", (LOCK,)))
    # The last query of a transaction keeps its snapshot, for which index builds wait, too. This statement
    # takes its place and has none.
    await lift_timeouts(tx)
    return bool(rows[0][0])


class PostgresSteps:
    """Carries out the operations of one file."""

    def __init__(self, target: MigrationTarget, listener: MigrationListener, job: FileJob | None) -> None:
        self._target = target
        self._adapter = target.adapter
        self._listener = listener
        self._job = job
        self._is_building = False
        operations = job.operations if job is not None else ()
        self._new_tables = {o.table_name for o in operations if isinstance(o, ops.CreateTableOp)}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The connections that index builds need for themselves."""
        self._builder: Adapter = self._adapter.sibling(patient=True)
        try:
            yield
        finally:
            await self._builder.close()

    async def perform(self, number: int, operation: MigrateOperation) -> None:
        """Carry out one operation and note that it is done."""
        plan = await plan_on_postgres(operation, reading(self._adapter), self._new_tables)
        parts = _parts(plan)
        for position, part in enumerate(parts):
            is_last = position == len(parts) - 1
            if isinstance(part, IndexBuild):
                await self._build_index(part)
            elif isinstance(part, Backfill):
                await self._fill(number, part)
            else:
                await self._run_part(part, (number, operation) if is_last else None)
                continue
            if is_last:
                await self._run_part((), (number, operation))
        if not parts:
            await self._run_part((), (number, operation))

    async def _run_part(self, actions: Sequence[Action], done: tuple[int, MigrateOperation] | None) -> None:
        async def work(tx: Tx) -> None:
            for action in actions:
                await act(tx, action, self._target.models, records=self._target.records)
            if done is not None and self._job is not None:
                await note_columns(tx, self._job.operations, done[1], self._target.models)
                await self._note_progress(tx, {"steps": done[0]})

        await self.in_transaction(work)

    async def in_transaction(self, work: Callable[[Tx], Awaitable[None]]) -> None:
        """Run `work` in a transaction; again when it had to wait too long for a lock."""
        limits = self._target.lock_limits

        def tell(attempt: int) -> None:
            self._listener.on_step(f"waiting for a lock (try {attempt} of {limits.tries})")

        try:
            await change_tables(self._adapter, work, limits, tell)
        except LockNotFree as error:
            raise MigrationError(f"{error}, with more --tries or a longer --lock-timeout") from error

    # -- progress

    async def _note_progress(self, tx: Tx, progress: dict[str, Any]) -> None:
        job = self._job
        if job is None:
            return
        entry = LogEntry(
            job.file.revision,
            job.file.digest,
            None,
            None,
            {**progress, "digest": job.digest(progress["steps"]), "back": job.back},
        )
        await write_entry(tx, entry)

    async def _fill(self, number: int, backfill: Backfill) -> None:
        """Fill batch by batch, each in a transaction that also notes the last key."""
        backfiller = Backfiller(backfill, self._target.models)
        last, rows = await self._last_key(number), 0

        while True:
            count = 0

            async def batch(tx: Tx) -> None:
                nonlocal count, last
                count, key = await backfiller.run_batch(tx, last)
                if count:
                    await self._note_progress(tx, {"steps": number - 1, "key": key})
                    last = key

            before = last
            try:
                await self.in_transaction(batch)
            except ManiflexError:
                last = before
                raise
            if not count:
                return
            rows += count
            self._listener.on_rows(backfill.table, rows)
            await asyncio.sleep(backfill.pause)

    async def _last_key(self, number: int) -> Any:
        assert self._job is not None
        entry = (await read_log(reading(self._adapter))).get(self._job.file.revision)
        progress = entry.progress if entry is not None else None
        if progress and progress.get("back") is self._job.back and progress.get("steps") == number - 1:
            return progress.get("key")
        return None

    # -- indexes

    async def _build_index(self, build: IndexBuild) -> None:
        """Build an index beside the writers; one that was left unfinished is dropped and built again."""
        name = quote(build.name, Dialect.POSTGRES)
        row = await reading(self._adapter).fetch_one(Sql(_STATE, (name,)))
        if row is not None and row[0]:
            return
        leaves = await read_leaves(reading(self._adapter), build.table)
        drop = f"DROP INDEX {'' if leaves else 'CONCURRENTLY '}IF EXISTS {name}"
        await self._wait_for_table(build.table)
        if row is not None:
            self._listener.on_step(f"the index {build.name} was left unfinished; building it again")
            await self._alone(drop)
        try:
            for text in build_statements(build, leaves) if leaves else (build.text,):
                await self._alone(text)
        except ConstraintViolation as error:
            await self._alone(drop)
            columns = ", ".join(error.columns)
            raise MigrationError(
                f"{build.table} has rows with equal values in {columns or 'the columns of the index'}, so the"
                f" unique index {build.name} cannot be built; change or delete all but one row of each group"
            ) from error
        except ManiflexError:
            await self._alone(drop)
            raise

    async def _wait_for_table(self, table: str) -> None:
        """Make sure that no session keeps the table to itself: the build would wait for it without end."""

        async def lock(tx: Tx) -> None:
            await tx.execute(
                Sql(f"LOCK TABLE {quote(table, Dialect.POSTGRES)} IN SHARE UPDATE EXCLUSIVE MODE")
            )

        await self.in_transaction(lock)

    async def _alone(self, text: str) -> None:
        """Run a statement that no transaction may hold, for as long as it takes."""
        if not self._is_building:
            await self._builder.open()
            self._is_building = True
        await self._builder.execute(Sql(text))


def _parts(actions: Sequence[Action]) -> list[Any]:
    """Actions that share a transaction, and those that stand alone."""
    parts: list[Any] = []
    for action in actions:
        if isinstance(action, IndexBuild):
            parts.append(action)
        elif isinstance(action, BackfillAction):
            parts.append(action.backfill)
        elif isinstance(action, Commit) or not parts or not isinstance(parts[-1], list):
            parts.append([] if isinstance(action, Commit) else [action])
        else:
            parts[-1].append(action)
    return [part for part in parts if part != []]


# An index on a partitioned table, built partition by partition beside the writers.
#
# PostgreSQL builds no index concurrently on all partitions at once. The index of the whole comes first,
# empty and not valid, and becomes valid when the last partition has its part.


_LONGEST_NAME = 63
_LEAVES = """
SELECT p.relid::regclass::text, c.relname::text
  FROM pg_class t CROSS JOIN LATERAL pg_partition_tree(t.oid) p JOIN pg_class c ON c.oid = p.relid
 WHERE t.oid = to_regclass($1) AND t.relkind = 'p' AND p.isleaf
"""
_INDEX_TEXT = re.compile(
    r"(CREATE (?:UNIQUE )?INDEX) CONCURRENTLY (\S+|\"[^\"]+\") ON (\S+|\"[^\"]+\")\s*(.*)", re.DOTALL
)


async def read_leaves(run: Executor, table: str) -> list[tuple[str, str]]:
    """The partitions of a table, as they are written and by name; none when it has none."""
    rows = await run.fetch(Sql(_LEAVES, (quote(table, Dialect.POSTGRES),)))
    return [(relation, name) for relation, name in rows]


def build_statements(build: IndexBuild, leaves: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The statements that build it, each to be run by itself."""
    match = _INDEX_TEXT.fullmatch(build.text.strip())
    if match is None:
        raise ValueError(f"no index can be read from {build.text!r}")
    create, name, table, rest = match.groups()
    yield f"{create} {name} ON ONLY {table} {rest}"
    for relation, leaf in leaves:
        own = quote(f"{leaf[:30]}_{build.name}"[:_LONGEST_NAME], Dialect.POSTGRES)
        yield f"DROP INDEX CONCURRENTLY IF EXISTS {own}"
        yield f"{create} CONCURRENTLY {own} ON {relation} {rest}"
        yield f"ALTER INDEX {name} ATTACH PARTITION {own}"


# `op.backfill`: set columns of the rows that are there, batch by batch along the key.
#
# Each batch is one statement that takes its rows in the order of the key. SQL values are computed by the
# database; functions are called with each row. Where the batches stand is noted with each of them, so
# that an interrupted backfill goes on where it was.


_MOST_VALUES = 10_000  # in one statement
_TYPES = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


class Backfiller:
    """The batches of one backfill on one database."""

    def __init__(self, backfill: Backfill, models: Sequence[ModelSql]) -> None:
        self._backfill = backfill
        self._model = next((m for m in models if m.table.name == backfill.table), None)
        self._values: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        self._sql: dict[str, str | ByDatabase] = {}
        self._reads_rows = not all(isinstance(value, FieldFactory) for value in backfill.set.values())
        for column, value in backfill.set.items():
            if isinstance(value, FieldFactory):
                self._values[column] = self._factory(value)
            elif callable(value):
                self._values[column] = value
            else:
                self._sql[column] = value if isinstance(value, ByDatabase) else str(value)

    def _factory(self, factory: FieldFactory) -> Callable[[Mapping[str, Any]], Any]:
        """Values as a create would take them: of the factory of a field, or its default."""
        name = factory.name.rpartition(".")[2]
        model, field = self._model, None if self._model is None else self._model.meta.by_name.get(name)
        if model is None or field is None or (field.default_factory is None and not field.has_default):
            raise MigrationError(
                f"op.factory({factory.name!r}): there is no field of this name with a factory"
            )
        make, validate = (
            field.default_factory or (lambda: field.default),
            model.meta.validator.patch_from_code,
        )

        def value(_: Mapping[str, Any]) -> Any:
            try:
                return validate({name: make()})[name]
            except ValidationFailed as error:
                raise MigrationError(
                    f"{model.meta.name}.{name}: its default_factory made a value for an existing row of"
                    f" {model.table.name!r} that does not fit the field"
                ) from error

        return value

    async def run_batch(self, run: Executor, last: Any) -> tuple[int, Any]:
        """Fill the rows behind the key `last`; how many they were, and the key of the last one."""
        if self._values:
            return await self._run_functions(run, last)
        keys = [row[0] for row in await run.fetch(self._select(run, last, self._key(run)))]
        if not keys:
            return 0, last
        await self._update(run, ", ".join(self._sql_sets(run)), (), keys)
        return len(keys), keys[-1]

    async def _run_functions(self, run: Executor, last: Any) -> tuple[int, Any]:
        rows = await self._rows(run, last)
        table, keys = [], [row[self._backfill.key] for row in rows]
        for row in rows:
            values = [await self._value(column, fn, row) for column, fn in self._values.items()]
            table.append((row[self._backfill.key], *values))
        if rows:
            await self._update_each(run, table)
        return (len(rows), keys[-1]) if rows else (0, last)

    async def _rows(self, run: Executor, last: Any) -> list[dict[str, Any]]:
        """The rows of a batch as functions see them: values of the model's types where there is a model."""
        if self._model is None or not self._reads_rows:
            what = "*" if self._reads_rows else self._key(run)
            return [dict(row) for row in await run.fetch_named(self._select(run, last, what))]
        model, existing = self._model, await run.fetch_named(self._select(run, last, "*"))
        fields = [f for f in model.meta.fields if not existing or f.column in existing[0]]
        decode = model.decoder(fields)
        rows = []
        for row in existing:
            values: Sequence[Any] = [row[f.column] for f in fields]
            values = decode(values) if decode is not None else values
            rows.append({**row, **{f.column: v for f, v in zip(fields, values, strict=True)}})
        return rows

    async def _value(self, column: str, fn: Callable[[Any], Any], row: Mapping[str, Any]) -> Any:
        value = fn(row)
        if inspect.isawaitable(value):
            value = await value
        field = self._field(column)
        if field is None or self._model is None:
            return value
        if field.encrypted is None or self._model.cipher is None or value is None:
            return self._model.encode(field, value)
        if field.has_digest or self._backfill.key != self._model.id.name:
            raise MigrationError(
                f"op.backfill: {self._model.meta.name}.{field.name} is encrypted; fill it by its records,"
                " with server.db(…).update(…)"
            )
        return self._model.cipher.fields[field.name].seal(value, str(row[self._backfill.key]))

    def _field(self, column: str) -> FieldMeta | None:
        fields = () if self._model is None else self._model.meta.fields
        return next((field for field in fields if field.column == column), None)

    def _sql_sets(self, run: Executor) -> list[str]:
        return [
            f"{quote(column, run.dialect)} = {using_text(sql, run.dialect)}"
            for column, sql in self._sql.items()
        ]

    def _key(self, run: Executor) -> str:
        return quote(self._backfill.key, run.dialect)

    def _mark(self, run: Executor, number: int) -> str:
        return by_dialect(run.dialect, sqlite="?", postgres=f"${number}")

    def _select(self, run: Executor, last: Any, what: str) -> Sql:
        backfill, key = self._backfill, self._key(run)
        conditions = [f"({backfill.where})"] if backfill.where else []
        if last is not None:
            conditions.append(f"{key} > {self._mark(run, 1)}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        text = f"SELECT {what} FROM {quote(backfill.table, run.dialect)}{where} ORDER BY {key}"
        return Sql(f"{text} LIMIT {int(backfill.batch)}", () if last is None else (last,))

    async def _update(self, run: Executor, sets: str, values: tuple[Any, ...], keys: Sequence[Any]) -> None:
        marks = [self._mark(run, len(values) + n) for n in range(1, len(keys) + 1)]
        where = f"{self._key(run)} IN ({', '.join(marks)})"
        if self._backfill.where:  # a row that changed meanwhile is no longer ours
            where += f" AND ({self._backfill.where})"
        table = quote(self._backfill.table, run.dialect)
        await run.execute(Sql(f"UPDATE {table} SET {sets} WHERE {where}", (*values, *keys)))

    async def _update_each(self, run: Executor, table: Sequence[tuple[Any, ...]]) -> None:
        """Set values that differ by row, with one statement for as many as the database takes at once."""
        columns = [self._backfill.key, *self._values]
        size = max(1, _MOST_VALUES // len(columns))
        for start in range(0, len(table), size):
            await self._update_some(run, columns, table[start : start + size])

    async def _update_some(
        self, run: Executor, columns: Sequence[str], table: Sequence[tuple[Any, ...]]
    ) -> None:
        types = await self._types(run, columns)
        marks = iter(range(1, len(table) * len(columns) + 1))
        rows = ", ".join(
            f"({', '.join(one.format(self._mark(run, next(marks))) for one in types)})" for _ in table
        )
        names = [f'"$v{number}"' for number in range(len(columns))]  # no column can be called like this
        pairs = zip(columns[1:], names[1:], strict=True)
        sets = [*(f"{quote(c, run.dialect)} = {name}" for c, name in pairs), *self._sql_sets(run)]
        place = quote(self._backfill.table, run.dialect)
        where = f"{place}.{self._key(run)} = {names[0]}"
        if self._backfill.where:  # a row that changed meanwhile is no longer ours
            where += f" AND ({self._backfill.where})"
        text = f'WITH "$made" ({", ".join(names)}) AS (VALUES {rows}) UPDATE {place} SET {", ".join(sets)}'
        values = tuple(value for row in table for value in row)
        await run.execute(Sql(f'{text} FROM "$made" WHERE {where}', values))

    async def _types(self, run: Executor, columns: Sequence[str]) -> list[str]:
        """How a value of each column is written: PostgreSQL takes every parameter of a list for a text."""
        if by_dialect(run.dialect, sqlite=True, postgres=False):
            return ["{}"] * len(columns)
        rows = await run.fetch(Sql(_TYPES, (quote(self._backfill.table, run.dialect),)))
        types = {str(name): str(type_) for name, type_ in rows}
        return [f"CAST({{}} AS {types[column]})" for column in columns]

    async def count(self, run: Executor) -> int:
        """How many rows there are to fill, for a progress bar."""
        where = f" WHERE {self._backfill.where}" if self._backfill.where else ""
        row = await run.fetch_one(
            Sql(f"SELECT count(*) FROM {quote(self._backfill.table, run.dialect)}{where}")
        )
        return 0 if row is None else int(row[0])
