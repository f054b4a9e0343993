"""The operations of migration files beyond Alembic's own, as values; `op.py` is how files call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic.operations.ops import MigrateOperation

from maniflex.sql.statement import Sql


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
