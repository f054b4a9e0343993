"""What operations come to on both databases alike, and the checks that stored rows must pass before."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from alembic.operations import Operations, ops
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import HeadMaintainer, MigrationContext, RevisionStep, StampStep

from maniflex.schema.operations import (
    Action,
    Backfill,
    BackfillAction,
    CodeAction,
    RequireValues,
    RunCode,
    StatementAction,
    StoredRowsCheck,
)
from maniflex.schema.target import MigrationError
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import quote, sa_dialect

if TYPE_CHECKING:
    pass
from maniflex.schema.types import ByDatabase
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.statement import by_dialect

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
