"""Run SQLite statements on threads without stalling the event loop: the way there and back.

A `Statement` goes into a queue, a thread runs it on its `ThreadConnection`, the outcome returns through the
`Outcomes`. A writer is sent a `Write`, a `BatchRequest`, or a `Session` and its calls. Reads are the business
of `readers.py`, sessions and commits of `writer.py`.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from maniflex.db.port import BatchStatement, Row
from maniflex.db.sqlite.checkpoints import LogKeeper
from maniflex.db.sqlite.errors import controls_transaction, stands_alone, translate
from maniflex.db.statements import StatementObserver, describe_batch
from maniflex.errors import DatabaseError, ManiflexError, Timeout, Unavailable
from maniflex.sql.statement import Sql

Connect = Callable[[], sqlite3.Connection]
Collect = Callable[[sqlite3.Cursor], Any]
STALL_SECONDS = 0.005
_RETRY_SECONDS = 0.001


class Statement:
    """One statement on its way: what to run, what to keep of the cursor, and who waits for it."""

    __slots__ = ("abandoned", "collect", "deadline", "expired", "future", "params", "started", "text")

    def __init__(
        self, text: str, params: Sequence[Any], collect: Collect, future: asyncio.Future[Any]
    ) -> None:
        self.text = text
        self.params = params
        self.collect = collect
        self.future = future
        self.started = False  # its turn has come
        self.deadline = 0.0  # when its turn must have come
        self.abandoned = False  # no task waits for it
        self.expired = False  # it had its time

    def describe(self) -> str:
        """What it is called in a log."""
        return self.text

    def perform(self, connection: sqlite3.Connection) -> Any:
        return self.collect(connection.execute(self.text, self.params))

    def check_time(self, cause: Exception | None = None) -> None:
        if self.expired:
            raise Timeout("the statement took too long", limit="statement_timeout") from cause


def refuse_control(text: str) -> None:
    if controls_transaction(text):
        raise DatabaseError("a transaction is begun and ended by transaction(), not by a statement")


class Write(Statement):
    """A statement that is a transaction of its own."""

    __slots__ = ("error", "value")

    has_changed_rows = False  # whether it has done a part of what it does

    def __init__(
        self, text: str, params: Sequence[Any], collect: Collect, future: asyncio.Future[Any]
    ) -> None:
        super().__init__(text, params, collect, future)
        self.value: Any = None
        self.error: ManiflexError | None = None

    @property
    def alone(self) -> bool:
        """Whether no other write may share its commit."""
        return stands_alone(self.text)


class BatchRequest(Write):
    """Several statements in one transaction; `text` is the one that runs, for the text of a failure."""

    __slots__ = ("has_changed_rows", "statements")

    def __init__(self, statements: Sequence[BatchStatement], future: asyncio.Future[Any]) -> None:
        super().__init__("", (), sqlite3.Cursor.fetchall, future)
        self.statements = statements
        self.has_changed_rows = False

    @property
    def alone(self) -> bool:
        return False

    def describe(self) -> str:
        return describe_batch(self.statements)

    def perform(self, connection: sqlite3.Connection) -> list[list[Any]]:
        rows: list[list[Any]] = []
        changes = connection.total_changes
        self.has_changed_rows = False
        for statement in self.statements:
            self.has_changed_rows = connection.total_changes != changes
            sql = statement(rows) if callable(statement) else statement
            if sql is None:
                rows.append([])
                continue
            text, params = sql
            self.text = text
            refuse_control(text)
            if self.abandoned:
                raise DatabaseError("nobody waits for it any more")
            self.check_time()
            rows.append(connection.execute(text, params).fetchall())
        return rows


class Teller:
    """Tells an observer, if there is one, of statements that took as long as it says."""

    __slots__ = ("_after", "_observer")

    def __init__(self, observer: StatementObserver | None) -> None:
        self._observer = observer
        self._after = math.inf if observer is None else observer.after

    def tell(self, statement: Statement, began: float, error: BaseException | None = None) -> None:
        if (ended := time.perf_counter()) - began >= self._after and self._observer is not None:
            self._observer(statement.describe(), began, ended, error)


class Finish:
    """The last call of a session."""

    __slots__ = ("commit", "future", "guard")

    def __init__(self, commit: bool, future: asyncio.Future[None], guard: Sql | None = None) -> None:
        self.commit = commit
        self.future = future
        self.guard = guard


class Session:
    """A transaction that is open between calls; `future` resolves when it has begun.

    One that is late does not stand in line before it has a statement to run.
    """

    __slots__ = ("abandoned", "calls", "deadline", "failed", "future", "is_late", "never_began", "started")

    def __init__(self, future: asyncio.Future[None], *, is_late: bool = False) -> None:
        self.future = future
        self.is_late = is_late
        self.never_began = False
        self.calls: SimpleQueue[Statement | Finish] = SimpleQueue()
        self.started = self.abandoned = self.failed = False
        self.deadline = 0.0


class Outcomes:
    """Takes outcomes back to the event loop, one wake-up for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._woken = False
        self.delivered = 0

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None = None) -> None:
        self._outcomes.append((future, value, error))

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            # On a closed loop no task waits any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.deliver)

    @property
    def filling(self) -> int:
        return len(self._outcomes)

    def deliver(self) -> None:
        # Lowered before the first look, so that a later `put` sends a wake-up of its own.
        self._woken = False
        outcomes = self._outcomes
        while outcomes:
            future, value, error = outcomes.popleft()
            self.delivered += 1
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class ThreadConnection:
    """A connection and the statement it is busy with, so that an interrupt hits that one alone."""

    __slots__ = ("_lock", "busy_since", "busy_with", "connection")

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None
        self.busy_with: Statement | None = None
        self.busy_since = 0.0
        self._lock = threading.Lock()

    def run(self, statement: Statement, connection: sqlite3.Connection) -> Any:
        refuse_control(statement.text)
        statement.check_time()
        # The time before the statement: a reader of both, the other way round, sees it too young at worst.
        self.busy_since = time.monotonic()
        self.busy_with = statement
        try:
            return statement.perform(connection)
        except sqlite3.OperationalError as error:
            statement.check_time(error)
            raise
        finally:
            with self._lock:
                self.busy_with = None

    def interrupt(self, statement: Statement) -> bool:
        """Stop `statement` if it is the one running; False when it is not."""
        with self._lock:
            if self.busy_with is not statement:
                return False
            if self.connection is not None:
                self.connection.interrupt()
            return True

    def set_synchronous(self, level: str) -> None:
        """Say whether commits wait for the disk. The next connection is as it should be if this one fails."""
        try:
            if self.connection is not None:
                self.connection.execute(f"PRAGMA synchronous = {level}")
        except sqlite3.Error:
            self.close()

    def roll_back(self) -> None:
        """End a transaction that is open."""
        if self.connection is not None and self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def begin_when_free(connection: sqlite3.Connection, text: str, patience: float) -> None:
    """Begin a transaction, waiting for another process that has the lock."""
    deadline = 0.0
    while True:
        try:
            connection.execute(text)
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            deadline = deadline or now + patience
            # Another process committed between our look at the file and our lock on it.
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
                continue
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or now > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


