"""Run SQLite statements on threads without stalling the event loop: the way there and back, and readers.

A `Statement` goes into a queue, a thread runs it on its `Desk`, the outcome returns through the
`Inbox`. Sessions and commits are the business of `_sqlite_lane`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from maniflex.db._sqlite_errors import controls_transaction, translate
from maniflex.errors import DatabaseError, Timeout

Connect = Callable[[], sqlite3.Connection]
Collect = Callable[[sqlite3.Cursor], Any]
STALL_SECONDS = 0.005
WAKE_AFTER = 16  # finished statements


class Statement:
    """One statement on its way: what to run, what to keep of the cursor, and who waits for it."""

    __slots__ = ("abandoned", "collect", "expired", "future", "params", "text")

    def __init__(
        self, text: str, params: Sequence[Any], collect: Collect, future: asyncio.Future[Any]
    ) -> None:
        self.text = text
        self.params = params
        self.collect = collect
        self.future = future
        self.abandoned = False  # nobody waits for it
        self.expired = False  # it had its time

    def perform(self, connection: sqlite3.Connection) -> Any:
        return self.collect(connection.execute(self.text, self.params))

    def check_time(self, cause: Exception | None = None) -> None:
        if self.expired:
            raise Timeout("the statement took too long") from cause


def refuse_control(text: str) -> None:
    if controls_transaction(text):
        raise DatabaseError("a transaction is begun and ended by transaction(), not by a statement")


class Inbox:
    """Takes outcomes back to the event loop, one wake-up for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._woken = False
        self.delivered = 0

    def put(self, future: asyncio.Future[Any], value: Any, error: Exception | None = None) -> None:
        self._outcomes.append((future, value, error))

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            # A closed loop has nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.deliver)

    @property
    def filling(self) -> int:
        return len(self._outcomes)

    def deliver(self) -> None:
        # Lowered before the first look, so that whoever puts later sends a wake-up of its own.
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


class Desk:
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
        # The time before the statement: whoever reads them the other way round sees it too young at worst.
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

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Clockwatch:
    """Ends statements that run longer than they may; it looks up only when one could be due.

    It sleeps when nothing is `pending`. A statement whose time has come is kept for another second
    while it does not `matter`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        desks: Iterable[Desk],
        *,
        pending: Callable[[], bool],
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._desks = desks
        self._pending = pending
        self._matters = matters
        self.awake = seconds <= 0  # without a limit there is nothing to wake up for

    def wake(self) -> None:
        """A statement is on its way and nobody watches the clock."""
        self.awake = True
        self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        waits = [wait for desk in self._desks if (wait := self._look_at(desk)) is not None]
        self.awake = self._pending()
        if self.awake:
            self._loop.call_later(min(waits, default=self._seconds), self._look)

    def _look_at(self, desk: Desk) -> float | None:
        """End the desk's statement if it is due, else say when to look again."""
        statement = desk.busy_with
        if statement is None:
            return None
        left = desk.busy_since + self._seconds - time.monotonic()
        if left > 0:
            return left
        if not statement.expired and not self._matters():
            return 1.0
        statement.expired = True
        # Asked again soon: SQLite forgets an interrupt that comes just before the first step.
        return STALL_SECONDS if desk.interrupt(statement) else None


class _Reader(Desk):
    """A reading thread. It is on duty, or parked, or relieved because its statement is slow."""

    __slots__ = ("relieved", "thread", "unparked")

    def __init__(self) -> None:
        super().__init__()
        self.relieved = False
        self.unparked = threading.Semaphore(0)
        self.thread: threading.Thread | None = None


