"""Transactions of a database that is open for reading alone; no statement in them can end that.

PostgreSQL lets a transaction change from reading to writing until its first query, so that query is ours.
What is left is a statement that ends the transaction: all that comes after it is refused.
"""

from __future__ import annotations

from typing import TypeVar

from maniflex.db.budget import Budget
from maniflex.db.postgres.connection import Reply
from maniflex.db.postgres.errors import READ_ONLY
from maniflex.db.postgres.pool import Pool
from maniflex.db.postgres.transaction import Pick, PostgresTx
from maniflex.errors import DatabaseError
from maniflex.sql.statement import Sql

T = TypeVar("T")

FIRST_QUERY = "; SELECT 1"  # it takes a snapshot; the mode of the transaction is settled with it
IN_TRANSACTION = "25001"  # a change of the mode, or a statement that no transaction may hold, such as VACUUM
_ENDS = (b"COMMIT", b"ROLLBACK", b"PREPARE TRANSACTION")


class ReadOnlyTx(PostgresTx):
    """A transaction that reads, whatever it is told."""

    __slots__ = ()

    def __init__(self, pool: Pool, begin: str) -> None:
        super().__init__(pool, begin + FIRST_QUERY, read_only=True)

    async def run(self, sql: Sql, pick: Pick[T], limit: int = 0, budget: Budget | None = None) -> T:
        # The tag of the answer, because a text has too many ways to hide its first word.
        def pick_inside(reply: Reply) -> T:
            tag = reply[1] or b""  # there is none while there are more rows
            if tag.startswith(_ENDS):
                raise DatabaseError("begin and end transactions with transaction(), not with SQL")
            return pick(reply)

        return await super().run(sql, pick_inside, limit, budget)

    def _fail_and_translate(self, error: Exception) -> Exception:
        translated = super()._fail_and_translate(error)
        if getattr(error, "sqlstate", None) in (READ_ONLY, IN_TRANSACTION):
            return DatabaseError("the database is open for reading alone; nothing was written")
        return translated
