"""A writer: one thread, one connection, one SQLite transaction at a time, first come first served.

One of them writes; each snapshot that a read-only transaction looks at has one of its own. It runs single
writes, many per commit, and sessions, which keep it to themselves until they finish. A request that waits
longer than the lock timeout gets `Timeout`; so does a statement that runs too long while others wait.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from enum import Enum, auto
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from maniflex.db.port import BatchStatement, CommitRefused
from maniflex.db.sqlite.checkpoints import LogKeeper
from maniflex.db.sqlite.errors import begin_error, commit_error, translate
from maniflex.db.sqlite.threads import (
    STALL_SECONDS,
    BatchRequest,
    Collect,
    Connect,
    Finish,
    Outcomes,
    Session,
    Statement,
    StatementTimeout,
    Teller,
    ThreadConnection,
    Write,
    begin_when_free,
)
from maniflex.db.statements import StatementObserver
from maniflex.errors import DatabaseError, ManiflexError, Timeout, TransactionError, Unavailable
from maniflex.sql.statement import LossyText, Sql

GROUP_LIMIT = 128
FAILED = "the transaction has failed; roll it back"


class _Stop(Enum):
    STOP = auto()


class Writer:
    """Runs writes and sessions of one connection in the order they came."""

    def __init__(
        self,
        connect: Connect,
        loop: asyncio.AbstractEventLoop,
        *,
        begin: str,
        lock_timeout: timedelta,
        statement_timeout: float,
        observer: StatementObserver | None = None,
        reading: bool = False,
        durable: bool = False,
        log: LogKeeper | None = None,
    ) -> None:
        self._connect = connect
        self._log = log
        self._loop = loop
        self._begin_text = begin
        self._patience = lock_timeout.total_seconds()
        self._teller = Teller(observer)
        self._reading = reading
        self._durable = durable  # a commit waits for the disk
        self._desk = ThreadConnection()
        self._inbox = Outcomes(loop)
        self._queue: SimpleQueue[Write | Session | _Stop] = SimpleQueue()
        self._held: Write | Session | _Stop | None = None
        self._line: deque[Write | Session] = deque()
        self._watching = False
        self._lock = threading.Lock()
        self._stopped = False
        self._asked = 0  # statements whose answer is awaited
        self._clock = StatementTimeout(
            loop,
            statement_timeout,
            (self._desk,),
            pending=lambda: self._asked > 0,
            matters=self._is_in_the_way,
        )
        self.sessions = 0
        self._thread = threading.Thread(target=self._serve, name="maniflex-sqlite-writer", daemon=True)
        self._thread.start()

    # ── on the event loop ────────────────────────────────────────────────────────────────────

    def write(self, text: str, params: Sequence[Any], collect: Collect) -> Coroutine[Any, Any, Any]:
        """Run one statement and commit it."""
        return self._run_write(Write(text, params, collect, self._loop.create_future()))

    def batch(self, statements: Sequence[BatchStatement]) -> Coroutine[Any, Any, Any]:
        """Run several statements and commit them together."""
        return self._run_write(BatchRequest(statements, self._loop.create_future()))

    async def _run_write(self, write: Write) -> Any:
        began = perf_counter()
        self._line_up(write)
        self._ask()
        try:
            value = await write.future
        except BaseException as error:
            self._teller.tell(write, began, error)
            if isinstance(error, asyncio.CancelledError) and not self._withdraw(write):
                self._interrupt(write)
            raise
        finally:
            self._asked -= 1
        self._teller.tell(write, began)
        return value

    async def nudge(self) -> None:
        """Let the thread come round once, with nothing to write."""
        await self.write("PRAGMA user_version", (), sqlite3.Cursor.fetchall)

    def begin_late(self) -> Session:
        """A session that waits for the writer with its first statement, and begins with it."""
        return Session(self._loop.create_future(), is_late=True)

    async def begin(self) -> Session:
        """Wait for the writer and begin a transaction on it."""
        session = Session(self._loop.create_future())
        self._line_up(session)
        self.sessions += 1
        try:
            await session.future
        except BaseException:
            # Cancelled while it was beginning: no other code will ever finish it.
            if not self._withdraw(session):
                session.calls.put(Finish(False, self._loop.create_future()))
            self.sessions -= 1
            raise
        return session

    def call(
        self, session: Session, text: str, params: Sequence[Any], collect: Collect
    ) -> Coroutine[Any, Any, Any]:
        """Run one statement of a session."""
        return self._run_call(session, Statement(text, params, collect, self._loop.create_future()))

    def call_batch(self, session: Session, statements: Sequence[BatchStatement]) -> Coroutine[Any, Any, Any]:
        """Run several statements of a session, one after another."""
        return self._run_call(session, BatchRequest(statements, self._loop.create_future()))

    async def _run_call(self, session: Session, statement: Statement) -> Any:
        began = perf_counter()
        session.calls.put(statement)
        if session.is_late:
            self._begin_with_call(session)
        self._ask()
        try:
            value = await statement.future
        except BaseException as error:
            self._teller.tell(statement, began, error)
            if isinstance(error, asyncio.CancelledError):  # it takes its whole transaction with it
                session.failed = True
                self._interrupt(statement)
            raise
        finally:
            self._asked -= 1
        self._teller.tell(statement, began)
        return value

    def _begin_with_call(self, session: Session) -> None:
        """Line up for the writer; the calls that are there by then are told should the session not begin."""
        self._line_up(session)
        session.is_late = False
        self.sessions += 1

        def note_begin(begun: asyncio.Future[None]) -> None:
            if isinstance(error := begun.exception(), Exception):
                session.never_began = session.failed = True
                self.sessions -= 1
                while not session.calls.empty():  # no thread will ever take them
                    self._inbox.put(session.calls.get_nowait().future, None, error)
                self._inbox.deliver()

        session.future.add_done_callback(note_begin)

    async def finish(
        self, session: Session, *, commit: bool, guard: Sql | None = None
    ) -> asyncio.CancelledError | None:
        """End a session; a cancellation cannot stop it and is returned instead of raised.

        It is committed only if the `guard`, run last, changes a row.
        """
        last = Finish(commit, self._loop.create_future(), guard)
        if session.is_late and commit and guard is not None:
            self._begin_with_call(session)
        elif self._is_not_begun(session):
            if commit and (session.failed or session.never_began):
                raise TransactionError("TX_COMMIT_ERROR", FAILED)
            return None
        session.calls.put(last)
        cancellation = None
        while not last.future.done():
            try:
                await asyncio.wait((last.future,))
            except asyncio.CancelledError as error:
                cancellation = error
        self.sessions -= not session.never_began
        last.future.result()
        return cancellation

    def _is_not_begun(self, session: Session) -> bool:
        """Whether there is nothing to end; a session that still waits for its turn gives it up."""
        if session.is_late or session.never_began:
            return True
        if session.future.done() or not self._withdraw(session):
            return False
        self.sessions -= 1
        return True

    def stop(self) -> None:
        """Let the thread end once everything before this is done."""
        self._stopped = True
        self._queue.put(_Stop.STOP)

    def join(self) -> None:
        self._thread.join()

    def _ask(self) -> None:
        self._asked += 1
        if not self._clock.awake:
            self._clock.wake()

    def _is_in_the_way(self) -> bool:
        """Whether a long statement keeps others waiting: a large index at start, say, must be let finish."""
        waiting = any(not (entry.started or entry.abandoned) for entry in self._line)
        return self._reading or waiting or self._asked > 1

    def _line_up(self, entry: Write | Session) -> None:
        if self._stopped:
            raise Unavailable("the database is closed")
        line = self._line
        while line and (line[0].started or line[0].abandoned):
            line.popleft()
        entry.deadline = self._loop.time() + self._patience
        line.append(entry)
        self._queue.put(entry)
        if not self._watching:
            self._watching = True
            self._loop.call_at(entry.deadline, self._watch)

    def _watch(self) -> None:
        """Send away those at the head of the line whose patience has run out."""
        line, now = self._line, self._loop.time()
        while line and (line[0].started or line[0].abandoned or line[0].deadline <= now):
            entry = line.popleft()
            if self._withdraw(entry) and not entry.future.done():
                late = Timeout("the database is busy with another write", limit="lock_timeout")
                entry.future.set_exception(late)
        self._watching = bool(line)
        if line:
            self._loop.call_at(line[0].deadline, self._watch)

    def _withdraw(self, entry: Write | Session) -> bool:
        """Take an entry out of the line; False when its turn has already come."""
        with self._lock:
            if not entry.started:
                entry.abandoned = True
            return entry.abandoned

    def _interrupt(self, statement: Statement) -> None:
        statement.abandoned = True
        # SQLite forgets an interrupt that comes just before the statement's first step.
        if self._desk.interrupt(statement):
            self._loop.call_later(STALL_SECONDS, self._interrupt, statement)

    # ── on the writer's thread ───────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while (entry := self._next()) is not _Stop.STOP:
            if not self._claim(entry):
                continue
            if isinstance(entry, Session):
                self._host(entry)
            else:
                self._commit(self._gather(entry))
            self._inbox.wake()
            if self._log is not None and self._log.is_due:
                self._log.look(self._desk.connection)
        self._desk.close()

    def _next(self) -> Write | Session | _Stop:
        request, self._held = self._held, None
        return request or self._queue.get()

    def _claim(self, entry: Write | Session) -> bool:
        with self._lock:
            entry.started = not entry.abandoned
            return entry.started

    def _gather(self, first: Write) -> list[Write]:
        """The writes that wait behind `first` and may share its commit."""
        group = [first]
        while len(group) < GROUP_LIMIT and not first.alone:
            try:
                entry = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(entry, Write) or entry.alone:
                self._held = entry
                break
            if self._claim(entry):
                group.append(entry)
        return group

    def _commit(self, group: list[Write]) -> None:
        if is_lossy := self._durable and all(type(write.text) is LossyText for write in group):
            self._desk.set_synchronous("NORMAL")
        if len(group) > 1:
            self._commit_group(group)
        else:
            self._commit_alone(group[0])
        if is_lossy:
            self._desk.set_synchronous("FULL")

    def _commit_alone(self, write: Write) -> None:
        if write.abandoned:
            return
        try:
            if write.alone:
                write.value = self._run_alone(write)
            else:
                connection = self._begin()
                write.value = self._desk.run(write, connection)
                connection.execute("COMMIT")
        except Exception as error:
            write.error = self._translate(error, write.text)
            self._desk.roll_back()
        self._inbox.put(write.future, write.value, write.error)

    def _run_alone(self, write: Write) -> Any:
        connection = self._connection()
        self._wait_by_itself(connection, True)
        try:
            return self._desk.run(write, connection)
        finally:
            self._wait_by_itself(connection, False)

    def _commit_group(self, group: list[Write]) -> None:
        """Commit many writes with one fsync; nothing is answered before that has returned."""
        try:
            together = self._try_group(group)
        except Exception as error:
            self._desk.roll_back()
            for write in group:
                self._inbox.put(write.future, None, self._translate(error, write.text))
            return
        if not together:
            self._desk.roll_back()
            for write in group:
                write.value = write.error = None
                self._commit_alone(write)
            return
        for write in group:
            self._inbox.put(write.future, write.value, write.error)

    def _try_group(self, group: list[Write]) -> bool:
        """Whether all went into one commit; False when each has to be tried by itself."""
        connection = self._begin()
        try:
            for write in group:
                self._run_in_group(write, connection)
        except Exception:
            return False
        try:
            connection.execute("COMMIT")
        except sqlite3.IntegrityError:  # a deferred constraint, and it is not said whose
            return False
        return True

    def _run_in_group(self, write: Write, connection: sqlite3.Connection) -> None:
        # SQLite undoes a statement that broke a constraint, and only that one, so the rest of the
        # group stands. After any other failure that is not certain, and the group starts over; so it
        # does when statements of a batch ran before, because a savepoint would copy every page that
        # a batch touches, and batches hardly ever fail.
        try:
            write.value = self._desk.run(write, connection)
        except (sqlite3.IntegrityError, CommitRefused) as error:
            if not connection.in_transaction or write.has_changed_rows:
                raise
            write.error = self._translate(error, write.text)

    def _host(self, session: Session) -> None:
        try:
            self._begin()
        except Exception as error:
            self._inbox.put(session.future, None, begin_error(self._translate(error)))
            return
        if session.calls.empty():
            self._answer(session.future, None)
        else:  # told with the first statement, which is here
            self._inbox.put(session.future, None)
        while not isinstance(call := session.calls.get(), Finish):
            self._answer_call(session, call)
        self._finish(session, call)

    def _answer_call(self, session: Session, call: Statement) -> None:
        try:
            if session.failed or call.abandoned:
                raise DatabaseError(FAILED)
            value = self._desk.run(call, self._connection())
        except Exception as error:
            session.failed = True
            self._answer(call.future, None, self._translate(error, call.text))
        else:
            self._answer(call.future, value)

    def _finish(self, session: Session, last: Finish) -> None:
        error = None
        if last.commit:
            error = self._try_commit(session, last.guard)
        self._desk.roll_back()
        self._inbox.put(last.future, None, error)

    def _try_commit(self, session: Session, guard: Sql | None) -> Exception | None:
        if session.failed:
            return TransactionError("TX_COMMIT_ERROR", "a statement failed, so nothing was committed")
        try:
            if guard is not None and not self._connection().execute(*guard).fetchall():
                return CommitRefused("the guard of the commit changed no row")
            self._connection().execute("COMMIT")
        except Exception as error:
            return commit_error(self._translate(error))
        return None

    def _begin(self) -> sqlite3.Connection:
        begin_when_free(connection := self._connection(), self._begin_text, self._patience)
        return connection

    def _connection(self) -> sqlite3.Connection:
        if self._desk.connection is None:
            self._desk.connection = self._connect()
            if not self._reading:
                self._wait_by_itself(self._desk.connection, False)
        return self._desk.connection

    def _wait_by_itself(self, connection: sqlite3.Connection, wait: bool) -> None:
        # SQLite waits for a lock in naps of up to 100 ms, and would sleep through every gap that a
        # process with many short writes leaves. So the writer does its own waiting when it begins.
        connection.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000) if wait else 0}")

    def _translate(self, error: Exception, text: str = "") -> ManiflexError:
        return translate(error, self._desk.connection, text, reading=self._reading)

    def _answer(self, future: asyncio.Future[Any], value: Any, error: Exception | None = None) -> None:
        self._inbox.put(future, value, error)
        self._inbox.wake()
