"""Times, lists and rows as parameters of fixed statements: SQLite takes texts, PostgreSQL its own types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from maniflex.sql.codec import encode_datetime, encode_plain
from maniflex.sql.statement import Dialect, by_dialect

PACKAGE = "maniflex.background"  # whose folder `sql` has the statements


class Parameters(Protocol):
    """How one dialect takes what has no type that all of them share."""

    def time(self, moment: datetime | None) -> Any: ...

    def texts(self, values: Sequence[str]) -> Any:
        """Many texts as one parameter."""

    def rows(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Many rows as few parameters: one for each of the columns `names`, or `rows` for all."""


class SqliteParameters:
    """Times are texts that sort like times; lists and rows are JSON."""

    def time(self, moment: datetime | None) -> str | None:
        return None if moment is None else encode_datetime(moment)

    def texts(self, values: Sequence[str]) -> str:
        return encode_plain(values)

    def rows(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return {"rows": encode_plain(rows)}


class PostgresParameters:
    """Times are times, and lists are arrays."""

    def time(self, moment: datetime | None) -> datetime | None:
        return moment

    def texts(self, values: Sequence[str]) -> Sequence[str]:
        return values

    def rows(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return dict(zip(names, zip(*rows, strict=True), strict=True))


def parameters_of(dialect: Dialect) -> Parameters:
    """The parameters of a dialect."""
    sqlite: Parameters = SqliteParameters()
    postgres: Parameters = PostgresParameters()
    return by_dialect(dialect, sqlite=sqlite, postgres=postgres)
