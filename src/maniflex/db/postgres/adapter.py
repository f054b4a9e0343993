"""The PostgreSQL adapter, on asyncpg.

Statements run as prepared statements on pooled connections. A statement that cannot have run (dead
connection, stale plan) is tried once more; one that may have run never is. Behind a transaction pooler
(`pooler=True`) nothing is kept on a connection: unnamed statements, settings by SET LOCAL, timeouts by our
own clock. `ReplicatedAdapter` is the same with a replica for reads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from maniflex.db.budget import Budget
from maniflex.db.current import detached_context
from maniflex.db.port import STREAM_BATCH, BatchStatement, Isolation, Row, Wake
from maniflex.db.statements import StatementObserver
from maniflex.errors import (
    ConfigError,
    DeclarationError,
    SerializationFailure,
    Timeout,
    Unavailable,
)
from maniflex.sql.statement import Dialect, LookupText, Sql

try:
    import asyncpg  # noqa: F401
except ImportError as missing:
    raise DeclarationError(
        'PostgreSQL needs the asyncpg driver: pip install "maniflex[postgres]"'
    ) from missing

from maniflex.db._quick import QuickTexts
from maniflex.db.postgres.address import parse_address
from maniflex.db.postgres.errors import STALE_STATEMENT, translate
from maniflex.db.postgres.hangs import HangWatch
from maniflex.db.postgres.hosts import Hosts
from maniflex.db.postgres.listener import Listener
from maniflex.db.postgres.pool import Pool, Stuck
from maniflex.db.postgres.read_only import ReadOnlyTx
from maniflex.db.postgres.refusals import NoConnectionLeft
from maniflex.db.postgres.session import STEADY, session_settings, set_local
from maniflex.db.postgres.start_checks import check_settings, make_schema, report_needs
from maniflex.db.postgres.transaction import (
    Pick,
    PostgresTx,
    all_rows,
    begin_text,
    first_row,
    row_count,
)

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection, PooledConnection

T = TypeVar("T")

PING_WITHIN = 5.0
SIBLING_POOL = 2
EXPRESS_FROM = 4  # a pool of so many connections has one more, for quick statements when all are busy

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_BEGIN = {
    (isolation, read_only): begin_text(isolation, read_only=read_only)
    for isolation in (None, *Isolation)
    for read_only in (False, True)
}
# A result that is read slowly is neither a statement that hangs nor a transaction that was forgotten.
_NO_TIMEOUTS = "; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"

_PATIENT = dict.fromkeys(("statement_timeout", "lock_timeout"), timedelta(days=7))

log = logging.getLogger("maniflex.db")


class PostgresAdapter:
    """One PostgreSQL database."""

    dialect = Dialect.POSTGRES
    read_versions = None

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        statement_timeout: timedelta = timedelta(seconds=30),
        lock_timeout: timedelta = timedelta(seconds=5),
        idle_in_transaction_timeout: timedelta = timedelta(seconds=60),
        application_name: str = "maniflex",
        schema: str | None = None,
        pooler: bool = False,
        connect_timeout: timedelta = timedelta(seconds=10),
        pool_timeout: timedelta = timedelta(seconds=10),
        max_lifetime: timedelta = timedelta(minutes=30),
        max_idle: timedelta = timedelta(minutes=5),
    ) -> None:
        if pool_size < 1:
            raise ConfigError("a connection pool needs room for at least one connection")
        if schema is not None and not _IDENTIFIER.fullmatch(schema):
            raise ConfigError("a schema name is letters, digits, _ and $, and starts with a letter or _")
        self.schema = schema
        self._address = parse_address(url)
        self._hosts = Hosts(self._address, within=connect_timeout.total_seconds(), takes_writes=True)
        self._session = session_settings(
            schema,
            application_name,
            statement_timeout=statement_timeout,
            lock_timeout=lock_timeout,
            idle_in_transaction_session_timeout=idle_in_transaction_timeout,
        )
        self._pooler = pooler = pooler or self._address.is_pooler
        self._opened = False
        self._read_only = False
        self._free_for_all = 0  # connections of the server, for all its processes; 0 behind a pooler
        self._in_blocks = pooler and schema is not None  # each statement, to have its settings
        self._set_local = set_local(self._session) if pooler else ""

        self._new_pool = partial(
            Pool,
            patience=pool_timeout.total_seconds(),
            max_lifetime=max_lifetime.total_seconds(),
            max_idle=max_idle.total_seconds(),
            named_statements=not pooler,
            statement_timeout=statement_timeout.total_seconds(),
        )
        self._quick = QuickTexts()
        self._writes = self._reads = self._new_pool(lambda: self._connect(self._hosts), size=pool_size)
        self._express = self._express_pool(self._hosts)
        self._watching: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._sibling: Callable[..., PostgresAdapter] = partial(
            PostgresAdapter,
            url,
            pool_size=SIBLING_POOL,
            statement_timeout=statement_timeout,
            lock_timeout=lock_timeout,
            idle_in_transaction_timeout=idle_in_transaction_timeout,
            application_name=application_name,
            schema=schema,
            pooler=pooler,
            connect_timeout=connect_timeout,
            pool_timeout=pool_timeout,
            max_lifetime=max_lifetime,
            max_idle=max_idle,
        )

    def _express_pool(self, hosts: Hosts) -> Pool | None:
        """One more connection, for quick reads when all others are busy."""
        if self._reads.size < EXPRESS_FROM:
            return None
        return self._new_pool(lambda: self._connect(hosts), size=1, waits_for_full_server=False)

    @property
    def _pools(self) -> tuple[Pool, ...]:
        return (self._writes, *([self._express] if self._express is not None else ()))

    @property
    def _primary_pools(self) -> tuple[Pool, ...]:
        return self._pools

    @property
    def label(self) -> str:
        return self._address.label

    @property
    def identity(self) -> object:
        """What adapters of one database and schema have in common, whoever they sign in as."""
        address = self._address
        return address.hosts, address.database_name, address.options, self.schema

    def observe_statements(self, observer: StatementObserver) -> None:
        for pool in self._pools:
            pool.observer = observer

    def connections(self) -> dict[str, int]:
        pools = self._pools
        idle = sum(len(pool.free) for pool in pools)
        return {"busy": sum(len(pool.slots) for pool in pools) - idle, "idle": idle}

    # -- statements outside a transaction; each hands out the coroutine of `_run`, which is the hot path

    def fetch(self, sql: Sql, budget: Budget | None = None) -> Coroutine[Any, Any, list[Row]]:
        return self._run(self._reads, sql, all_rows, budget=budget, express=budget is None)

    def fetch_one(self, sql: Sql) -> Coroutine[Any, Any, Row | None]:
        return self._run(self._reads, sql, first_row, 1, express=True)

    def write(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        return self._run(self._writes, sql, all_rows)

    def execute(self, sql: Sql) -> Coroutine[Any, Any, int]:
        return self._run(self._writes, sql, row_count)

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        async with self._transaction(self._reads, read_only=True) as tx:
            return await tx.fetch_named(sql)

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        if not statements:
            return []
        if len(statements) == 1 and isinstance(statements[0], Sql):  # by itself it is a transaction
            return [await self.write(statements[0])]
        try:
            return await self._batch(statements)
        except SerializationFailure as error:
            if not isinstance(error.__cause__, STALE_STATEMENT):
                raise
        return await self._batch(statements)  # all of it was rolled back, and the plans are forgotten

    async def _batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        async with self._transaction(self._writes) as tx:
            return await tx.batch(statements)

    async def _run(
        self,
        pool: Pool,
        sql: Sql,
        pick: Pick[T],
        limit: int = 0,
        *,
        budget: Budget | None = None,
        express: bool = False,
        again: bool = True,
    ) -> T:
        if self._in_blocks:
            async with self._transaction(pool) as tx:
                return await tx.run(sql, pick, limit, budget)
        # Only what may go by the connection kept for quick reads need be known as quick.
        quick = not express or type(sql.text) is LookupText or sql.text in self._quick.texts
        free = pool.free
        if free and again:
            slot = free.pop()
        else:
            try:
                slot = await pool.acquire(hasty=express and quick and self._express is not None)
            except Stuck:
                assert self._express is not None
                return await self._run_express(self._express, sql, pick, limit)
        began = 0.0 if quick else time.monotonic()
        try:
            result = pick(await slot.run(sql, limit, budget))
        except BaseException as error:
            after_failure(pool, slot, error, again=again)
        else:
            pool.release(slot)
            if not quick:
                self._quick.note(sql.text, time.monotonic() - began)
            return result
        return await self._run(pool, sql, pick, limit, budget=budget, again=False)

    async def _run_express(self, express: Pool, sql: Sql, pick: Pick[T], limit: int) -> T:
        """Run a statement that was quick before on a connection that slow ones do not get."""
        try:
            slot = await express.acquire()
        except NoConnectionLeft:
            return await self._run(self._reads, sql, pick, limit)
        if not self._quick.knows(sql.text):  # one of its kind turned out slow meanwhile
            express.release(slot)
            return await self._run(self._reads, sql, pick, limit)
        began = time.monotonic()
        try:
            result = pick(await slot.run(sql, limit))
        except BaseException as error:
            after_failure(express, slot, error, again=True)
        else:
            express.release(slot)
            return result
        finally:
            self._quick.note(sql.text, time.monotonic() - began)
        return await self._run(self._reads, sql, pick, limit, again=False)

    # -- transactions

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[PostgresTx]:
        return self._transaction(self._writes, isolation, read_only=read_only, late=late)

    def _transaction(
        self, pool: Pool, isolation: Isolation | None = None, *, read_only: bool = False, late: bool = False
    ) -> PostgresTx:
        if self._read_only:
            return ReadOnlyTx(pool, _BEGIN[isolation, True] + self._set_local)
        begin = _BEGIN[isolation, read_only] + self._set_local
        return PostgresTx(pool, begin, read_only=read_only, late=late and not self._pooler)

    def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        return self._stream(self._writes, sql, batch)

    async def _stream(
        self,
        pool: Pool,
        sql: Sql,
        batch: int,
        before: Callable[[PostgresTx], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[list[Row], None]:
        begin = _BEGIN[None, True] + self._set_local + _NO_TIMEOUTS
        reading = ReadOnlyTx(pool, begin) if self._read_only else PostgresTx(pool, begin, read_only=True)
        async with reading as tx:
            if before is not None:
                await before(tx)
            async with aclosing(tx.stream(sql, batch)) as batches:
                async for rows in batches:
                    yield rows
                    if not self._opened:  # closing the pool does not have to wait for the last row
                        raise Unavailable("the database was closed")

    # -- notifications

    @asynccontextmanager
    async def listen(self, channel: str, wake: Wake) -> AsyncIterator[None]:
        if not self._opened:
            raise Unavailable("the database is not open")
        if self._pooler:  # it lends a connection for one transaction; no one can listen on it
            yield
            return
        if self._listener is None:
            self._listener = Listener(lambda: self._connect(self._hosts), self.label)
        listener = self._listener
        subscription = await listener.add(channel, wake)
        try:
            yield
        finally:
            await listener.remove(subscription)

    # -- opening and closing

    def sibling(self, *, steady: bool = False, patient: bool = False, **own: Any) -> PostgresAdapter:
        sibling = self._sibling(**(_PATIENT if patient else {}), **own)
        sibling._read_only = self._read_only
        if steady:
            sibling._session |= STEADY
            if self._pooler:  # behind one, no setting outlives its transaction
                sibling._set_local, sibling._in_blocks = set_local(sibling._session), True
        return sibling

    async def open(self, *, read_only: bool = False) -> None:
        """Connect once; a login that is refused stops the start."""
        if read_only or self._read_only:
            self._read_only = self._in_blocks = True
        for pool in self._pools:
            pool.open()
        try:
            self._writes.release(await self._writes.acquire())
            if not self._read_only:
                await make_schema(self._ask, self.label, self.schema)
                size = self._writes.size
                self._free_for_all = await check_settings(self._ask, self.label, size, pooler=self._pooler)
            await self._begin_watch()
        except BaseException:
            await self.close()
            raise
        self._opened = True

    async def _begin_watch(self) -> None:
        """Begin what goes on beside the statements while the database is open."""
        if self._hosts.are_several:
            self._watch(HangWatch(self._hosts, self._primary_pools, self._leave_server).run())

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=detached_context())
        self._watching.add(task)

    def _leave_server(self) -> None:
        if self._listener is not None:
            self._listener.reconnect()

    async def _end_watch(self) -> None:
        watching, self._watching = self._watching, set()
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)

    async def close(self) -> None:
        self._opened = False
        await self._end_watch()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        for pool in self._pools:
            await pool.close()

    async def ping(self) -> None:
        try:
            async with asyncio.timeout(PING_WITHIN):
                await self._run(self._writes, Sql("SELECT 1"), all_rows)
        except TimeoutError as error:
            raise Timeout("the database did not answer in time") from error

    def _connect(self, hosts: Hosts) -> Coroutine[Any, Any, Connection]:
        return hosts.connect(
            is_starting=not self._opened,
            server_settings=None if self._pooler else self._session,
            statement_cache_size=0 if self._pooler else 100,
        )

    def _ask(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        return self._run(self._writes, sql, all_rows)

    def report_needs(self, *, works: bool) -> None:
        """Say how many connections a process like this one may open, and how many such processes fit."""
        size = sum(pool.size for pool in self._primary_pools)
        if works:  # one listens, a thread renews leases, and the queue has its own plans
            size += 2 * SIBLING_POOL + (not self._pooler)
        report_needs(self.label, size, self._free_for_all)


def after_failure(pool: Pool, slot: PooledConnection, error: BaseException, *, again: bool) -> None:
    """Give the connection back; return when the statement may be sent again, else raise."""
    stale, unsent = isinstance(error, STALE_STATEMENT), slot.never_ran(error)
    pool.recover(slot, error)
    if slot.heard_farewell(error):
        pool.discard_free()
    if stale:
        pool.forget_statements()
    if again and (stale or unsent) and not slot.overdue:  # a caller waits for one silence, not for two
        return
    if not isinstance(error, Exception):
        raise error
    raise translate(error, lost=unsent) from error
