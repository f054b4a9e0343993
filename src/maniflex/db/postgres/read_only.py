"""Transactions of a database that is open for reading alone; no statement in them can end that.

PostgreSQL lets a transaction change from reading to writing until its first query, so that query is ours.
What is left is a statement that ends the transaction: all that comes after it is refused. A few statements
that PostgreSQL does not count as writing are refused before they are sent, and every transaction ends with a
rollback, so that what functions did besides is gone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar

from maniflex.db.budget import Budget
from maniflex.db.port import ReadOnlyDatabase, Row
from maniflex.db.postgres.connection import Reply
from maniflex.db.postgres.errors import READ_ONLY
from maniflex.db.postgres.first_words import first_words, maintains, refuse_end
from maniflex.db.postgres.pool import Pool
from maniflex.db.postgres.transaction import Pick, PostgresTx
from maniflex.sql.statement import Sql

T = TypeVar("T")

FIRST_QUERY = "; SELECT 1"  # it takes a snapshot; the mode of the transaction is settled with it
IN_TRANSACTION = "25001"  # a change of the mode, or a statement that no transaction may hold, such as VACUUM


class ReadOnlyTx(PostgresTx):
    """A transaction that reads, whatever it is told."""

    __slots__ = ()

    def __init__(self, pool: Pool, begin: str) -> None:
        super().__init__(pool, begin + FIRST_QUERY, read_only=True)

    async def run(self, sql: Sql, pick: Pick[T], limit: int = 0, budget: Budget | None = None) -> T:
        def pick_inside(reply: Reply) -> T:
            refuse_end(reply[1])
            return pick(reply)

        _refuse_maintenance(sql)
        return await super().run(sql, pick_inside, limit, budget)

    def stream(self, sql: Sql, batch: int) -> AsyncGenerator[list[Row], None]:
        _refuse_maintenance(sql)
        return super().stream(sql, batch)

    async def _commit(self) -> None:
        # PostgreSQL lets a reading transaction make large objects and send notifications; none of them stays.
        await self._roll_back()

    def _fail_and_translate(self, error: Exception) -> Exception:
        translated = super()._fail_and_translate(error)
        if getattr(error, "sqlstate", None) in (READ_ONLY, IN_TRANSACTION):
            return ReadOnlyDatabase()
        return translated


def _refuse_maintenance(sql: Sql) -> None:
    if maintains(first_words(sql.text)):
        raise ReadOnlyDatabase
