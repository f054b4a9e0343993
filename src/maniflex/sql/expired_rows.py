"""The delete of a batch of rows whose `expires_at`, in nanoseconds, has passed."""

from __future__ import annotations

from functools import cache

from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.statement_files import FileStatement, statement_of
from maniflex.sql.tables import quote

_TEXTS = {
    Dialect.SQLITE: (
        "DELETE FROM {table} WHERE id IN"
        " (SELECT id FROM {table} WHERE expires_at <= :before ORDER BY expires_at LIMIT :most)"
    ),
    # A row somebody is using is left for the next time, and looked at again once it is locked.
    Dialect.POSTGRES: (
        "WITH due AS MATERIALIZED (SELECT id FROM {table} WHERE expires_at <= :before"
        " ORDER BY expires_at LIMIT :most FOR UPDATE SKIP LOCKED)"
        " DELETE FROM {table} USING due WHERE {table}.id = due.id"
    ),
}


def delete_expired(table: str, dialect: Dialect, before: int, most: int) -> Sql:
    """Delete up to `most` rows that expired at `before` or earlier, the oldest first."""
    return _statement(table, dialect).bind(before=before, most=most)


@cache
def _statement(table: str, dialect: Dialect) -> FileStatement:
    return statement_of(_TEXTS[dialect].format(table=quote(table, dialect)), dialect)
