"""The PostgreSQL adapter, on asyncpg.

Statements run as prepared statements on pooled connections; outside a transaction reads may go to
a replica. A statement that cannot have run (dead connection, stale plan) is tried once more; one
that may have run never is. Behind a transaction pooler (`pooler=True`) nothing is
kept on a connection: unnamed statements, settings by SET LOCAL, timeouts by our own clock.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from maniflex.db.budget import Budget
from maniflex.db.port import STREAM_BATCH, BatchStatement, Isolation, Row, Wake
from maniflex.errors import (
    ConfigError,
    DeclarationError,
    RequestError,
    SerializationFailure,
    Timeout,
    Unavailable,
)
from maniflex.sql.statement import Dialect, LookupText, Sql

try:
    import asyncpg
except ImportError as missing:
    raise DeclarationError(
        'PostgreSQL needs the asyncpg driver: pip install "maniflex[postgres]"'
    ) from missing

from maniflex.db._quick import QuickTexts
from maniflex.db.postgres.address import Address, parse_address
from maniflex.db.postgres.errors import STALE_STATEMENT, translate
from maniflex.db.postgres.listener import Listener
from maniflex.db.postgres.pool import Pool, Stuck
from maniflex.db.postgres.refusals import refusal, unreachable
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
EXPRESS_FROM = (
    4  # a pool of at least so many connections has one more, for quick statements when all are busy
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_BEGIN = {
    (isolation, read_only): begin_text(isolation, read_only=read_only)
    for isolation in (None, *Isolation)
    for read_only in (False, True)
}
# A result that is read slowly is neither a statement that hangs nor a transaction that was forgotten.
_NO_TIMEOUTS = "; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"

# One plan for each statement, made once, that walks indexes.
_STEADY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_hashagg": "off",
}

log = logging.getLogger("maniflex.db")


class PostgresAdapter:
    """One PostgreSQL database, with an optional replica for reads outside transactions."""

    dialect = Dialect.POSTGRES
    read_versions = None

    def __init__(
        self,
        url: str,
        *,
        read_url: str | None = None,
        pool_size: int = 10,
        read_pool_size: int = 10,
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
        if pool_size < 1 or read_pool_size < 1:
            raise ConfigError("a connection pool needs room for at least one connection")
        if schema is not None and not _IDENTIFIER.fullmatch(schema):
            raise ConfigError("a schema name is letters, digits, _ and $, and starts with a letter or _")
        self.schema = schema
        self._address = parse_address(url)
        self._read_address = parse_address(read_url) if read_url else None
        self._connect_timeout = connect_timeout.total_seconds()
        self._session = _session_settings(
            schema,
            application_name,
            statement_timeout=statement_timeout,
            lock_timeout=lock_timeout,
            idle_in_transaction_session_timeout=idle_in_transaction_timeout,
        )
        self._pooler = pooler
        self._opened = False
        self._in_blocks = pooler and schema is not None  # each statement, to have its settings
        self._set_local = _set_local(self._session) if pooler else ""

        pool = partial(
            self._pool,
            patience=pool_timeout.total_seconds(),
            max_lifetime=max_lifetime.total_seconds(),
            max_idle=max_idle.total_seconds(),
            named_statements=not pooler,
            statement_timeout=statement_timeout.total_seconds(),
        )
        self._quick = QuickTexts()
        self._make_pools(pool, pool_size, read_pool_size)
        self._listener: Listener | None = None
        self._sibling: Callable[[], PostgresAdapter] = partial(
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

    def _make_pools(self, pool: Callable[[Address, int], Pool], size: int, read_size: int) -> None:
        """One pool for writes and one for reads, if there is a replica; one connection for quick reads."""
        self._writes = pool(self._address, size)
        self._reads = pool(self._read_address, read_size) if self._read_address else self._writes
        self._servers = [(self._writes, self._address)]
        if self._read_address:
            self._servers.append((self._reads, self._read_address))
        self._pools = tuple(pool for pool, _ in self._servers)
        self._express: Pool | None = None
        if self._reads.size >= EXPRESS_FROM:
            self._express = pool(self._read_address or self._address, 1)

    def _pool(self, address: Address, size: int, **options: Any) -> Pool:
        return Pool(lambda: self._connect(address), size=size, **options)

    @property
    def label(self) -> str:
        return self._address.label

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
            _after_failure(pool, slot, error, again=again)
        else:
            pool.release(slot)
            if not quick:
                self._quick.note(sql.text, time.monotonic() - began)
            return result
        return await self._run(pool, sql, pick, limit, budget=budget, again=False)

    async def _run_express(self, express: Pool, sql: Sql, pick: Pick[T], limit: int) -> T:
        """Run a statement that was quick before on a connection that slow ones do not get."""
        slot = await express.acquire()
        if not self._quick.knows(sql.text):  # one of its kind turned out slow meanwhile
            express.release(slot)
            return await self._run(self._reads, sql, pick, limit)
        began = time.monotonic()
        try:
            result = pick(await slot.run(sql, limit))
        except BaseException as error:
            _after_failure(express, slot, error, again=True)
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
        begin = _BEGIN[isolation, read_only] + self._set_local
        return PostgresTx(pool, begin, read_only=read_only, late=late and not self._pooler)

    async def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        begin = _BEGIN[None, True] + self._set_local + _NO_TIMEOUTS
        tx = PostgresTx(self._reads, begin, read_only=True)
        async with tx, aclosing(tx.stream(sql, batch)) as batches:
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
            self._listener = Listener(lambda: self._connect(self._address), self.label)
        listener = self._listener
        subscription = await listener.add(channel, wake)
        try:
            yield
        finally:
            await listener.remove(subscription)

    # -- opening and closing

    def sibling(self, *, steady: bool = False) -> PostgresAdapter:
        sibling = self._sibling()
        if steady:
            sibling._session |= _STEADY
            if self._pooler:  # behind one, no setting outlives its transaction
                sibling._set_local, sibling._in_blocks = _set_local(sibling._session), True
        return sibling

    async def open(self) -> None:
        """Connect once to each server; a login that is refused stops the start."""
        for pool in self._pools:
            pool.open()
        if self._express is not None:
            self._express.open()
        try:
            for pool in self._pools:
                pool.release(await pool.acquire())
            await self._make_schema()
            await self._check_settings()
        except BaseException:
            await self.close()
            raise
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        for pool in (*self._pools, *([self._express] if self._express is not None else ())):
            await pool.close()

    async def ping(self) -> None:
        try:
            async with asyncio.timeout(PING_WITHIN):
                for pool in self._pools:
                    await self._run(pool, Sql("SELECT 1"), all_rows)
        except TimeoutError as error:
            raise Timeout("the database did not answer in time") from error

    async def _connect(self, address: Address) -> Connection:
        try:
            return await asyncpg.connect(
                **address.arguments(),
                timeout=self._connect_timeout,
                server_settings=None if self._pooler else self._session,
                statement_cache_size=0 if self._pooler else 100,
            )
        except Exception as error:
            config_error = None if self._opened else refusal(error, address)
            raise config_error or unreachable(error, address) from error

    async def _make_schema(self) -> None:
        if self.schema is None or self.schema == "public" or await self._has_schema():
            return
        try:
            await self._run(self._writes, Sql(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"'), row_count)
        except RequestError as error:
            # Two processes that start together may both try; the loser finds what it wanted.
            if not await self._has_schema():
                raise ConfigError(
                    f"{self.label}: schema {self.schema} is absent and cannot be made"
                ) from error

    async def _has_schema(self) -> bool:
        statement = Sql("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", (self.schema,))
        return bool(await self._run(self._writes, statement, all_rows))

    async def _check_settings(self) -> None:
        if self._pooler:
            zone = await self._setting(self._writes, "TimeZone")
            if zone.upper() not in ("UTC", "ETC/UTC", "GMT"):
                log.warning("%s: the time zone is %s; set the role's to UTC", self.label, zone)
            return
        pool_sizes: dict[object, int] = {}
        for pool, address in self._servers:
            pool_sizes[address.hosts] = pool_sizes.get(address.hosts, 0) + pool.size
        for pool, address in self._servers:
            max_connections = int(await self._setting(pool, "max_connections"))
            if (size := pool_sizes.pop(address.hosts, 0)) > max_connections / 2:
                log.warning(
                    "%s: pools of %d exceed half of max_connections (%d)",
                    address.label,
                    size,
                    max_connections,
                )

    async def _setting(self, pool: Pool, name: str) -> str:
        [row] = await self._run(pool, Sql(f"SHOW {name}"), all_rows)
        return str(row[0])


def _after_failure(pool: Pool, slot: PooledConnection, error: BaseException, *, again: bool) -> None:
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


def _session_settings(schema: str | None, application_name: str, **timeouts: timedelta) -> dict[str, str]:
    """What every session starts with; a zero timeout leaves the server's own."""
    # Compiling a statement takes longer than running any of ours.
    settings = {"application_name": application_name, "TimeZone": "UTC", "jit": "off"}
    if schema is not None:
        settings["search_path"] = f'"{schema}"'
    for name, timeout in timeouts.items():
        if timeout < timedelta(0):
            raise ConfigError(f"{name} cannot be negative")
        if timeout:
            settings[name] = str(max(1, timeout // timedelta(milliseconds=1)))
    return settings


def _set_local(settings: dict[str, str]) -> str:
    """The same settings for one transaction, to follow its BEGIN in one message."""
    values = {name: "'" + value.replace("'", "''") + "'" for name, value in settings.items()}
    if "search_path" in settings:
        values["search_path"] = settings["search_path"]  # an identifier already, not a text
    return "".join(f"; SET LOCAL {name} = {value}" for name, value in values.items())
