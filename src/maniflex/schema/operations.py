"""The operations of migration files beyond Alembic's own, as values; what both databases do alike for them.

`op.py` is how files call them; the plan of each database does what it does alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic.operations import Operations, ops
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import HeadMaintainer, MigrationContext, RevisionStep, StampStep

from maniflex.schema.target import MigrationError
from maniflex.schema.types import ByDatabase
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.statement import Dialect, Sql, by_dialect, sa_dialect
from maniflex.sql.tables import quote


@dataclass(frozen=True)
class RebuildTable(MigrateOperation):
    """Give a table exactly these columns, types, nullability and defaults."""

    table: str
    items: tuple[sa.schema.SchemaItem, ...]
    using: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> list[sa.Column[Any]]:
        return [item for item in self.items if isinstance(item, sa.Column)]


@dataclass(frozen=True)
class SetNotNull(MigrateOperation):
    """Let no row be without a value in these columns."""

    table: str
    columns: tuple[str, ...]

    @property
    def column(self) -> str:
        """The columns in words."""
        return ", ".join(self.columns)


@dataclass(frozen=True)
class Backfill(MigrateOperation):
    """Set columns of the rows that are there, in batches."""

    table: str
    set: Mapping[str, Any]
    where: str | None
    batch: int
    pause: float
    key: str


@dataclass(frozen=True)
class RunCode(MigrateOperation):
    """Call a function with the records of a model, inside the transaction of the migration."""

    model: str
    fn: Callable[[Any], Any]


@dataclass(frozen=True)
class StatementByDatabase(MigrateOperation):
    """A statement that is written differently on each database, or that one of them does without."""

    sqlite: str | None
    postgresql: str | None


@dataclass(frozen=True)
class IndexByDatabase(MigrateOperation):
    """An index whose statement differs by database; on PostgreSQL it is built without stopping writers."""

    table: str
    sqlite: str | None
    postgresql: str | None


@dataclass(frozen=True)
class RequireValues(MigrateOperation):
    """Refuse to go on while a row holds another value in this column."""

    table: str
    column: str
    values: Sequence[Any]


@dataclass(frozen=True)
class RenameIndex(MigrateOperation):
    """Give an index another name."""

    old: str
    new: str


class FieldFactory:
    """In a backfill: a value of the default factory of a field, one for each row."""

    def __init__(self, name: str) -> None:
        self.name = name  # Model.field

    def __repr__(self) -> str:
        return f"factory({self.name!r})"


# What an operation comes to on one database: statements, index builds, checks and code, in order.


@dataclass(frozen=True, slots=True)
class StatementAction:
    """One statement, inside a transaction."""

    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What follows is a transaction of its own, because the locks so far must not be held as long."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index that PostgreSQL builds beside its writers, outside any transaction."""

    name: str
    table: str
    text: str  # CREATE INDEX CONCURRENTLY …
    unique: bool


@dataclass(frozen=True, slots=True)
class StoredRowsCheck:
    """A query whose rows are a reason not to go on; `sentence` makes it of the first."""

    query: Sql
    sentence: Callable[[Sequence[Any]], str]


@dataclass(frozen=True, slots=True)
class BackfillAction:
    """Rows that are filled batch by batch."""

    backfill: Backfill


@dataclass(frozen=True, slots=True)
class CodeAction:
    """A function of the application, called inside the transaction."""

    run: RunCode


Action: TypeAlias = StatementAction | Commit | IndexBuild | StoredRowsCheck | BackfillAction | CodeAction


# Call the functions of a migration file to learn their operations, and write Alembic's as SQL.


_END = ";\x00"  # between two statements; no statement holds it


def offline_context(dialect: Dialect, output: io.StringIO) -> MigrationContext:
    context = MigrationContext.configure(
        dialect=sa_dialect(dialect),
        opts={"as_sql": True, "literal_binds": True, "output_buffer": output, "transactional_ddl": False},
    )
    context.impl.command_terminator = _END
    return context


def statements_of(operation: MigrateOperation, dialect: Dialect) -> list[str]:
    """One of Alembic's operations as SQL."""
    output = io.StringIO()
    try:
        Operations(offline_context(dialect, output)).invoke(operation)
    except NotImplementedError as error:
        raise MigrationError(
            f"SQLite cannot do {describe_operation(operation)} in place; use op.rebuild_table"
        ) from error
    return _split(output)


def version_statements(step: RevisionStep | StampStep, heads: frozenset[str], dialect: Dialect) -> list[str]:
    """The statements that note a step of the chain in `alembic_version`."""
    output = io.StringIO()
    HeadMaintainer(offline_context(dialect, output), heads).update_to_step(step)
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