class Readers:
    """One thread serves all reads; while it is held up by a slow one, another takes over.

    Threads that read at the same time only take the interpreter away from each other, so exactly
    one is on duty. The relieved one parks when its statement is done.
    """

    def __init__(
        self, connect: Connect, loop: asyncio.AbstractEventLoop, limit: int, statement_timeout: float
    ) -> None:
        self._connect = connect
        self._loop = loop
        self._limit = limit
        self._inbox = Inbox(loop)
        self._queue: SimpleQueue[Statement | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._readers: list[_Reader] = []
        self._parked: list[_Reader] = []
        self._clock = Clockwatch(loop, statement_timeout, self._readers, pending=self._is_pending)
        self._on_duty = self._hire()
        self._submitted = 0
        self._watching = False
        self._last_seen: Statement | None = None
        self._stopping = False

    async def run(self, text: str, params: Sequence[Any], collect: Collect) -> Any:
        statement = Statement(text, params, collect, self._loop.create_future())
        self._submitted += 1
        self._queue.put(statement)
        if not self._watching and self._submitted - self._inbox.delivered > 1:
            self._watching = True
            self._loop.call_later(STALL_SECONDS, self._watch)
        if not self._clock.awake:
            self._clock.wake()
        try:
            return await statement.future
        except asyncio.CancelledError:
            self._interrupt(statement)
            raise

    def stop(self) -> None:
        """Let the threads end once the queue is empty."""
        self._stopping = True
        self._queue.put(None)

    def join(self) -> None:
        for reader in self._readers:
            if reader.thread is not None:
                reader.thread.join()

    def _hire(self) -> _Reader:
        reader = _Reader()
        reader.thread = threading.Thread(
            target=self._serve, args=(reader,), name="maniflex-sqlite-reader", daemon=True
        )
        self._readers.append(reader)
        reader.thread.start()
        return reader

    def _watch(self) -> None:
        """Every few milliseconds while statements wait: is the thread on duty held up?"""
        self._inbox.deliver()
        current = self._on_duty.busy_with
        if current is not None and current is self._last_seen:
            self._relieve()
        self._last_seen = current
        if self._submitted - self._inbox.delivered > 1:
            self._loop.call_later(STALL_SECONDS, self._watch)
        else:
            self._watching = False
            self._last_seen = None

    def _relieve(self) -> None:
        with self._lock:
            slow = self._on_duty
            if self._parked:
                self._on_duty = self._parked.pop()
                self._on_duty.unparked.release()
            elif len(self._readers) < self._limit:
                self._on_duty = self._hire()
            else:
                return
            slow.relieved = True

    def _is_pending(self) -> bool:
        return self._submitted > self._inbox.delivered

    def _interrupt(self, statement: Statement) -> None:
        statement.abandoned = True
        # SQLite forgets an interrupt that comes just before the statement's first step.
        if any(reader.interrupt(statement) for reader in self._readers):
            self._loop.call_later(STALL_SECONDS, self._interrupt, statement)

    def _serve(self, reader: _Reader) -> None:
        queue, inbox = self._queue, self._inbox
        while (statement := queue.get()) is not None:
            self._answer(reader, statement)
            if queue.empty() or reader.relieved or inbox.filling >= WAKE_AFTER:
                inbox.wake()
            if reader.relieved and not self._back_on_duty(reader):
                reader.unparked.acquire()
        queue.put(None)
        self._unpark_all()
        reader.close()

    def _answer(self, reader: _Reader, statement: Statement) -> None:
        try:
            connection = reader.connection
            if connection is None:
                connection = reader.connection = self._connect()
            value = None if statement.abandoned else reader.run(statement, connection)
        except Exception as error:
            ours = translate(error, reader.connection, statement.text, reading=True)
            self._inbox.put(statement.future, None, ours)
        else:
            self._inbox.put(statement.future, value)

    def _back_on_duty(self, reader: _Reader) -> bool:
        """A relieved thread is done: take over when its successor is held up too, or else park."""
        with self._lock:
            reader.relieved = False
            successor = self._on_duty
            if self._stopping:
                return True
            if len(self._readers) == self._limit and not self._parked and successor.busy_with is not None:
                successor.relieved = True
                self._on_duty = reader
                return True
            self._parked.append(reader)
            return False

    def _unpark_all(self) -> None:
        with self._lock:
            for reader in self._parked:
                reader.unparked.release()
            self._parked.clear()
