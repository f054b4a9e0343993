"""SQLite behind the `Adapter` port: stdlib `sqlite3` on own threads.

Reads are served by `Readers`, writes by one `Writer` that owns the only writing connection, read-only
transactions by writers of their own. A write is answered when it is on disk.

>>> adapter = SqliteAdapter("app.db")
>>> await adapter.open()
>>> await adapter.fetch(Sql("SELECT ?", (1,)))
[(1,)]
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from sqlite3 import Cursor
from types import TracebackType
from typing import Any

from maniflex.db.budget import Budget
from maniflex.db.port import STREAM_BATCH, BatchStatement, CommitHooks, Isolation, Row, Tx, Wake
from maniflex.db.sqlite.checkpoints import LogKeeper
from maniflex.db.sqlite.connect import (
    MEMORY,
    ConnectionSource,
    cannot_open,
    check_location,
    private_file,
    remove_file,
)
from maniflex.db.sqlite.errors import writes_after_with
from maniflex.db.sqlite.readers import Readers, fetch_within
from maniflex.db.sqlite.threads import Collect, OpenStreams, Session
from maniflex.db.sqlite.watch import Watch
from maniflex.db.sqlite.writer import FAILED, Writer
from maniflex.db.statements import StatementObserver
from maniflex.errors import ConfigError, DatabaseError, Timeout, TransactionError, Unavailable
from maniflex.sql.statement import Dialect, Sql

_PATIENCE = timedelta(days=7)
CLOSE_WITHIN = 5.0  # what after-commit calls get


class SqliteAdapter:
    """One SQLite file, or `:memory:` for a database that is this adapter's alone."""

    dialect = Dialect.SQLITE
    read_versions = None

    def __init__(
        self,
        path: str,
        *,
        readers: int = 4,
        lock_timeout: timedelta = timedelta(seconds=5),
        statement_timeout: timedelta = timedelta(seconds=30),
        pool_timeout: timedelta = timedelta(seconds=10),
        durable: bool = True,
        cache_statements: int = 256,
    ) -> None:
        if readers < 1:
            raise ConfigError("SQLite needs at least one reader")
        if statement_timeout < timedelta(0):
            raise ConfigError("statement_timeout cannot be negative")
        self._path = path
        self._limit = readers
        self._lock_timeout = lock_timeout
        self._statement_timeout = statement_timeout.total_seconds()
        self._pool_timeout = pool_timeout.total_seconds()
        self._durable = durable
        self._cache_statements = cache_statements
        self._read_only = False
        self._shared_file: str | None = None  # the private file of another adapter, which removes it
        self._engine: _Engine | None = None
        self._observer: StatementObserver | None = None
        self._release: weakref.finalize[Any, SqliteAdapter] | None = None
        self.why_closed = "the database is not open"

    @property
    def label(self) -> str:
        return f"sqlite:{self._path if self._path == MEMORY else os.path.basename(self._path)}"

    @property
    def identity(self) -> object:
        """What adapters of one database have in common."""
        return self if self._path == MEMORY else os.path.realpath(self._path)

    @property
    def path(self) -> str:
        """The file, or `:memory:`."""
        return self._path

    @property
    def is_durable(self) -> bool:
        """Whether a write is answered when it is on the disk."""
        return self._durable

    async def open(self, *, read_only: bool = False) -> None:
        if self._engine is not None:
            return
        in_memory = self._path == MEMORY
        self._read_only |= read_only and not in_memory
        if not in_memory:
            check_location(self._path)
        own_file = private_file() if in_memory and self._shared_file is None else None
        source = ConnectionSource(
            own_file or self._shared_file or self._path,
            "OFF" if in_memory else "FULL" if self._durable else "NORMAL",
            self._lock_timeout,
            self._cache_statements,
            read_only=self._read_only,
        )
        limits = self._limit, self._statement_timeout, self._pool_timeout
        engine = _Engine(source, asyncio.get_running_loop(), *limits, self._observer)
        self._release = weakref.finalize(self, _abandon, engine, own_file)
        try:
            await engine.writer.write("PRAGMA user_version", (), Cursor.fetchall)
            await engine.readers.run("SELECT 1", (), Cursor.fetchall)
        except BaseException as error:
            self._release()
            if isinstance(error, DatabaseError | Unavailable | Timeout):
                raise type(error)(cannot_open(self._path)) from error.__cause__
            raise
        self._engine = engine

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        await engine.close()
        if self._release is not None:
            self._release()

    async def ping(self) -> None:
        await self._open_engine().readers.run("SELECT 1", (), Cursor.fetchall)

    def observe_statements(self, observer: StatementObserver) -> None:
        self._observer = observer

    def connections(self) -> dict[str, int]:
        if self._engine is None:
            return {"busy": 0, "idle": 0}
        readers, writes = self._engine.readers, self._engine.writer.sessions > 0
        busy = readers.busy() + writes
        return {"busy": busy, "idle": readers.count() + 1 - busy}

    # -- statements outside a transaction; each hands out the coroutine of a thread's client: the hot path

    def fetch(self, sql: Sql, budget: Budget | None = None) -> Coroutine[Any, Any, list[Row]]:
        collect = Cursor.fetchall if budget is None else partial(fetch_within, budget)
        return self._open_engine().readers.run(sql.text, sql.params, collect)

    def fetch_one(self, sql: Sql) -> Coroutine[Any, Any, Row | None]:
        return self._open_engine().readers.run(sql.text, sql.params, Cursor.fetchone)

    def fetch_named(self, sql: Sql) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        return self._open_engine().readers.run(sql.text, sql.params, _rows_as_dicts)

    def write(self, sql: Sql) -> Coroutine[Any, Any, list[Row]]:
        return self._open_engine().writer.write(sql.text, sql.params, Cursor.fetchall)

    def execute(self, sql: Sql) -> Coroutine[Any, Any, int]:
        return self._open_engine().writer.write(sql.text, sql.params, _counter(sql.text))

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        engine = self._open_engine()
        if not statements:
            return []
        rows: list[list[Row]] = await engine.writer.batch(tuple(statements))
        return rows

    def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        return self._open_engine().streams.read(sql, batch)

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[Tx]:
        # One writer at a time and snapshots for readers: every level is serializable already.
        engine = self._open_engine()
        return _Block(engine, engine.snapshot_writer() if read_only else engine.writer, late=late)

    def sibling(self, *, steady: bool = False, patient: bool = False) -> SqliteAdapter:
        sibling = SqliteAdapter(
            self._path,
            readers=1,
            lock_timeout=_PATIENCE if patient else self._lock_timeout,
            statement_timeout=_PATIENCE if patient else timedelta(seconds=self._statement_timeout),
            pool_timeout=timedelta(seconds=self._pool_timeout),
            durable=self._durable,
            cache_statements=self._cache_statements,
        )
        sibling._read_only = self._read_only
        if self._path == MEMORY:
            sibling._shared_file = self._open_engine().path
        return sibling

    @asynccontextmanager
    async def listen(self, channel: str, wake: Wake) -> AsyncIterator[None]:
        # The channel does not matter: a change of the file is noticed, not of which table.
        watch = self._open_engine().watch
        listener = watch.add(wake)
        try:
            yield
        finally:
            watch.remove(listener)

    def _open_engine(self) -> _Engine:
        if self._engine is None:
            raise Unavailable(self.why_closed)
        return self._engine


