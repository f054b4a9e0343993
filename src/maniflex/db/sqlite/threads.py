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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from maniflex.db.port import BatchStatement
from maniflex.db.sqlite.errors import controls_transaction, stands_alone
from maniflex.db.statements import StatementObserver, describe_batch
from maniflex.errors import DatabaseError, ManiflexError, Timeout
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
