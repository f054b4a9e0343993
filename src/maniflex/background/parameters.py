"""Times, lists and rows as parameters of fixed statements: SQLite takes texts, PostgreSQL its own types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from maniflex._json import encode_plain
from maniflex._names import snake_case
from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.sql.codec import encode_datetime
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


# Spans of time as people say them.


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(duration: timedelta) -> str:
    """The two largest units of a span, without the second where it is nothing.

    >>> span(timedelta(seconds=7_260))
    '2 h 1 min'
    """
    seconds = max(round(duration.total_seconds()), 0)
    for place, (unit, size) in enumerate(_UNITS):
        if seconds < size and size > 1:
            continue
        whole, rest = divmod(seconds, size)
        below = _UNITS[place + 1] if place + 1 < len(_UNITS) else None
        part = rest // below[1] if below is not None else 0
        return f"{whole} {unit}" + (f" {part} {below[0]}" if below is not None and part else "")
    raise AssertionError("a second is the smallest unit")


# What a run or a message is about: a record, written as `order/<id>`.
#
# It is the `subject` of CloudEvents: the class name in snake case, and the id.


LONGEST = 300
_SUBJECT = re.compile(r"[a-z][a-z0-9_]*/[^\s/\x00][^\x00]*")


def subject_of(record: Any) -> str | None:
    """The subject of a stored record, or a text that is one already."""
    if record is None:
        return None
    text = f"{snake_case(type(record).__name__)}/{_id_of(record)}" if isinstance(record, Model) else record
    if not isinstance(text, str) or len(text) > LONGEST or not _SUBJECT.fullmatch(text):
        message = "is a stored record, or a text such as order/7"
        raise ValidationFailed(f"about {message}", [{"field": "about", "message": message}])
    return text


def _id_of(record: Any) -> str:
    return "" if record.id is None else str(record.id)


def instant(text: str | datetime) -> datetime:
    """A stored time, whichever database it comes from."""
    return datetime.fromisoformat(text) if isinstance(text, str) else text