class SqliteTx(CommitHooks):
    """An open transaction; all its statements run on the one connection that holds it."""

    __slots__ = ("_engine", "_session", "_writer")

    dialect = Dialect.SQLITE
    read_versions = None  # it is the only writer from its beginning to its end

    def __init__(self, engine: _Engine, writer: Writer, session: Session) -> None:
        super().__init__()
        self._engine = engine
        self._writer = writer
        self._session: Session | None = session

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        collect = Cursor.fetchall if budget is None else partial(fetch_within, budget)
        rows: list[Row] = await self._run(sql, collect)
        return rows

    async def fetch_one(self, sql: Sql) -> Row | None:
        row: Row | None = await self._run(sql, Cursor.fetchone)
        return row

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self._run(sql, _rows_as_dicts)
        return rows

    async def write(self, sql: Sql) -> list[Row]:
        rows: list[Row] = await self._run(sql, Cursor.fetchall)
        return rows

    async def execute(self, sql: Sql) -> int:
        row_count: int = await self._run(sql, _counter(sql.text))
        return row_count

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        session = self._usable()
        if not statements:
            return []
        rows: list[list[Row]] = await self._writer.call_batch(session, tuple(statements))
        return rows

    def _run(self, sql: Sql, collect: Collect) -> Coroutine[Any, Any, Any]:
        return self._writer.call(self._usable(), sql.text, sql.params, collect)

    def _usable(self) -> Session:
        session = self._session
        if session is None:
            raise DatabaseError("the transaction has ended")
        if session.failed:
            raise DatabaseError(FAILED)
        return session

    def doom(self) -> None:
        if self._session is not None:
            self._session.failed = True

    async def end(self, *, commit: bool) -> None:
        """Commit or roll back, then run the after-commit calls; a cancellation is raised last."""
        session, self._session = self._session, None
        if session is None:
            raise TransactionError("TX_COMMIT_ERROR", "the transaction has ended")
        cancellation = await self._writer.finish(session, commit=commit, guard=self._guard)
        if commit and self._after_commit:
            # A caller cancelled in this moment must not take the calls of a commit with it.
            await asyncio.shield(self._engine.in_background(self.run_after_commit()))
        if cancellation is not None:
            raise cancellation


