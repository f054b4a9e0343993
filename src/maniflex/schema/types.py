"""The column types of migration files, each right for SQLite and PostgreSQL, collation included.

>>> sa.Column("price", types.DECIMAL(), nullable=False)
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import ColumnElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

from maniflex.model.meta import Kind
from maniflex.sql.statement import Dialect, by_dialect, sa_dialect
from maniflex.sql.tables import NEW_ID, NOW, column_type


class ColumnType(UserDefinedType[Any]):
    """The type of a column by the kind of value it holds."""

    cache_ok = True
    kind: ClassVar[Kind]

    def get_col_spec(self, **_: Any) -> str:
        return self.kind


@compiles(ColumnType)
def _ddl(type_: ColumnType, compiler: Any, **_: Any) -> str:
    dialect = Dialect(compiler.dialect.name)
    return str(column_type(type_.kind, dialect).compile(dialect=sa_dialect(dialect)))


class TEXT(ColumnType):
    """Text, sorted by code point."""

    kind = Kind.TEXT


class INT(ColumnType):
    """A whole number of 64 bits."""

    kind = Kind.INT


class FLOAT(ColumnType):
    """A floating-point number of 64 bits."""

    kind = Kind.FLOAT


class BOOL(ColumnType):
    """True or false."""

    kind = Kind.BOOL


class DECIMAL(ColumnType):
    """A number with all its digits; on SQLite its order key stands beside it."""

    kind = Kind.DECIMAL


class DATETIME(ColumnType):
    """An instant."""

    kind = Kind.DATETIME


class DATE(ColumnType):
    """A day."""

    kind = Kind.DATE


class TIME(ColumnType):
    """A time of day."""

    kind = Kind.TIME


class UUID(ColumnType):
    """A UUID."""

    kind = Kind.UUID


class BYTES(ColumnType):
    """Bytes."""

    kind = Kind.BYTES


class JSON(ColumnType):
    """A JSON document, kept as it was written."""

    kind = Kind.JSON


BY_KIND: dict[Kind, type[ColumnType]] = {
    type_.kind: type_ for type_ in (TEXT, INT, FLOAT, BOOL, DECIMAL, DATETIME, DATE, TIME, UUID, BYTES, JSON)
}


# SQL that is written differently on each database, in one migration file.


class ByDatabase(ColumnElement[Any]):
    """An expression with a text for each database."""

    inherit_cache = False

    def __init__(self, sqlite: str, postgresql: str) -> None:
        self.sqlite = sqlite
        self.postgresql = postgresql

    def text(self, dialect: Dialect) -> str:
        return by_dialect(dialect, sqlite=self.sqlite, postgres=self.postgresql)


@compiles(ByDatabase)
def _text(expression: ByDatabase, compiler: Any, **_: Any) -> str:
    return expression.text(Dialect(compiler.dialect.name))


def now() -> ByDatabase:
    """The time of an insert, as the default of a column."""
    return ByDatabase(NOW[Dialect.SQLITE], NOW[Dialect.POSTGRES])


def new_id() -> ByDatabase:
    """A new id that rises with time, as the default of a column."""
    return ByDatabase(NEW_ID[Dialect.SQLITE], NEW_ID[Dialect.POSTGRES])


def by_database(*, sqlite: str, postgresql: str) -> ByDatabase:
    """The SQL of a default, written for each database.

    >>> sa.Column("active", types.BOOL(), server_default=by_database(sqlite="1", postgresql="TRUE"))
    """
    return ByDatabase(sqlite, postgresql)
