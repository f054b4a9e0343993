"""Threads that read SQLite: one on duty, others where a statement is slow, one kept for quick reads."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from sqlite3 import Cursor
from time import perf_counter
from typing import Any

from maniflex.db.budget import Budget, rows_size
from maniflex.db.port import Row
from maniflex.db.sqlite.errors import translate
from maniflex.db.sqlite.threads import (
    STALL_SECONDS,
    Collect,
    Connect,
    Outcomes,
    Statement,
    StatementTimeout,
    ThreadConnection,
)
from maniflex.db.statements import QuickTexts, StatementObserver
from maniflex.errors import AnswerTooLarge, Unavailable

WAKE_AFTER = 16  # finished statements


class _ReaderThread(ThreadConnection):
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
    one is on duty. The relieved one parks when its statement is done. The last thread there may be
    runs only statements that were quick before and defers the others to those that are relieved, so
    that a read by id does not wait for heavy ones. A statement whose turn does not come in time is
    refused.
    """

    def __init__(
        self,
        connect: Connect,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        statement_timeout: float,
        patience: float,
        observe: StatementObserver | None = None,
    ) -> None:
        self._connect = connect
        self._observe = None if observe is None else observe.__call__  # bound once: each statement calls it
        self._tell_after = math.inf if observe is None else observe.after
        self._loop = loop
        self._limit = limit
        self._patience = patience
        self._inbox = Outcomes(loop)
        self._queue: SimpleQueue[Statement | None] = SimpleQueue()
        self._line: dict[Statement, None] = {}  # statements that did not find an idle thread, by age
        self._deferred: deque[Statement] = deque()
        self._quick = QuickTexts(STALL_SECONDS)
        self._lock = threading.Lock()
        self._readers: list[_ReaderThread] = []
        self._parked: list[_ReaderThread] = []
        self._clock = StatementTimeout(loop, statement_timeout, self._readers, pending=self._is_pending)
        self._on_duty = self._start_reader()
        self._submitted = 0
        self._watching = False
        self._last_seen: Statement | None = None
        self._stopping = False

    async def run(self, text: str, params: Sequence[Any], collect: Collect) -> Any:
        statement = Statement(text, params, collect, self._loop.create_future())
        began = perf_counter()
        self._submitted += 1
        self._queue.put(statement)
        lines_up = self._submitted - self._inbox.delivered > 1
        if lines_up:
            self._line_up(statement)
        if not self._clock.awake:
            self._clock.wake()
        try:
            value = await statement.future
        except BaseException as error:
            if (ended := perf_counter()) - began >= self._tell_after and self._observe is not None:
                self._observe(text, began, ended, error)
            if isinstance(error, asyncio.CancelledError):
                self._interrupt(statement)
                if statement.future.done() and not statement.future.cancelled():
                    statement.future.exception()  # it came in the same moment, and nobody is told of it
            raise
        else:
            if (ended := perf_counter()) - began >= self._tell_after and self._observe is not None:
                self._observe(text, began, ended, None)
            return value
        finally:
            if lines_up:
                self._line.pop(statement, None)

    def stop(self) -> None:
        """Let the threads end once the queue is empty."""
        self._stopping = True
        self._queue.put(None)

    def join(self) -> None:
        for reader in self._readers:
            if reader.thread is not None:
                reader.thread.join()

    def busy(self) -> int:
        """How many threads run a statement right now."""
        return sum(reader.busy_with is not None for reader in self._readers)

    def count(self) -> int:
        """How many threads there are."""
        return len(self._readers)

    def _start_reader(self) -> _ReaderThread:
        reader = _ReaderThread()
        reader.thread = threading.Thread(
            target=self._serve, args=(reader,), name="maniflex-sqlite-reader", daemon=True
        )
        self._readers.append(reader)
        reader.thread.start()
        return reader

    def _line_up(self, statement: Statement) -> None:
        statement.deadline = self._loop.time() + self._patience
        self._line[statement] = None
        if not self._watching:
            self._watching = True
            self._loop.call_later(STALL_SECONDS, self._watch)

    def _watch(self) -> None:
        """Every few milliseconds while statements wait: is the thread on duty held up?"""
        self._inbox.deliver()
        current = self._on_duty.busy_with
        if current is not None and current is self._last_seen:
            self._relieve(current)
        self._last_seen = current
        self._refuse_late()
        if self._submitted - self._inbox.delivered > 1:
            self._loop.call_later(STALL_SECONDS, self._watch)
        else:
            self._watching = False
            self._last_seen = None

    def _refuse_late(self) -> None:
        now = self._loop.time()
        for statement in self._line:
            if statement.started or statement.abandoned:
                continue
            if statement.deadline > now:
                return
            statement.abandoned = True
            if not statement.future.done():
                statement.future.set_exception(Unavailable("no thread became free to read in time"))

    def _relieve(self, current: Statement) -> None:
        self._quick.forget(current.text)
        with self._lock:
            slow = self._on_duty
            if self._parked:
                self._on_duty = self._parked.pop()
                self._on_duty.unparked.release()
            elif len(self._readers) < self._limit:
                self._on_duty = self._start_reader()
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

    # ── on the threads ───────────────────────────────────────────────────────────────────────

    def _serve(self, reader: _ReaderThread) -> None:
        queue, inbox, quick = self._queue, self._inbox, self._quick.texts
        while (statement := queue.get()) is not None:
            if (
                statement.text not in quick
                and not self._quick.knows(statement.text)
                and self._defer(statement)
            ):
                continue
            self._answer(reader, statement)
            if queue.empty() or reader.relieved or inbox.filling >= WAKE_AFTER:
                inbox.wake()
            if reader.relieved:
                self._finish_relief(reader)
        queue.put(None)
        self._unpark_all()
        reader.close()

    def _defer(self, statement: Statement) -> bool:
        """Leave a statement that may be slow to the relieved threads, when this is the last but them."""
        if self._limit == 1 or len(self._readers) < self._limit or self._parked:
            return False
        with self._lock:
            # One that is relieved and still at its statement will look here when it is done. One that was
            # done in the moment it was relieved will not: it waits for the next statement like us.
            if self._parked or not any(r.relieved and r.busy_with is not None for r in self._readers):
                return False
            self._deferred.append(statement)
            return True

    def _answer(self, reader: _ReaderThread, statement: Statement) -> None:
        statement.started = True
        text = statement.text
        try:
            connection = reader.connection
            if connection is None:
                connection = reader.connection = self._connect()
            value = None if statement.abandoned else reader.run(statement, connection)
        except Exception as error:
            self._inbox.put(statement.future, None, translate(error, reader.connection, text, reading=True))
        else:
            self._inbox.put(statement.future, value)
            if text not in self._quick.texts:
                self._quick.note(text, time.monotonic() - reader.busy_since)

    def _finish_relief(self, reader: _ReaderThread) -> None:
        """Run deferred statements until there are none; then go on duty, or park until called."""
        while isinstance(duty := self._next_duty(reader), Statement):
            self._answer(reader, duty)
            self._inbox.wake()
        if not duty:
            reader.unparked.acquire()

    def _next_duty(self, reader: _ReaderThread) -> Statement | bool:
        """A deferred statement to run; or else whether to go on duty, the alternative to parking."""
        with self._lock:
            successor = self._on_duty
            last = len(self._readers) == self._limit and not self._parked
            stuck = last and _is_stuck(successor)
            if self._deferred and not stuck:
                return self._deferred.popleft()
            reader.relieved = False
            if self._stopping:
                return True
            if stuck or (last and successor.busy_with is not None):
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