class _Block:
    """`async with adapter.transaction()`."""

    __slots__ = ("_engine", "_late", "_tx", "_writer")

    def __init__(self, engine: _Engine, writer: Writer, *, late: bool) -> None:
        self._engine = engine
        self._writer = writer
        self._late = late
        self._tx: SqliteTx | None = None

    async def __aenter__(self) -> Tx:
        if self._tx is not None:
            raise TransactionError("TX_BEGIN_ERROR", "a transaction is entered once")
        session = self._writer.begin_late() if self._late else await self._writer.begin()
        self._tx = SqliteTx(self._engine, self._writer, session)
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tx is not None
        await self._tx.end(commit=error is None)


_Part = Readers | Writer | OpenStreams | Watch


class _Engine:
    """The threads of an open adapter."""

    def __init__(
        self,
        source: ConnectionSource,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        statement_timeout: float,
        pool_timeout: float,
        observer: StatementObserver | None,
    ) -> None:
        self._source = source
        self._observer = observer
        self._loop = loop
        self._limit = limit
        self._statement_timeout = statement_timeout
        self._snapshots: list[Writer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.path = source.path
        self.readers = Readers(source.reader, loop, limit, statement_timeout, pool_timeout, observer)
        self._log = None if source.read_only else LogKeeper(source.path, loop)
        self.watch = Watch(source.watcher, loop)
        self.writer = Writer(
            source.writer,
            loop,
            begin="BEGIN IMMEDIATE",
            lock_timeout=source.lock_timeout,
            statement_timeout=statement_timeout,
            observer=observer,
            durable=source.synchronous == "FULL",
            log=self._log,
        )
        self.streams = OpenStreams(source.reader, self._log, self.writer.nudge)

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` even if its caller is cancelled; `close` waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def snapshot_writer(self) -> Writer:
        """The least busy writer for a read-only transaction; a new one while there may be more."""
        least = min(self._snapshots, key=lambda writer: writer.sessions, default=None)
        if least is not None and (least.sessions == 0 or len(self._snapshots) >= self._limit):
            return least
        writer = Writer(
            self._source.reader,
            self._loop,
            begin="BEGIN",
            lock_timeout=self._source.lock_timeout,
            statement_timeout=self._statement_timeout,
            observer=self._observer,
            reading=True,
        )
        self._snapshots.append(writer)
        return writer

    @property
    def _reading(self) -> Sequence[_Part]:
        return self.readers, self.streams, self.watch, *self._snapshots

    def stop_reading(self) -> None:
        for part in self._reading:
            part.stop()

    async def close(self) -> None:
        """Finish what runs. The writer goes last, so that it is the one to fold the log into the file."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_WITHIN)
        for task in self._tasks:
            task.cancel()
        self.stop_reading()
        for part in self._reading:
            await self._join(part)
        self.writer.stop()
        await self._join(self.writer)

    async def _join(self, part: _Part) -> None:
        """Wait for a part's threads, on one that does not keep the process from ending."""
        has_ended = asyncio.Event()

        def join() -> None:
            part.join()
            with suppress(RuntimeError):  # the loop is closed, and no task waits any more
                self._loop.call_soon_threadsafe(has_ended.set)

        waiting = threading.Thread(target=join, name="maniflex-sqlite-join", daemon=True)
        waiting.start()
        await has_ended.wait()
        waiting.join()  # it has said its last word


def _abandon(engine: _Engine, private: str | None) -> None:
    engine.stop_reading()
    engine.writer.stop()
    if private is not None:
        remove_file(private)


def _rows_as_dicts(cursor: Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _row_count(cursor: Cursor) -> int:
    cursor.fetchall()
    return max(cursor.rowcount, 0)


def _changes(cursor: Cursor) -> int:
    cursor.fetchall()
    [row_count] = cursor.connection.execute("SELECT changes()").fetchone()
    return int(row_count)


def _counter(text: str) -> Collect:
    return _changes if writes_after_with(text) else _row_count
