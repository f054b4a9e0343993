"""SQL that is written differently on each database, in one migration file.

>>> sa.Column("active", types.BOOL(), server_default=by_database(sqlite="1", postgresql="TRUE"))
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.compiler import compiles

from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import NEW_ID, NOW


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
    """The SQL of a default, written for each database."""
    return ByDatabase(sqlite, postgresql)
