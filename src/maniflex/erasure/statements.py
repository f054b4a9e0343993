"""Texts with names and lists in them → statements of a dialect, and SQL that reads JSON columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from maniflex.background.parameters import parameters_of
from maniflex.sql.statement import Dialect, NamedStatement, Sql, by_dialect, statement_of
from maniflex.sql.tables import quote

_AMONG = re.compile(r"AMONG\(:(\w+)\)")


def bind(text: str, dialect: Dialect, **values: Any) -> Sql:
    """The statement with these values; `x AMONG(:ids)` is true for the members of a list of texts."""
    parameters = parameters_of(dialect)
    return _read(text, dialect).bind(
        **{name: parameters.texts(v) if isinstance(v, list) else v for name, v in values.items()}
    )


@lru_cache(maxsize=512)
def _read(text: str, dialect: Dialect) -> NamedStatement:
    list_text = by_dialect(
        dialect, sqlite=r"IN (SELECT value FROM json_each(:\1))", postgres=r"= ANY(:\1::text[])"
    )
    return statement_of(_AMONG.sub(list_text, text), dialect)


def json_text(dialect: Dialect, column: str, *names: str) -> str:
    """SQL of a value inside a JSON column as text; null where there is none, or no JSON."""
    return by_dialect(dialect, sqlite=_sqlite_text, postgres=_postgres_text)(column, names)


def _sqlite_text(column: str, names: Sequence[str]) -> str:
    path = "$" + "".join(f'."{name}"' for name in names).replace("'", "''")
    return f"CASE WHEN json_valid({column}) THEN CAST(json_extract({column}, '{path}') AS TEXT) END"


def _postgres_text(column: str, names: Sequence[str]) -> str:
    *outer, last = [name.replace("'", "''") for name in names]
    value = f"({column}{''.join(f' -> {chr(39)}{name}{chr(39)}' for name in outer)} ->> '{last}')"
    return f"CASE WHEN NOT ({unreadable(Dialect.POSTGRES, column)}) THEN {value} END"


def unreadable(dialect: Dialect, column: str) -> str:
    """SQL: a column has no JSON, or JSON that the database stores and cannot take apart."""
    return by_dialect(
        dialect,
        sqlite=f"NOT json_valid({column})",
        postgres=rf"CAST({column} AS text) ~* '\\u(0000|d[89a-f])'",
    )


def filled_in(text: str, dialect: Dialect, names: Mapping[str, str]) -> str:
    """The text with the names of tables and columns in it, quoted."""
    return text.format(**{key: quote(name, dialect) for key, name in names.items()})


def in_parts(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    """The ids, so many at a time."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]