class StatementTimeout:
    """Ends statements that run longer than they may; it looks up only when one could be due.

    It sleeps when nothing is `pending`. A statement whose time has come is kept for another second
    while it does not `matter`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        desks: Iterable[ThreadConnection],
        *,
        pending: Callable[[], bool],
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._connections = desks
        self._pending = pending
        self._matters = matters
        self.awake = seconds <= 0  # without a limit there is nothing to wake up for

    def wake(self) -> None:
        """Look at the running statements once the time limit has passed: one is about to begin."""
        self.awake = True
        self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        waits = [wait for connection in self._connections if (wait := self._look_at(connection)) is not None]
        self.awake = self._pending()
        if self.awake:
            self._loop.call_later(min(waits, default=self._seconds), self._look)

    def _look_at(self, connection: ThreadConnection) -> float | None:
        """End the connection's statement if it is due, else say when to look again."""
        statement = connection.busy_with
        if statement is None:
            return None
        seconds_left = connection.busy_since + self._seconds - time.monotonic()
        if seconds_left > 0:
            return seconds_left
        if not statement.expired and not self._matters():
            return 1.0
        statement.expired = True
        # Asked again soon: SQLite forgets an interrupt that comes just before the first step.
        return STALL_SECONDS if connection.interrupt(statement) else None


