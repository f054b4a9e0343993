"""One PostgreSQL transaction: begin, statements in turn, commit or roll back.

A statement that fails leaves the transaction dead, as it is on the server; swallowing the error
does not bring it back, and the block then ends in `TX_COMMIT_ERROR`, never in a silent rollback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import asyncpg

from maniflex.db.budget import Budget
from maniflex.db.port import BatchStatement, CommitHooks, CommitRefused, Isolation, Row
from maniflex.db.postgres.connection import PooledConnection, Reply
from maniflex.db.postgres.errors import STALE_STATEMENT, translate
from maniflex.db.postgres.pool import DRAIN_WITHIN, Pool
from maniflex.db.unchanged import ReadVersions
from maniflex.errors import Conflict, DatabaseError, Timeout, TransactionError, Unavailable
from maniflex.sql.statement import Dialect, Sql

T = TypeVar("T")
Pick = Callable[[Reply], T]

all_rows: Pick[list[Row]] = itemgetter(0)


def first_row(reply: Reply) -> Row | None:
    rows = reply[0]
    return rows[0] if rows else None


def named_rows(reply: Reply) -> list[dict[str, Any]]:
    return [dict(cast(asyncpg.Record, row)) for row in reply[0]]


def row_count(reply: Reply) -> int:
    """How many rows the statement wrote, from a tag like `UPDATE 3`."""
    command, _, count = reply[1].rpartition(b" ")
    return int(count) if count.isdigit() and command != b"SELECT" else 0


def begin_text(isolation: Isolation | None, *, read_only: bool) -> str:
    level = f" ISOLATION LEVEL {isolation.value.upper()}" if isolation else ""
    return f"BEGIN{level}{' READ ONLY' if read_only else ''}"


class _GuardFailed(Exception):
    """The guard of a commit did not pass, and the transaction waits for its rollback."""

    def __init__(self, translated: Exception) -> None:
        super().__init__(str(translated))
        self.translated = translated


class PostgresTx(CommitHooks):
    """An open transaction; as a context manager it begins and ends itself."""

    __slots__ = (
        "_begin",
        "_ended",
        "_failed",
        "_late",
        "_pool",
        "_read_only",
        "_slot",
        "_turn",
        "read_versions",
    )

    dialect = Dialect.POSTGRES
    _slot: PooledConnection

    def __init__(self, pool: Pool, begin: str, *, read_only: bool, late: bool = False) -> None:
        super().__init__()
        self._late = late  # it begins with its first statement
        self._pool = pool
        self._begin = begin
        self._read_only = read_only
        self._turn = asyncio.Lock()  # the driver refuses two statements at once; we let them queue
        self._failed = False
        self._ended = False
        self.read_versions = None if read_only else ReadVersions()

    def fetch(self, sql: Sql, budget: Budget | None = None) -> Coroutine[Any, Any, list[Row]]:
        return self.run(sql, all_rows, budget=budget)

    def fetch_one(self, sql: Sql) -> Coroutine[Any, Any, Row | None]:
        return self.run(sql, first_row, 1)

    def fetch_named(self, sql: Sql) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        return self.run(sql, named_rows)

    def write(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        return self.run(sql, all_rows)

    def execute(self, sql: Sql) -> Coroutine[Any, Any, int]:
        return self.run(sql, row_count)

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        self._refuse_when_over()
        rows: list[list[Row]] = []
        for statement in statements:
            sql = statement(rows) if callable(statement) else statement
            rows.append([] if sql is None else await self.run(sql, all_rows))
        return rows

    async def run(self, sql: Sql, pick: Pick[T], limit: int = 0, budget: Budget | None = None) -> T:
        """Run one statement on this transaction's connection, after those that came before it."""
        self._refuse_when_over()
        async with self._turn:
            self._refuse_when_over()
            try:
                if self._late:
                    return pick(await self._run_first(sql, limit, budget))
                return pick(await self._slot.run(sql, limit, budget))
            except Exception as error:
                raise self._fail_and_translate(error) from error
            except BaseException:
                self._failed = True
                raise

    async def _run_first(self, sql: Sql, limit: int, budget: Budget | None) -> Reply:
        """Begin with this statement; on another connection if this one turns out to be dead."""
        self._late, slot = False, self._slot
        if sql.text in slot.statements:
            try:
                return await slot.run(sql, limit, budget, first=slot.begin_messages(self._begin))
            except Exception as error:
                await self._replace_dead(slot, error)
        await self._begin_late()
        return await self._slot.run(sql, limit, budget)

    async def _begin_late(self) -> None:
        """Begin on the connection there is; on another if this one turns out to be dead."""
        slot = self._slot
        try:
            await slot.begin(self._begin)
        except Exception as error:
            await self._replace_dead(slot, error)
            await self._slot.begin(self._begin)

    async def _replace_dead(self, slot: PooledConnection, error: Exception) -> None:
        """Another connection for one on which nothing was committed; the error of one that is not dead."""
        if not slot.con.is_closed() or slot.overdue:
            raise error
        self._give_up(slot, error)
        self._slot = await self._pool.acquire()

    def doom(self) -> None:
        self._failed = True

    async def stream(self, sql: Sql, batch: int) -> AsyncGenerator[list[Row], None]:
        """The rows in batches; the transaction is theirs alone until they are read or closed."""
        self._refuse_when_over()
        try:
            async for rows in self._slot.batches(sql, batch):
                yield rows
        except Exception as error:
            raise self._fail_and_translate(error) from error

    def _refuse_when_over(self) -> None:
        if self._ended:
            raise DatabaseError("the transaction has ended")
        if self._failed:
            raise DatabaseError("the transaction has failed; roll it back")

    def _fail_and_translate(self, error: Exception) -> Exception:
        self._failed = True
        if isinstance(error, STALE_STATEMENT):
            self._pool.forget_statements()
        if isinstance(error, asyncpg.InternalClientError):
            self._slot.retired = True
        never_ran = self._slot.never_ran(error)
        return translate(error, lost=never_ran, read_only=self._read_only, in_transaction=True)

    # -- beginning and ending

    async def __aenter__(self) -> Self:
        if self._ended or hasattr(self, "_slot"):
            raise TransactionError("TX_BEGIN_ERROR", "a transaction is entered once")
        if self._late:
            self._slot = await self._pool.acquire()
        elif not await self._try_begin(again=True):
            await self._try_begin(again=False)
        return self

    async def _try_begin(self, *, again: bool) -> bool:
        """Whether the transaction is open; False when the connection was dead and another may not be."""
        self._slot = slot = await self._pool.acquire()
        try:
            await slot.begin(self._begin)
        except BaseException as error:
            is_lost = slot.con.is_closed()
            self._give_up(slot, error)
            if not isinstance(error, Exception):
                raise
            if is_lost and again and not slot.overdue:
                return False
            raise _begin_error(error, lost=is_lost) from error
        return True

    def _give_up(self, slot: PooledConnection, error: BaseException) -> None:
        self._pool.drain(slot)
        if slot.heard_farewell(error):
            self._pool.discard_free()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if error is not None and not isinstance(error, Exception):
            self._pool.drain(self._slot)  # cancelled: the caller does not wait for the rollback
            return
        await self._last_statement()
        if self._late and self._guard is None:  # no statement came
            self._pool.release(self._slot)
        elif error is not None:
            await self._roll_back()
        elif self._failed:
            await self._roll_back()
            raise TransactionError("TX_COMMIT_ERROR", "a statement failed; nothing was committed")
        elif self._after_commit:
            # A caller cancelled in this moment must not take the calls of a commit with it.
            await asyncio.shield(self._pool.in_background(self._commit_and_call()))
        else:
            await self._commit()

    async def _last_statement(self) -> None:
        """Wait for a statement that another task still runs here."""
        try:
            async with self._turn:
                pass
        except BaseException:
            self._pool.drain(self._slot)
            raise

    async def _roll_back(self) -> None:
        try:
            await self._slot.roll_back(DRAIN_WITHIN)
        except BaseException as error:
            self._pool.drain(self._slot)
            if not isinstance(error, Exception):
                raise
        else:
            self._pool.release(self._slot)

    async def _commit(self) -> None:
        try:
            status = await (self._slot.commit() if self._guard is None else self._commit_guarded(self._guard))
        except _GuardFailed as failure:
            await self._roll_back()
            raise failure.translated from failure.__cause__
        except BaseException as error:
            self._pool.recover(self._slot, error)
            if not isinstance(error, Exception):
                raise
            raise _commit_error(error) from error
        self._pool.release(self._slot)
        if status != "COMMIT":
            raise TransactionError("TX_COMMIT_ERROR", "the transaction was rolled back")

    async def _commit_guarded(self, guard: Sql) -> str:
        try:
            if self._late:
                await self._begin_late()
            return await self._slot.commit_guarded(guard)
        except Exception as error:
            if self._slot.con.is_closed():
                raise
            refused = isinstance(error, asyncpg.DivisionByZeroError)
            own_error = (
                CommitRefused("the guard changed no row") if refused else self._fail_and_translate(error)
            )
            raise _GuardFailed(own_error) from error

    async def _commit_and_call(self) -> None:
        await self._commit()
        await self.run_after_commit()


def _begin_error(error: Exception, *, lost: bool) -> Exception:
    own_error = Unavailable() if lost else translate(error)
    if isinstance(own_error, Unavailable | Timeout):
        return own_error
    return TransactionError("TX_BEGIN_ERROR", "the transaction could not be started")


def _commit_error(error: Exception) -> Exception:
    own_error = translate(error)
    if isinstance(own_error, Conflict):
        return own_error
    return TransactionError("TX_COMMIT_ERROR", "the commit was not confirmed")
