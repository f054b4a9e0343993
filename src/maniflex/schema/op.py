"""The operations a migration file may call: Alembic's own, and those that both databases need beyond them.

Nothing returns rows, because a file is read before it is applied: what depends on stored values is an
`op.backfill` or an `op.run`. Alembic's batch mode is not here; `op.rebuild_table` takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic.op import add_column as add_column
from alembic.op import alter_column as alter_column
from alembic.op import bulk_insert as bulk_insert
from alembic.op import create_check_constraint as create_check_constraint
from alembic.op import create_foreign_key as create_foreign_key
from alembic.op import create_index as create_index
from alembic.op import create_table as create_table
from alembic.op import create_unique_constraint as create_unique_constraint
from alembic.op import drop_column as drop_column
from alembic.op import drop_constraint as drop_constraint
from alembic.op import drop_index as drop_index
from alembic.op import drop_table as drop_table
from alembic.op import execute as execute
from alembic.op import f as f
from alembic.op import invoke
from alembic.op import rename_table as rename_table

from maniflex.schema.operations import (
    Backfill,
    FieldFactory,
    IndexByDatabase,
    RebuildTable,
    RenameIndex,
    RequireValues,
    RunCode,
    SetNotNull,
    StatementByDatabase,
)

BATCH = 1000
PAUSE = 0.02  # seconds between two batches, so that others get their turn


def rebuild_table(
    name: str, *items: sa.schema.SchemaItem, using: Mapping[str, str | Any] | None = None
) -> None:
    """Give a table exactly these columns, types, nullability and defaults.

    SQLite makes it anew and copies the rows; PostgreSQL alters the columns that differ. `using` has the SQL
    that converts a column, such as `{"pages": "CAST(pages AS bigint)"}`. Columns that are not listed stay.
    """
    invoke(RebuildTable(name, items, dict(using or {})))


def rename_column(table: str, old: str, new: str) -> None:
    """Give a column another name; its values and indexes stay."""
    alter_column(table, old, new_column_name=new)


def rename_index(old: str, new: str) -> None:
    """Give an index another name."""
    invoke(RenameIndex(old, new))


def set_not_null(table: str, column: str) -> None:
    """Let no row be without a value in this column; refused while one is."""
    invoke(SetNotNull(table, (column,)))


def backfill(
    table: str,
    *,
    set: Mapping[str, Any],
    where: str | None = None,
    batch: int = BATCH,
    pause: float = PAUSE,
    key: str = "id",
) -> None:
    """Set columns of the rows that are there, `batch` rows at a time.

    A value is SQL, a function of the row (a mapping), or `op.factory("Book.slug")`.
    """
    invoke(Backfill(table, dict(set), where, batch, pause, key))


def factory(name: str) -> FieldFactory:
    """In a backfill: a value of the default factory of `Model.field`, one for each row."""
    return FieldFactory(name)


def run(model: str, fn: Callable[[Any], Any]) -> None:
    """Call `fn` with the records of a model, as `server.db(model)` gives them, inside the transaction."""
    invoke(RunCode(model, fn))


def execute_by_database(*, sqlite: str | None = None, postgresql: str | None = None) -> None:
    """Run a statement that is written differently on each database, or that one of them does without."""
    invoke(StatementByDatabase(sqlite, postgresql))


def create_index_by_database(table: str, *, sqlite: str | None = None, postgresql: str | None = None) -> None:
    """Build an index whose CREATE INDEX statement differs by database."""
    invoke(IndexByDatabase(table, sqlite, postgresql))


def require_values(table: str, column: str, values: Sequence[Any]) -> None:
    """Refuse to go on while a row holds a value that is none of these."""
    invoke(RequireValues(table, column, tuple(values)))
