"""Locks on the rows that a statement reads."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from maniflex.sql.statement import Dialect, by_dialect


def lock_rows(statement: sa.Select[Any], dialect: Dialect, **options: Any) -> sa.Select[Any]:
    """The statement, holding its rows until the transaction ends; on SQLite the transaction is the lock."""
    return by_dialect(dialect, sqlite=statement, postgres=statement.with_for_update(**options))
