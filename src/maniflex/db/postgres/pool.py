"""A pool of PostgreSQL connections.

Last in, first out: the connection used most recently has the warmest caches, and the others grow
old enough to be closed. Nothing is reset on release, because nothing is ever left behind: a
connection comes back clean, or after an interrupted statement was cancelled on the server, or not.
Once a second the pool closes connections whose server owes an answer for too long.

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
from typing import TYPE_CHECKING, Any

import asyncpg

from maniflex.db.current import detached_context
from maniflex.db.postgres.connection import Deadlines, PoolClock, PooledConnection
from maniflex.db.postgres.errors import READ_ONLY
from maniflex.db.postgres.refusals import NoConnectionLeft
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
        self._waiters: deque[tuple[float, asyncio.Future[PooledConnection | None], bool]] = deque()
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
        # A line that most statements of a busy server stand in: not through a coroutine more than it takes.
        return self._wait(hasty) if self._places >= self._limit else self._open_or_wait(hasty)

    async def _open_or_wait(self, hasty: bool) -> PooledConnection:
        if self._places < self._limit and (not self.slots or self._clock() >= self._open_again_at):
            self._places += 1
            if (slot := await self._open()) is not None:
                return slot
        return await self._wait(hasty)

    async def _wait(self, hasty: bool) -> PooledConnection:
        """Stand in line for a connection that comes back, or for the right to open one."""
        deadline, line_up = self._clock() + self._patience, self._waiters.append
        while True:
            if hasty and self._stuck:
                raise Stuck
            waiter: asyncio.Future[PooledConnection | None] = self._loop.create_future()
            line_up((deadline, waiter, hasty))
            if hasty and self._looking is None:
                self._watch_line(self._turns)
            try:
                slot = await waiter
            except asyncio.CancelledError:
                self._pass_on(waiter)
                raise
            if slot is None:
                slot = await self._open()
            if slot is not None:
                return slot
            line_up = self._waiters.appendleft  # it was the first, and still is

    def release(self, slot: PooledConnection) -> None:
        """Take back a connection that is ready for the next statement."""
        if slot.retired or self._closed:
            self.discard(slot)
        elif not (self._waiters and self._hand_over(slot)):
            slot.idle_since = self._clock()
            self._stuck = False
            self.free.append(slot)

    def discard(self, slot: PooledConnection) -> None:
        """Close a connection at once, even a busy one, and let a waiter open another."""
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

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` even if its caller is cancelled; `close` waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget_statements(self) -> None:
        """Prepare everything anew: the schema has changed under the plans."""
        for slot in self.slots:
            slot.statements.clear()

    # -- opening and closing

    def open(self) -> None:
        """Start lending; the first connection is opened by the first who needs it."""
        self._closed, self._stuck, self._looking, self._limit = False, False, None, self.size
        self._loop = asyncio.get_running_loop()
        self._tick()

    async def close(self) -> None:
        """Close free connections now and lent ones when they come back, within a few seconds."""
        self._closed = True
        for timer in (self._timer, self._asking_again):
            if timer is not None:
                timer.cancel()
        self.refuse_waiters("the database was closed")
        self.discard_free()
        if self._places or self._tasks:
            await self._let_finish()
        for slot in list(self.slots):
            self.discard(slot)
        for task in list(self._tasks):
            task.cancel()

    async def _let_finish(self) -> None:
        self._vacant.clear()
        lent = self._loop.create_task(self._until_vacant())
        await asyncio.wait({lent, *self._tasks}, timeout=CLOSE_WITHIN)
        lent.cancel()

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
        while self._waiters and (self._waiters[0][0] < now or self._waiters[0][1].done()):
            _, waiter, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(Unavailable("no database connection became free in time"))
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

    async def _open(self) -> PooledConnection | None:
        """A new connection; None when the server has no more for us, but others of ours work."""
        try:
            con = await self._connect_detached()
        except BaseException as error:
            is_full = isinstance(error, NoConnectionLeft) and self._waits_for_full_server
            if self._closed or not (is_full or (self.slots and isinstance(error, Unavailable))):
                self._vacate()
                raise
            self._open_again_at = self._clock() + OPEN_AGAIN_AFTER
            self._places -= 1
            if is_full:
                self._make_room()
            # One that came back while we were asking, when we did not stand in the line.
            return self.free.pop() if self.free else None
        slot = self._new_slot(con)
        self.slots.add(slot)
        if self._closed:
            self.discard(slot)
            raise Unavailable("the database was closed")
        self._open_for_waiters()
        return slot

    async def _connect_detached(self) -> Connection:
        # A connection keeps the context it is made in, and that of a request would keep the request.
        opening = self._loop.create_task(self._connect(), context=detached_context())
        try:
            return await opening
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise

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

    def _open_for_waiters(self) -> None:
        """Let the longest waiting open a connection, while there is room for one."""
        if self._waiters and self._places < self._limit and self._clock() >= self._open_again_at:
            self._places += 1
            self._vacate()

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

    def _pass_on(self, waiter: asyncio.Future[PooledConnection | None]) -> None:
        """The waiter was cancelled in the turn of the loop that served it; serve the next."""
        if not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
            return
        slot = waiter.result()
        if slot is None:
            self._vacate()
        else:
            self.release(slot)

    def _hand_over(self, slot: PooledConnection | None) -> bool:
        """Give the longest waiting a connection, or with None the right to open one."""
        while self._waiters:
            _, waiter, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                self._turns += 1
                self._stuck = False
                return True
        return False

    def _watch_line(self, turns: int) -> None:
        """Look again in a while, and send the hasty away if the line has not moved by then."""
        self._looking = self._loop.call_later(STUCK_AFTER, self._look_at_line, turns)

    def _look_at_line(self, turns: int) -> None:
        self._looking = None
        hasty = [waiter for _, waiter, hasty in self._waiters if hasty and not waiter.done()]
        self._stuck = bool(hasty) and self._turns == turns
        if self._stuck:
            for waiter in hasty:
                waiter.set_exception(Stuck())
        elif hasty:
            self._watch_line(self._turns)

    def _vacate(self) -> None:
        if self._places > self._limit or not self._hand_over(None):
            self._places -= 1
            if not self._places:
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


def _close_unused(opening: asyncio.Task[Connection]) -> None:
    """Close a connection that was made although its opener was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()
