"""PostgreSQL with a replica for reads.

The reads of a `ReplicaReader` (a request that only reads, a run) go to the replica as long as it answers, is
not too far behind and has got to the position the reader needs; all others, and those the replica fails, go
to the primary. A task asks both servers once a second where they are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import asyncpg

from maniflex.db.budget import Budget
from maniflex.db.current import ReplicaReader, current_reader
from maniflex.db.port import STREAM_BATCH, BatchStatement, Isolation, Row
from maniflex.db.postgres.adapter import PostgresAdapter, after_failure
from maniflex.db.postgres.hosts import Hosts, NoConnectionLeft, parse_address
from maniflex.db.postgres.transaction import Pick, PostgresTx, all_rows, first_row
from maniflex.errors import ConfigError, DatabaseError, RequestError, SerializationFailure, Unavailable
from maniflex.sql.statement import Sql

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection
    from maniflex.db.postgres.pool import Pool


T = TypeVar("T")

ASK_EVERY = 1.0
ASK_AGAIN_AFTER = 0.05
ANSWER_WITHIN = 2.0
STRAYED = "it follows another server, and has what the primary has not"
# A server that is away, that cancels what stands in the way of replaying, or that does not know a table yet.
REPLICA_ONLY = (Unavailable, SerializationFailure, DatabaseError)


class Behind(Exception):
    """The replica has not got as far as the reader needs."""


class ReplicatedAdapter(PostgresAdapter):
    """One PostgreSQL database, and a replica of it for reads."""

    def __init__(
        self,
        url: str,
        *,
        read_url: str,
        read_pool_size: int = 10,
        read_max_lag: timedelta = timedelta(seconds=10),
        **options: Any,
    ) -> None:
        super().__init__(url, **options)
        if read_pool_size < 1:
            raise ConfigError("a connection pool needs room for at least one connection")
        self._read_hosts = Hosts(parse_address(read_url), within=ANSWER_WITHIN, takes_writes=False)
        # Of a replica that is full we use the connections we have, and none is worth to wait for another.
        self._reads = self._new_pool(self._connect_replica, size=read_pool_size, waits_for_full_server=False)
        self._express = self._express_pool(self._read_hosts)
        self.replica = Replica(f"{self._read_hosts.address.label} (replica)", read_max_lag.total_seconds())
        self._probe: Connection | None = None
        self._cluster: Row | None = None  # of the primary; None where the server does not say
        self._strayed: datetime | None = None  # when a replica was started that follows another server
        self._suspicion = asyncio.Event()

    @property
    def label(self) -> str:
        return f"{super().label} (primary)"

    @property
    def _pools(self) -> tuple[Pool, ...]:
        return (*super()._pools, self._reads)

    @property
    def _primary_pools(self) -> tuple[Pool, ...]:
        return (self._writes,)

    # -- reads

    def fetch(self, sql: Sql, budget: Budget | None = None) -> Coroutine[Any, Any, list[Row]]:
        reader = current_reader.get()
        if reader is None or not self.replica.may_serve(reader):
            return self._run(self._writes, sql, all_rows, budget=budget)
        return self._read(reader.position, sql, all_rows, 0, budget)

    def fetch_one(self, sql: Sql) -> Coroutine[Any, Any, Row | None]:
        reader = current_reader.get()
        if reader is None or not self.replica.may_serve(reader):
            return self._run(self._writes, sql, first_row, 1)
        return self._read(reader.position, sql, first_row, 1, None)

    async def _read(self, position: int, sql: Sql, pick: Pick[T], limit: int, budget: Budget | None) -> T:
        try:
            if position:
                return await self._read_behind(position, sql, pick, limit, budget)
            return await self._run(self._reads, sql, pick, limit, budget=budget, express=budget is None)
        except Behind:
            pass
        except REPLICA_ONLY:
            self._suspicion.set()
        return await self._run(self._writes, sql, pick, limit, budget=budget)

    async def _read_behind(
        self, position: int, sql: Sql, pick: Pick[T], limit: int, budget: Budget | None
    ) -> T:
        """Read on a connection whose server has got to `position`; an address may stand for several."""
        if self._pooler or self._in_blocks:  # and a pooler may use another one for each transaction
            async with self._transaction(self._reads, read_only=True) as tx:
                await _require(tx, position)
                return await tx.run(sql, pick, limit, budget)
        slot = await self._reads.acquire()
        try:
            if slot.replayed < position:
                [[slot.replayed]] = (await slot.run(REPLAYED))[0]
            result = pick(await slot.run(sql, limit, budget)) if slot.replayed >= position else None
        except BaseException as error:
            after_failure(self._reads, slot, error, again=True)
            raise Behind from error
        self._reads.release(slot)
        if slot.replayed < position:
            raise Behind
        return result  # type: ignore[return-value]  # it was read

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        reader = current_reader.get()
        if reader is not None and self.replica.may_serve(reader):
            try:
                async with self._transaction(self._reads, read_only=True) as tx:
                    await _require(tx, reader.position)
                    return await tx.fetch_named(sql)
            except Behind:
                pass
            except REPLICA_ONLY:
                self._suspicion.set()
        async with self._transaction(self._writes, read_only=True) as tx:
            return await tx.fetch_named(sql)

    async def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        reader = current_reader.get()
        if reader is not None and self.replica.may_serve(reader):
            position, is_begun = reader.position, False
            source = self._stream(self._reads, sql, batch, lambda tx: _require(tx, position))
            try:
                async with aclosing(source) as batches:
                    async for rows in batches:
                        is_begun = True
                        yield rows
                return
            except (Behind, *REPLICA_ONLY):
                if is_begun:  # the rest would be of another moment
                    raise
        async with aclosing(self._stream(self._writes, sql, batch)) as batches:
            async for rows in batches:
                yield rows

    # -- writes, which the reader has to see afterwards

    def write(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        return _note(super().write(sql))

    def execute(self, sql: Sql) -> Coroutine[Any, Any, int]:
        return _note(super().execute(sql))

    async def _batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        return await _note(super()._batch(statements))

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[PostgresTx]:
        tx = super().transaction(isolation=isolation, read_only=read_only, late=late)
        reader = current_reader.get()
        return tx if reader is None or read_only else _Noted(tx, reader)

    async def position(self) -> Place:
        """Where the primary's log is: all that is committed is before it."""
        [row] = await self._run(self._writes, PLACE, all_rows)
        return Place(*row)

    @property
    def cluster_key(self) -> bytes:
        """What all processes of this database know, and their clients do not."""
        return b"" if self._cluster is None else str(tuple(self._cluster)).encode()

    # -- watching

    async def _begin_watch(self) -> None:
        await super()._begin_watch()
        with suppress(DatabaseError):  # not every role may ask
            [self._cluster] = await self._ask(CLUSTER)
        await self._look()
        self._watch(self._keep_looking())

    async def _end_watch(self) -> None:
        await super()._end_watch()
        self._drop_probe()

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY):
                    await self._suspicion.wait()
                    await asyncio.sleep(ASK_AGAIN_AFTER)
            self._suspicion.clear()
            try:
                await self._look()
            except Exception as error:  # whatever it is, the next look may find otherwise
                self._leave_replica(error)

    async def _look(self) -> None:
        """Ask both servers where they are; a replica that says nothing is left."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                position, started_at, takes_writes = await self._ask_replica()
        except ConfigError:
            raise
        except Exception as error:
            self._leave_replica(error)
            await self._look_at_primary()
            return
        # Asked after the replica, the primary is ahead of it, unless they do not belong together.
        primary_started_at = await self._look_at_primary()
        if takes_writes:
            is_alone = primary_started_at in (None, started_at)
            trouble = "" if is_alone else "it was promoted, and is not the primary"
        else:
            if primary_started_at is not None and self.replica.has_strayed(position):
                self._strayed = started_at  # until it is made anew: PostgreSQL has no way back
            trouble = STRAYED if started_at == self._strayed else ""
        if trouble:
            self._leave_replica(Unavailable(trouble))
        else:
            self.replica.note_replayed(position)

    async def _look_at_primary(self) -> datetime | None:
        """When the primary was started; None while it is away, and the replica goes on to serve."""
        asked_at = time.monotonic()
        with suppress(RequestError, TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN):
                [[timeline, position, started_at]] = await self._ask(PRIMARY_STATE)
                self.replica.note_primary(asked_at, Place(timeline, position))
                return cast(datetime, started_at)
        return None

    async def _ask_replica(self) -> tuple[int, datetime, bool]:
        """How far it is, when it was started, and whether it takes writes."""
        # On a connection of its own: those of the pool may all be busy with slow reads.
        if self._probe is None or self._probe.is_closed():
            self._probe = await self._connect(self._read_hosts)
            await self._check_cluster(self._probe)
        place, started_at, takes_writes = cast(Any, await self._probe.fetchrow(REPLICA_STATE))
        return place, started_at, takes_writes

    async def _check_cluster(self, probe: Connection) -> None:
        """Refuse the replica of something else: its rows are not ours, and its positions mean nothing."""
        if self._cluster is None:
            return
        try:
            cluster, database = cast(Any, await probe.fetchrow(CLUSTER.text))
        except asyncpg.InsufficientPrivilegeError:
            return
        if (cluster, database) != tuple(self._cluster):
            what = "server" if cluster != self._cluster[0] else "database"
            raise ConfigError(f"read_database: {self.replica.label} is no replica of this {what}")

    async def _connect_replica(self) -> Connection:
        try:
            return await self._connect(self._read_hosts)
        except NoConnectionLeft:  # it answers, and so do the connections that we have
            raise
        except Unavailable as error:
            self._leave_replica(error)
            raise

    def _leave_replica(self, error: BaseException) -> None:
        self.replica.note_away(error)
        self._drop_probe()
        for pool in (self._reads, *([self._express] if self._express is not None else ())):
            pool.refuse_waiters("the replica does not answer")
            pool.discard_all()  # what waits for an answer is asked of the primary instead

    def _drop_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.terminate()


async def _require(tx: PostgresTx, position: int) -> None:
    if position:
        [[replayed]] = await tx.fetch(REPLAYED)
        if replayed < position:
            raise Behind


def _note(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    reader = current_reader.get()
    return work if reader is None else _run_and_note(work, reader)


async def _run_and_note(work: Awaitable[T], reader: ReplicaReader) -> T:
    reader.begin_write()
    try:
        return await work
    finally:
        reader.end_write()


class _Noted:
    """A transaction that tells its reader when it has ended."""

    __slots__ = ("_reader", "_tx")

    def __init__(self, tx: AbstractAsyncContextManager[PostgresTx], reader: ReplicaReader) -> None:
        self._tx = tx
        self._reader = reader

    async def __aenter__(self) -> PostgresTx:
        tx = await self._tx.__aenter__()
        self._reader.begin_write()
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._tx.__aexit__(kind, error, trace)
        finally:
            self._reader.end_write()


# How a replica is: whether it answers, how far it has come, and which reads it may serve.
#
# Positions are those of the primary's log (WAL), as numbers. The primary is asked once a second where it
# is; by that the age of what the replica shows is known without comparing the clocks of two machines. It
# is known from when the replica has come to where the primary first was.
#
# A server that is promoted begins a new timeline of the log. A replica may have got more of the old one,
# and its positions then say nothing about the new one.

# The next record's place, not the last one on disk: a commit that does not wait for the disk is before it.
# Where a page has nothing but its header yet, the last record ended before that, and no replica gets further.
POSITION = Sql(
    "SELECT place - CASE"
    " WHEN place % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40"
    " WHEN place % current_setting('wal_block_size')::int = 24 THEN 24 ELSE 0 END"
    " FROM (SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS place) AS log"
)
REPLAYED = Sql(
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
    " - '0/0'::pg_lsn)::bigint"
)
_TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"
PLACE = Sql(f"SELECT {_TIMELINE}, ({POSITION.text})")
# The same, when the server was started (which tells servers apart), and whether it takes writes.
PRIMARY_STATE = Sql(f"{PLACE.text}, pg_postmaster_start_time()")
REPLICA_STATE = f"SELECT ({REPLAYED.text}), pg_postmaster_start_time(), NOT pg_is_in_recovery()"
CLUSTER = Sql("SELECT system_identifier, current_database() FROM pg_control_system()")
MOST_SAMPLES = 3600
PAGE_HEADER = 40  # at most; by this a position may or may not be behind the last record

log = logging.getLogger("maniflex.db")


class Place(NamedTuple):
    """A place in the log of a primary."""

    timeline: int
    position: int


class Replica:
    """What is known of one replica; `max_lag` of 0 takes it however far it is behind."""

    def __init__(self, label: str, max_lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.is_up = False
        self.lag = 0.0  # seconds
        self._max_lag = max_lag
        self._clock = clock
        self._place = Place(0, 0)  # of the primary
        self._sampled_at = 0.0
        self._until = 0  # how far the replica has to come for its lag to be known; 0 if it is
        self._ahead: deque[tuple[float, int]] = deque()  # when the primary was where the replica is not yet
        self._is_reported_late = self._is_reported_away = False

    @property
    def is_usable(self) -> bool:
        return self.is_up and not self.is_late and not (self._until and self._max_lag)

    @property
    def is_late(self) -> bool:
        return 0 < self._max_lag < self.lag

    def may_serve(self, reader: ReplicaReader) -> bool:
        """Whether the reader may ask the replica, which must then have come to `reader.position`."""
        if reader.needs_primary or reader.open_writes or not self.is_usable:
            return False
        if reader.timeline and reader.timeline != self._place.timeline:  # of a primary we do not know yet
            return False
        if reader.written_at:
            if self._sampled_at < reader.written_at:  # where that write is has not been asked yet
                return False
            reader.position, reader.written_at = max(reader.position, self._place.position), 0.0
        return True

    def note_primary(self, asked_at: float, place: Place) -> None:
        """All that was committed before `asked_at` is before `place`."""
        timeline, position = self._place
        is_other = place.timeline != timeline or place.position < position  # than before, or the first
        if is_other:
            self._ahead.clear()
            self._until = place.position
        if (is_other or place.position > position) and len(self._ahead) < MOST_SAMPLES:
            self._ahead.append((asked_at, place.position))
        self._sampled_at, self._place = asked_at, place

    def has_strayed(self, position: int) -> bool:
        """Whether the replica, at `position` before the primary was asked, has what the primary has not."""
        return position > self._place.position + PAGE_HEADER

    def note_replayed(self, position: int) -> None:
        """The replica answers, and shows all that is before `position`."""
        while self._ahead and self._ahead[0][1] <= position:
            self._ahead.popleft()
        if position >= self._until:
            self._until = 0
        self.lag = self._clock() - self._ahead[0][0] if self._ahead else 0.0
        if not self.is_up:
            log.info("%s: it answers, %.1f s behind", self.label, self.lag)
        self.is_up, self._is_reported_away = True, False
        if self.is_late and not self._is_reported_late:
            log.warning("%s: %.1f s behind; reads go to the primary until it is not", self.label, self.lag)
        self._is_reported_late = self.is_late

    def note_away(self, error: BaseException) -> None:
        """The replica does not answer."""
        if not self._is_reported_away:
            log.warning("%s: it does not answer, so reads go to the primary: %s", self.label, _why(error))
        self._is_reported_away = True
        self.is_up = False


def _why(error: BaseException) -> str:
    place = getattr(error, "place", "")
    return "no answer in time" if isinstance(error, TimeoutError) else place or str(error) or repr(error)


# Poolers between us and the server, and how many connections an adapter opens.

# A statement that a session prepared, and that its backend does not know or has from another session.
_LOST_STATEMENT = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
_PID = "SELECT pg_backend_pid()"


def is_pooled(adapter: PostgresAdapter) -> bool:
    """Whether the application says that a transaction pooler stands before the server."""
    return adapter._pooler


def most_connections(adapter: PostgresAdapter) -> int:
    """How many connections the adapter has at most, the one that listens among them."""
    return sum(pool.size for pool in adapter._primary_pools) + 1


async def changes_backends(adapter: PostgresAdapter) -> bool:
    """Whether one session is served by several backends, as behind a transaction pooler.

    While a second session holds the backend that served the first one, the first is asked again.
    """
    first = await adapter._connect(adapter._hosts)
    try:
        before = await first.fetchval(_PID)
        second = await adapter._connect(adapter._hosts)
        try:
            async with second.transaction():
                await second.fetchval(_PID)
                return bool(await first.fetchval(_PID) != before)
        except _LOST_STATEMENT:
            return True
        finally:
            await second.close()
    finally:
        await first.close()
