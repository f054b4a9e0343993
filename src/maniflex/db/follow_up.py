"""What runs the insert of a store together with a write that follows from the new row; a store takes it for
a transaction. Both are committed, or neither, and no transaction stays open in between.

On SQLite they are one batch, which shares its commit with others. On PostgreSQL they are one statement: the
second is made of the row as it will be stored, and refused should it turn out to be stored otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from maniflex.db.budget import Budget
from maniflex.db.port import CommitRefused, Row
from maniflex.errors import DatabaseError
from maniflex.sql import write as sql_follow_up
from maniflex.sql.statement import Dialect, Sql, by_dialect

if TYPE_CHECKING:
    from maniflex.db.store import Store

MakeFollowUp = Callable[[Row], Sql]  # a write that gives rows back; may run on another thread, and twice


class InsertWithFollowUp:
    """Runs one insert and its follow-up; `CommitRefused` when the second changes no row, or cannot be made.

    Reads go to the database as they are: a store asks it why a write touched nothing.
    """

    read_versions = None

    def __init__(self, store: Store, make: MakeFollowUp) -> None:
        self._store = store
        self._make = make

    @property
    def dialect(self) -> Dialect:
        return self._store.adapter.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        return await self._store.adapter.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        return await self._store.adapter.fetch_one(sql)

    def write(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        """The row that the insert gives back."""
        run = by_dialect(self.dialect, sqlite=self._write_in_batch, postgres=self._write_in_statement)
        return run(sql)

    async def _write_in_batch(self, insert: Sql) -> list[Row]:
        rows = await self._store.adapter.batch((insert, self._follow, _require_change))
        return rows[0]

    def _follow(self, rows: Sequence[list[Row]]) -> Sql | None:
        if not rows[0]:  # it refers to a record that is not there
            return None
        [row] = rows[0]
        return self._make(row if self._store.decode is None else self._store.decode(row))

    async def _write_in_statement(self, insert: Sql) -> list[Row]:
        store = self._store
        row = sql_follow_up.row_to_expect(store.sql, insert)
        if row is None:
            raise CommitRefused("how the row will be stored is not certain")
        statement = sql_follow_up.insert_with(store.sql, insert, self._make(row))
        try:
            return await store.adapter.write(statement)
        except DatabaseError as error:
            if type(error) is DatabaseError:  # as one that divides by zero
                raise CommitRefused("the follow-up changed no row") from error
            raise


def _require_change(rows: Sequence[list[Row]]) -> None:
    if rows[0] and not rows[1]:
        raise CommitRefused("the follow-up changed no row")