# Read a result of any size from SQLite: a connection and a thread for this one statement alone.
#
# An open statement holds its snapshot, so all batches are of one moment, and neither the readers nor the
# writer wait for it. However the reading ends, the connection is closed before the thread is.


T = TypeVar("T")
WAIT_FOR_OTHERS = 10.0  # seconds that a stream waits while the log is too long


class OpenStreams:
    """The results that are being read right now."""

    def __init__(
        self,
        connect: Connect,
        log: LogKeeper | None = None,
        nudge_writer: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connect = connect
        self._log = log
        self._nudge_writer = nudge_writer
        self._open: set[_Stream] = set()
        self._ended: asyncio.Future[None] | None = None  # the end of the next stream that ends
        self._stopped = False

    async def read(self, sql: Sql, batch: int) -> AsyncGenerator[list[Row], None]:
        if self._log is not None and self._log.is_long():
            await self._wait_for_short(self._log)
        if self._stopped:
            raise Unavailable("the database is closed")
        stream = _Stream(self._connect, sql)
        self._open.add(stream)
        self._count()
        try:
            while rows := await stream.next(batch):
                yield rows
        finally:
            self._open.discard(stream)
            await stream.close()
            self._count()
            if self._ended is not None:
                self._ended.set_result(None)
                self._ended = None

    def _count(self) -> None:
        if self._log is not None:
            self._log.streams = len(self._open)

    async def _wait_for_short(self, log: LogKeeper) -> None:
        """Let the open streams end and the log begin anew first: where each begins before the last has
        ended, there would always be one that holds the log."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_FOR_OTHERS):
                while self._open and log.is_long():
                    self._ended = self._ended or asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._ended)
        if not self._open and not self._stopped and self._nudge_writer is not None:
            log.look_now()
            await self._nudge_writer()

    def stop(self) -> None:
        """Break off the open streams."""
        self._stopped = True
        for stream in self._open:
            stream.break_off()

    def join(self) -> None:
        for stream in list(self._open):
            stream.join()


class _Stream:
    """One statement; its methods run one after another, on a thread of their own."""

    def __init__(self, connect: Connect, sql: Sql) -> None:
        self._connect = connect
        self._sql = sql
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maniflex-sqlite-stream")
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._broken = False

    async def next(self, batch: int) -> list[Row]:
        """The next rows; none when there are no more."""
        return await self._in_thread(lambda: self._fetch(batch))

    async def close(self) -> None:
        self._broken = True
        with suppress(Unavailable):  # the adapter was faster
            await self._in_thread(self._close)
        self._thread.shutdown(wait=False)

    def break_off(self) -> None:
        self._broken = True
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # it is closed already
                connection.interrupt()

    def join(self) -> None:
        with suppress(RuntimeError):  # it is shut down already
            self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """The result of `call`; a task that is cancelled meanwhile waits until the thread has given up."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        except RuntimeError:  # its last call is made, by `join`
            raise Unavailable("the database is closed") from None
        cancellation = None
        while not running.done():
            try:
                await asyncio.wait((running,), timeout=None if cancellation is None else STALL_SECONDS)
            except asyncio.CancelledError as error:
                cancellation = error
            if cancellation is not None:
                # Once more every few milliseconds: SQLite forgets an interrupt that comes just
                # before the statement's first step.
                self.break_off()
        if cancellation is not None:
            running.exception()  # looked at, so that nobody reports it as forgotten
            raise cancellation
        return running.result()

    # ── on the stream's thread ───────────────────────────────────────────────────────────────

    def _fetch(self, batch: int) -> list[Row]:
        try:
            if self._broken:
                raise Unavailable("the database is closed")
            if self._cursor is None:
                if controls_transaction(self._sql.text):
                    raise DatabaseError("a stream reads; it does not begin or end transactions")
                self._connection = self._connect()
                self._cursor = self._connection.execute(self._sql.text, self._sql.params)
            return self._cursor.fetchmany(batch)
        except Exception as error:
            raise translate(error, self._connection, self._sql.text, reading=True) from error

    def _close(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()
