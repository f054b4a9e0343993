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
from maniflex.db.port import STREAM_BATCH, BatchStatement, Isolation, ReadOnlyDatabase, Row, Wake
from maniflex.db.statements import QuickTexts, StatementObserver
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
    import asyncpg  # noqa: F401
except ImportError as missing:
    raise DeclarationError(
        'PostgreSQL needs the asyncpg driver: pip install "maniflex[postgres]"'
    ) from missing

from maniflex.db.postgres.connection import PooledConnection, Reply, first_words, maintains, refuse_end
from maniflex.db.postgres.errors import READ_ONLY, STALE_STATEMENT, translate
from maniflex.db.postgres.hosts import Hosts, NoConnectionLeft, parse_address
from maniflex.db.postgres.listener import Listener
from maniflex.db.postgres.pool import Pool, Stuck
from maniflex.db.postgres.transaction import Pick, PostgresTx, all_rows, begin_text, first_row, row_count

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection


# Transactions of a database that is open for reading alone; no statement in them can end that.
#
# PostgreSQL lets a transaction change from reading to writing until its first query, so that query is
# ours. What is left is a statement that ends the transaction: all that comes after it is refused. A few
# statements that PostgreSQL does not count as writing are refused before they are sent, and every
# transaction ends with a rollback, so that what functions did besides is gone.


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


# Leave a server that hangs, where the address names another one.
#
# A server whose machine or disk has stopped keeps its connections and says nothing. Waiting for the
# deadline of each statement would take half a minute. So once a second this looks for statements that are
# unanswered for a while, and if no connection hears anything, asks the server for a new one: it hangs if
# that fails in time too.


LOOK_EVERY = 1.0
SUSPECT_AFTER = 3  # looks that found the same statements unanswered
ASK_AGAIN_AFTER = 5  # looks, when the server turned out to be only slow

log = logging.getLogger("maniflex.db")


class HangWatch:
    """Watches the connections of one server; calls `leave` when it hangs."""

    def __init__(self, hosts: Hosts, pools: Sequence[Pool], leave: Callable[[], None]) -> None:
        self._hosts = hosts
        self._pools = pools
        self._leave = leave
        self._unanswered: dict[PooledConnection, float] = {}
        self._looks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Count how long nothing was heard; ask the server when that is too long."""
        before, self._unanswered = self._unanswered, self._waiting()
        # A deadline is set anew by each statement, and is the same only while one statement goes on.
        is_silent = bool(before) and all(self._unanswered.get(slot) == due for slot, due in before.items())
        self._looks = self._looks + 1 if is_silent else 0
        if self._looks < SUSPECT_AFTER:
            return
        if await self._hosts.answers():
            self._looks = SUSPECT_AFTER - ASK_AGAIN_AFTER
            return
        self._looks = 0
        log.warning("%s: the server hangs; its connections are closed", self._hosts.address.label)
        for pool in self._pools:
            pool.discard_all()
        self._leave()

    def _waiting(self) -> dict[PooledConnection, float]:
        return {slot: slot.due for pool in self._pools for slot in pool.slots if slot.due}


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


# The settings that every PostgreSQL session of ours starts with.

# One plan for each statement, made once, that walks indexes.
STEADY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_hashagg": "off",
}


def session_settings(schema: str | None, application_name: str, **timeouts: timedelta) -> dict[str, str]:
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


def set_local(settings: dict[str, str]) -> str:
    """The same settings for one transaction, to follow its BEGIN in one message."""
    values = {name: "'" + value.replace("'", "''") + "'" for name, value in settings.items()}
    if "search_path" in settings:
        values["search_path"] = settings["search_path"]  # an identifier already, not a text
    return "".join(f"; SET LOCAL {name} = {value}" for name, value in values.items())


# What an adapter makes sure of when it opens: its schema, the time zone, and room for its connections.


Ask = Callable[[Sql], Awaitable[list[Row]]]


async def make_schema(ask: Ask, label: str, schema: str | None) -> None:
    """Make the schema unless it is there."""
    if schema is None or schema == "public" or await _has_schema(ask, schema):
        return
    try:
        await ask(Sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
    except RequestError as error:
        # Two processes that start together may both try; the loser finds what it wanted.
        if not await _has_schema(ask, schema):
            raise ConfigError(f"{label}: schema {schema} is absent and cannot be made") from error


async def _has_schema(ask: Ask, schema: str) -> bool:
    return bool(await ask(Sql("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", (schema,))))


async def check_settings(ask: Ask, label: str, pool_size: int, *, pooler: bool) -> int:
    """Report settings that do not suit us; how many connections there are for all, 0 behind a pooler."""
    if pooler:
        zone = await _setting(ask, "TimeZone")
        if zone.upper() not in ("UTC", "ETC/UTC", "GMT"):
            log.warning("%s: the time zone is %s; set the role's to UTC", label, zone)
        return 0
    max_connections = int(await _setting(ask, "max_connections"))
    if pool_size > max_connections / 2:
        text = "%s: pools of %d exceed half of max_connections (%d)"
        log.warning(text, label, pool_size, max_connections)
    return max_connections - int(await _setting(ask, "superuser_reserved_connections"))


async def _setting(ask: Ask, name: str) -> str:
    [row] = await ask(Sql(f"SHOW {name}"))
    return str(row[0])


def report_needs(label: str, size: int, free_for_all: int) -> None:
    """Say what each process may take of the connections that there are for all."""
    if not free_for_all:
        log.info("%s: up to %d connections of each process, to the pooler", label, size)
        return
    fitting = free_for_all // size
    level = logging.INFO if fitting > 1 else logging.WARNING
    text = "%s: up to %d connections of each process; the server has %d, enough for %d processes"
    log.log(level, text, label, size, free_for_all, fitting)
