"""A pool of PostgreSQL connections.

Last in, first out: the connection used most recently has the warmest caches, and the others grow
old enough to be closed. Nothing is reset on release, because nothing is ever left behind: a
connection comes back clean, or after an interrupted statement was cancelled on the server, or not.
Once a second the pool closes connections whose server owes an answer for too long.

Who finds none free stands in one line with all others, also while a connection is opened for them: the first
in the line gets the first that comes back or is there. So nobody is overtaken, and a server that is slow to
take connections keeps nobody longer than `pool_timeout`.

A server that has no connection left makes callers wait, not fail. The pool then gives some of its connections
up and asks for more only slowly, so that all processes that share the server get their part of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import islice
from typing import TYPE_CHECKING, Any

import asyncpg

from maniflex.db.current import detached_context
from maniflex.db.postgres.connection import Deadlines, PoolClock, PooledConnection
from maniflex.db.postgres.errors import READ_ONLY
from maniflex.db.postgres.hosts import NoConnectionLeft
from maniflex.db.statements import StatementObserver
from maniflex.errors import RequestError, Unavailable

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection

TICK = 1.0
DRAIN_WITHIN = 5.0
CLOSE_WITHIN = 5.0
OPEN_AGAIN_AFTER = 1.0  # when the server had no connection for us, and others of ours work
ASK_FULL_SERVER_EVERY = 0.25  # when none of ours works, plus or minus half of it
SMALL_FOR = 5.0  # seconds after which a pool that was made smaller may grow again, by one each second
GIVE_UP = 4  # one in so many connections, and at least one of several, goes to other processes
STUCK_AFTER = 0.05  # in which no waiter had its turn

log = logging.getLogger("maniflex.db")


class Stuck(Exception):
    """Slow statements hold all connections, and no waiter in the line had a turn for a while."""


class Pool:
    """Lends connections; opens them when they are needed, up to `size`."""

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, Connection]],
        *,
        size: int,
        patience: float,
        max_lifetime: float,
        max_idle: float,
        named_statements: bool = True,
        statement_timeout: float = 0,
        waits_for_full_server: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self.free: list[PooledConnection] = []
        self.slots: set[PooledConnection] = set()
        self.observer: StatementObserver | None = None  # of the statements on its connections
        self._connect = connect
        self._patience = patience
        self._max_lifetime = max_lifetime
        self._max_idle = max_idle
        self._named_statements = named_statements
        # A server of our own ends slow statements; behind a pooler our clock does.
        self._driver_timeout = None if named_statements else statement_timeout or None
        self._deadlines = Deadlines(statement_timeout)
        self._clock = clock
        self._ticker = PoolClock(clock())
        self._waits_for_full_server = waits_for_full_server
        self._limit = size  # of open connections; below `size` for a while when the server is full
        self._grow_at = 0.0
        self._asking_again: asyncio.TimerHandle | None = None
        self._open_again_at = 0.0
        self._places = 0  # connections that are open or being opened
        self._waiters: deque[tuple[float, asyncio.Future[PooledConnection], bool]] = deque()
        self._turns = 0
        self._stuck = False
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._vacant = asyncio.Event()
        self._closed = True
        self._loop: asyncio.AbstractEventLoop

    # -- lending

    def acquire(self, *, hasty: bool = False) -> Coroutine[Any, Any, PooledConnection]:
        """A live connection; `Unavailable` when none can be had.

        Who is hasty has another way, and gets `Stuck` instead of standing in a line that does not move.
        """
        while self.free:
            slot = self.free.pop()
            if not slot.con.is_closed():
                return _ready_slot(slot)
            self.discard(slot)
        if self._closed:
            raise Unavailable("the database is not open")
        return self._wait(hasty)

    async def _wait(self, hasty: bool) -> PooledConnection:
        """Stand in line for a connection that comes back or is opened, whichever is first."""
        if hasty and self._stuck and self._places >= self._limit:
            raise Stuck
        waiter: asyncio.Future[PooledConnection] = self._loop.create_future()
        self._waiters.append((self._clock() + self._patience, waiter, hasty))
        if self._places < self._limit:
            if not self.slots:
                self._open_again_at = 0.0  # none of ours can come back
            self._open_for_waiters()
        if hasty and self._looking is None:
            self._watch_line(self._turns)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._pass_on(waiter)
            raise

    def release(self, slot: PooledConnection) -> None:
        """Take back a connection that is ready for the next statement."""
        if slot.retired or self._closed:
            self.discard(slot)
        elif not (self._waiters and self._hand_over(slot)):
            slot.idle_since = self._clock()
            self._stuck = False
            self.free.append(slot)

    def discard(self, slot: PooledConnection) -> None:
        """Close a connection at once, even a busy one; another is opened for who waits."""
        if slot not in self.slots:
            return
        self.slots.discard(slot)
        slot.statements.clear()
        slot.con.terminate()
        self._vacate()

    def discard_free(self) -> None:
        """Close the free connections: a server that ends one has likely ended those too, unnoticed."""
        while self.free:
            self.discard(self.free.pop())

    def discard_all(self) -> None:
        """Close all connections, also busy ones: their server does not answer any more."""
        for slot in list(self.slots):
            slot.overdue |= slot.due > 0
            self.discard(slot)
        self.free.clear()

    def refuse_waiters(self, why: str) -> None:
        """Give all who stand in line `Unavailable`."""
        for _, waiter, _ in self._waiters:
            if not waiter.done():
                waiter.set_exception(Unavailable(why))
        self._waiters.clear()

    def recover(self, slot: PooledConnection, error: BaseException) -> None:
        """Take back a connection after `error`, which happened outside a transaction."""
        if slot.con.is_closed():
            self.discard(slot)
        elif type(error) is asyncpg.DataError:
            # The driver could not encode a value. What it prepared just before stays open in an
            # implicit transaction, with its locks, until something else is sent.
            self.drain(slot)
        elif isinstance(error, asyncpg.PostgresError | RequestError):
            slot.retired |= getattr(error, "sqlstate", None) == READ_ONLY
            self.release(slot)
        elif isinstance(error, asyncio.CancelledError | TimeoutError | asyncpg.InterfaceError):
            self.drain(slot)
        else:
            self.discard(slot)

    def drain(self, slot: PooledConnection) -> None:
        """Take back a connection whose statement was interrupted, once it is clean again."""
        if slot.con.is_closed():
            self.discard(slot)
        else:
            self.in_background(self._drain_and_release(slot))

    def in_background(
        self, work: Coroutine[Any, Any, None], context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run `work` even if its caller is cancelled; `close` waits for it."""
        task = self._loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget_statements(self) -> None:
        """Prepare everything anew: the schema has changed under the plans."""
        for slot in self.slots:
            slot.statements.clear()

    # -- opening and closing

    def open(self) -> None:
        """Start lending; no connection is opened before one is needed."""
        self._closed, self._stuck, self._looking, self._limit = False, False, None, self.size
        self._loop = asyncio.get_running_loop()
        self._tick()

    async def close(self) -> None:
        """Close free connections now and lent ones when they come back, within a few seconds."""
        self._closed = True
        for timer in (self._timer, self._asking_again):
            if timer is not None:
                timer.cancel()
        self._asking_again = None
        self.refuse_waiters("the database was closed")
        self.discard_free()
        if self._places or self._tasks:
            await self._let_finish()
        for slot in list(self.slots):
            self.discard(slot)
        await self._end_tasks()

    async def _let_finish(self) -> None:
        self._vacant.clear()
        lent = self._loop.create_task(self._until_vacant())
        await asyncio.wait({lent, *self._tasks}, timeout=CLOSE_WITHIN)
        lent.cancel()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # what they still do belongs to this time of being open, not to the next
            await asyncio.wait(self._tasks, timeout=CLOSE_WITHIN)

    async def _until_vacant(self) -> None:
        if self._places:
            await self._vacant.wait()

    def sweep(self) -> None:
        """Close connections that are silent, old or long unused, and refuse those who waited too long."""
        before, now = self._ticker.now, self._clock()
        self._ticker.now = now
        self._close_overdue(now, held_up=now - before > 3 * TICK)
        for slot in self.slots:
            slot.retired |= now >= slot.retire_at
        for slot in list(self.free):
            if slot.retired or slot.con.is_closed() or now - slot.idle_since > self._max_idle:
                self.free.remove(slot)
                self.discard(slot)
        why = "no database connection became free" if self.slots else "the database took no connection"
        while self._waiters and (self._waiters[0][0] < now or self._waiters[0][1].done()):
            _, waiter, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(Unavailable(f"{why} in time"))
        if self._limit < self.size and now >= self._grow_at:
            self._limit += 1
        self._open_for_waiters()

    def _close_overdue(self, now: float, *, held_up: bool) -> None:
        """Close connections whose server owes an answer for too long; their callers get `Unavailable`."""
        for slot in list(self.slots):
            if not slot.due or now < slot.due:
                continue
            if held_up:
                # This process stood still, so the answer may be here and only has not been read.
                slot.due = now + 2 * TICK
                continue
            log.warning("a database connection fell silent and was closed")
            slot.overdue = True
            self.discard(slot)

    def _tick(self) -> None:
        self.sweep()
        self._timer = self._loop.call_later(TICK, self._tick)

    # -- inside

    @property
    def _opening(self) -> int:
        """Connections that are being opened, for the first in the line."""
        return self._places - len(self.slots)

    @property
    def _needs_another(self) -> bool:
        """Whether more callers wait than connections are being opened, and there is room for one."""
        return self._places < self._limit and len(self._waiters) > self._opening

    def _open_for_waiters(self) -> None:
        if self._needs_another and self._clock() >= self._open_again_at:
            self._begin_opening()

    def _begin_opening(self) -> None:
        self._places += 1
        # A connection keeps the context it is made in, and that of a request would keep the request.
        self.in_background(self._open(), detached_context())

    async def _open(self) -> None:
        """Open a connection for the first in the line, who may have got another by then."""
        try:
            slot = await self._connect_slot()
        except BaseException as error:
            self._give_place_up(error)
            if not isinstance(error, Exception):
                raise
            return
        self.slots.add(slot)
        self.release(slot)
        self._open_for_waiters()

    async def _connect_slot(self) -> PooledConnection:
        con = await self._connect()
        try:
            return self._new_slot(con)
        except Exception as error:
            is_lost = isinstance(error, OSError) or con.is_closed()
            con.terminate()
            if is_lost:
                raise Unavailable("the database ended a new connection") from error
            raise

    def _give_place_up(self, error: BaseException) -> None:
        """Let callers wait for those of ours that work, or for a full server; else tell the first of them."""
        is_full = isinstance(error, NoConnectionLeft) and self._waits_for_full_server
        if self._closed or not (is_full or (self.slots and isinstance(error, Unavailable))):
            if isinstance(error, Exception):
                self._tell_waiter(error)
            self._vacate()
            return
        self._open_again_at = self._clock() + OPEN_AGAIN_AFTER
        self._places -= 1
        if is_full:
            self._make_room()

    def _tell_waiter(self, error: Exception) -> None:
        """Give the first in the line the error of an opening, unless another one is for everybody there."""
        self._waiters = deque(entry for entry in self._waiters if not entry[1].done())
        if len(self._waiters) >= self._opening and (waiter := self._next_waiter()) is not None:
            waiter.set_exception(error)

    def _make_room(self) -> None:
        """The server has no connection left: do with fewer for a while, and let other processes have them."""
        if self._limit == self.size:
            log.warning("the database has no connection left; %d are shared for now", len(self.slots))
        self._limit = max(len(self.slots) - max(len(self.slots) // GIVE_UP, 1), 1)
        self._grow_at = self._clock() + SMALL_FOR
        surplus = len(self.slots) - self._limit
        while self.free and surplus > 0:
            self.discard(self.free.pop(0))
            surplus -= 1
        for slot in list(self.slots)[: max(surplus, 0)]:
            slot.retired = True
        if not self.slots and self._asking_again is None:
            # At different times, because other processes wait for the same connections.
            pause = ASK_FULL_SERVER_EVERY * random.uniform(0.5, 1.5)
            self._asking_again = self._loop.call_later(pause, self._ask_full_server)

    def _ask_full_server(self) -> None:
        self._asking_again, self._open_again_at = None, 0.0
        self._open_for_waiters()

    def _new_slot(self, con: Connection) -> PooledConnection:
        # Connections opened in one burst should not all be replaced in one burst.
        retire_at = self._clock() + self._max_lifetime * random.uniform(0.9, 1.0)
        return PooledConnection(
            con,
            ticker=self._ticker,
            deadlines=self._deadlines,
            retire_at=retire_at,
            named_statements=self._named_statements,
            timeout=self._driver_timeout,
            observe=self.observer,
        )

    def _pass_on(self, waiter: asyncio.Future[PooledConnection]) -> None:
        """The waiter was cancelled in the turn of the loop that served it; serve the next."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(waiter.result())

    def _hand_over(self, slot: PooledConnection) -> bool:
        """Give the longest waiting a connection."""
        if (waiter := self._next_waiter()) is None:
            return False
        waiter.set_result(slot)
        return True

    def _next_waiter(self) -> asyncio.Future[PooledConnection] | None:
        """Take the longest waiting out of the line."""
        while self._waiters:
            _, waiter, _ = self._waiters.popleft()
            if not waiter.done():
                self._turns += 1
                self._stuck = False
                return waiter
        return None

    def _watch_line(self, turns: int) -> None:
        """Look again in a while, and send the hasty away if the line has not moved by then."""
        self._looking = self._loop.call_later(STUCK_AFTER, self._look_at_line, turns)

    def _look_at_line(self, turns: int) -> None:
        self._looking = None
        late = [waiter for _, waiter, hasty in islice(self._waiters, self._opening, None) if hasty]
        self._stuck = bool(late) and self._turns == turns
        if self._stuck:
            for waiter in late:
                if not waiter.done():
                    waiter.set_exception(Stuck())
        if any(hasty and not waiter.done() for _, waiter, hasty in self._waiters):
            self._watch_line(self._turns)

    def _vacate(self) -> None:
        """Give a place up, or open another connection in it for who waits."""
        self._places -= 1
        if self._needs_another:
            self._begin_opening()
        elif not self._places:
            self._vacant.set()

    async def _drain_and_release(self, slot: PooledConnection) -> None:
        try:
            await asyncio.wait_for(slot.drain(), DRAIN_WITHIN)
        except BaseException as error:
            self.discard(slot)
            if not isinstance(error, Exception):
                raise
        else:
            self.release(slot)


async def _ready_slot(slot: PooledConnection) -> PooledConnection:
    return slot
