"""Read a result of any size from SQLite: a connection and a thread for this one statement alone.

An open statement holds its snapshot, so all batches are of one moment, and neither the readers nor
the writer wait for it. However the reading ends, the connection is closed before the thread is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from maniflex.db.port import Row
from maniflex.db.sqlite.checkpoints import LogKeeper
from maniflex.db.sqlite.errors import controls_transaction, translate
from maniflex.db.sqlite.threads import STALL_SECONDS, Connect
from maniflex.errors import DatabaseError, Unavailable
from maniflex.sql.statement import Sql

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