# Checks that stored rows must pass.


_MOST_GROUPS = 5  # of equal rows, in a message


def using_text(using: str | ByDatabase, dialect: Dialect) -> str:
    """The SQL that converts the values of a column."""
    return using.text(dialect) if isinstance(using, ByDatabase) else using


def rows_of(count: int, table: str, one: str, several: str) -> str:
    """A number of rows and the verb it needs: `1 row of books has`."""
    return f"1 row of {table} {one}" if count == 1 else f"{count} rows of {table} {several}"


def them(count: int) -> str:
    """The word for so many rows in what follows."""
    return "it" if count == 1 else "them"


def backfill_advice(table: str, column: str) -> str:
    """A backfill to be changed: its value is SQL, so that a text stands in quotes of its own."""
    return f"""op.backfill("{table}", set={{"{column}": "'…'"}}, where="{column} IS NULL")"""


def null_check(table: str, column: str, dialect: Dialect, using: Any = None) -> StoredRowsCheck:
    """No row may be without a value in a column that is about to need one."""
    name = quote(column, dialect)
    value = name if using is None else using_text(using, dialect)
    query = f"SELECT count(*) FROM {quote(table, dialect)} WHERE ({value}) IS NULL HAVING count(*) > 0"
    return StoredRowsCheck(
        Sql(query),
        lambda row: (
            f"{rows_of(row[0], table, 'has', 'have')} no value in {column};"
            f" fill {them(row[0])} in the file before this step, such as {backfill_advice(table, column)};"
            " the value is SQL"
        ),
    )


def number_check(table: str, column: str) -> StoredRowsCheck:
    """No text may be lost that is no number: SQLite would make 0 of it."""
    name = quote(column, Dialect.SQLITE)
    is_other = f"{name} GLOB '*[^-0-9.]*' OR {name} IN ('', '-', '.')"
    return StoredRowsCheck(
        Sql(
            f"SELECT count(*) FROM {quote(table, Dialect.SQLITE)} WHERE {is_other} HAVING count(*) > 0",
        ),
        lambda row: (
            f"{rows_of(row[0], table, 'holds', 'hold')} a text in {column} that is no number;"
            f" change {them(row[0])} first"
        ),
    )


def duplicate_check(operation: ops.CreateIndexOp, dialect: Dialect) -> StoredRowsCheck | None:
    """No two rows may have equal values where a unique index is to be; None for other indexes."""
    names = [column for column in operation.columns if isinstance(column, str)]
    if not operation.unique or len(names) < len(operation.columns):
        return None
    key = by_dialect(dialect, sqlite="sqlite_where", postgres="postgresql_where")
    condition = operation.kw.get(key)
    columns = ", ".join(quote(name, dialect) for name in names)
    where = [f"{quote(name, dialect)} IS NOT NULL" for name in names]
    if condition is not None:
        where.append(f"({condition.compile(dialect=sa_dialect(dialect))})")
    groups = (
        f"SELECT count(*) AS n FROM {quote(operation.table_name, dialect)} WHERE {' AND '.join(where)}"
        f" GROUP BY {columns} HAVING count(*) > 1 ORDER BY 1 DESC LIMIT {_MOST_GROUPS}"
    )
    words = ", ".join(decimal_column(name) for name in names)
    counts = by_dialect(dialect, sqlite="group_concat(n, ', ')", postgres="string_agg(n::text, ', ')")
    return StoredRowsCheck(
        Sql(f"SELECT {counts} FROM ({groups}) AS g HAVING count(*) > 0"),
        lambda row: (
            f"{operation.table_name} has rows with equal values in {words}, so the"
            f" unique index {operation.index_name} cannot be built; change or delete all but one row of each"
            f" group. The largest groups have {row[0]} rows"
        ),
    )


def value_check(operation: RequireValues, dialect: Dialect) -> StoredRowsCheck:
    """No row may hold a value that was removed from an enum."""
    column, table = quote(operation.column, dialect), quote(operation.table, dialect)
    texts = ", ".join("'" + str(value).replace("'", "''") + "'" for value in operation.values)
    query = (
        f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL"
        f" AND CAST({column} AS text) NOT IN ({texts}) HAVING count(*) > 0"
    )
    names = ", ".join(map(str, operation.values))
    return StoredRowsCheck(
        Sql(query),
        lambda row: (
            f"{rows_of(row[0], operation.table, 'holds', 'hold')} a value in {operation.column} that is"
            f" declared no longer; change {them(row[0])} first, for example with op.backfill, to one of"
            f" {names}"
        ),
    )