def _is_stuck(reader: ThreadConnection) -> bool:
    return reader.busy_with is not None and time.monotonic() - reader.busy_since > STALL_SECONDS


# The rows of a SQLite read, within a budget.


FIRST_ROWS = 4  # tell whether rows are large
QUICK_ROWS = 24
SLOW_BYTES = 64 * 1024  # of rows that were counted, as many at a time as hold so much; two at least
# Looking at every value would cost a list more than a twentieth of its time. Rows that were read within
# this time cannot hold more than a few megabytes: memory is no faster. Only others are counted.
QUICK = 0.0005  # seconds


def fetch_within(budget: Budget, cursor: Cursor) -> list[Row]:
    """All rows, or `AnswerTooLarge` a few rows after they exceed the budget; runs on a thread."""
    rows: list[Row] = []
    try:
        _fetch(budget, cursor, rows)
    except AnswerTooLarge:
        rows.clear()  # the traceback would keep them
        cursor.close()
        raise
    return rows


def _fetch(budget: Budget, cursor: Cursor, rows: list[Row]) -> None:
    started_at, amount = perf_counter(), FIRST_ROWS
    while True:
        some = cursor.fetchmany(amount)
        rows += some
        now = perf_counter()
        complete, amount = len(some) < amount, QUICK_ROWS
        if now - started_at > QUICK:
            size = rows_size(some)
            budget.spend(size)
            now, amount = perf_counter(), max(2, SLOW_BYTES * len(some) // (size + 1024))
        if complete:
            return
        started_at = now
