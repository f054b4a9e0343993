"""The delete of a batch of rows whose `expires_at`, a moment or its nanoseconds, or whose age has passed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from maniflex.model.meta import Kind, ModelMeta
from maniflex.sql.codec import encoder
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.statement_files import NamedStatement, statement_of
from maniflex.sql.tables import quote

EXPIRY = "expires_at"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TEXTS = {
    Dialect.SQLITE: (
        "DELETE FROM {table} WHERE id IN"
        " (SELECT id FROM {table} WHERE {column} <= :before ORDER BY {column} LIMIT :most)"
    ),
    # A row somebody is using is left for the next time, and looked at again once it is locked.
    Dialect.POSTGRES: (
        "WITH due AS MATERIALIZED (SELECT id FROM {table} WHERE {column} <= :before"
        " ORDER BY {column} LIMIT :most FOR UPDATE SKIP LOCKED)"
        " DELETE FROM {table} USING due WHERE {table}.id = due.id"
    ),
}


def delete_expired(
    meta: ModelMeta, dialect: Dialect, before: datetime, most: int, column: str = EXPIRY
) -> Sql:
    """Delete up to `most` rows whose column is at `before` or earlier, the oldest first."""
    moment = _encode(meta.by_name[column].kind, dialect, before)
    return _statement(meta.table, column, dialect).bind(before=moment, most=most)


def _encode(kind: Kind, dialect: Dialect, moment: datetime) -> Any:
    """The moment as the column has it."""
    if kind is Kind.INT:
        return (moment - _EPOCH) // _MICROSECOND * 1000
    encode = encoder(kind, dialect)
    return moment if encode is None else encode(moment)


@cache
def _statement(table: str, column: str, dialect: Dialect) -> NamedStatement:
    names = {"table": quote(table, dialect), "column": quote(column, dialect)}
    return statement_of(_TEXTS[dialect].format(**names), dialect)
