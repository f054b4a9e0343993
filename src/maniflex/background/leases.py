"""The lease discipline: claim, renew, settle only rows whose lease is still ours.

A worker that claims a row writes a fresh token into its `lease` column and a time into `lease_until`. Every
later write names that token, so a worker that was given up for dead cannot overwrite the row of
its successor. `LeaseKeeper` keeps the leases of running work alive, on a thread and a connection of
its own: a handler that blocks the event loop does not lose its run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from maniflex._fence import Fence

STOP_WITHIN = 1.0
JOIN_WITHIN = 3.0
REVIVE_AFTER = 1.0


class LeaseBackend(Protocol):
    """Connects to the store of leases, as an `Adapter` does; `sibling` makes one for another thread."""

    def sibling(self) -> Any: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


L = TypeVar("L", bound=LeaseBackend)


class Held(NamedTuple):
    """A row we claimed and the token that proves it."""

    id: str
    lease: str


class LeaseKeeper(Generic[L]):
    """Renews the held leases every `interval`, on a thread of its own.

    It calls `on_lost` of a lease, on that thread, when another worker took the row.
    """

    def __init__(
        self,
        adapter: L,
        renew: Callable[[L, Sequence[Held]], Awaitable[set[str]]],
        interval: timedelta,
        logger: logging.Logger,
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._adapter = adapter
        self._renew = renew
        self._interval = interval.total_seconds()
        self._logger = logger
        self._on_error = on_error
        self._held: dict[Held, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ending = threading.Event()
        self._hurried = False
        self._beside: set[asyncio.Task[None]] = set()

    def hold(self, held: Held, on_lost: Callable[[], None]) -> None:
        self._held[held] = on_lost

    def drop(self, held: Held) -> None:
        self._held.pop(held, None)

    @property
    def holding(self) -> int:
        return len(self._held)

    @property
    def held(self) -> list[Held]:
        return list(self._held)

    name = "maniflex-heart"

    @property
    def dead(self) -> bool:
        """Whether it is started, not stopped, and its thread has ended."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def beating(self) -> bool:
        """Whether it is started and not stopped."""
        return self._thread is not None

    async def start(self) -> None:
        self._loop = self._stop = None
        self._ending = threading.Event()
        alive = asyncio.Event()
        here = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._keep_alive,
            args=(self._ending, lambda: here.call_soon_threadsafe(alive.set)),
            name=self.name,
            daemon=True,
        )
        self._thread.start()
        await alive.wait()

    async def stop(self) -> None:
        """Renew nothing more, from this moment on, and wait a little for the thread to end."""
        thread, self._thread = self._thread, None
        self._held.clear()
        self._ending.set()
        if thread is None:
            return
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        # On a thread of the loop's own pool: a last renewal that waits must not hold up the loop.
        await asyncio.get_running_loop().run_in_executor(None, thread.join, JOIN_WITHIN)

    # -- on the keeper's own thread

    def _keep_alive(self, ending: threading.Event, on_start: Callable[[], object]) -> None:
        """Restart the renewal after any error: without it, every run of this process would lose its lease."""
        while True:
            try:
                asyncio.run(self._live(ending, on_start))
            except BaseException as error:
                self._logger.error("the renewal of leases ended; it begins again", exc_info=error)
            if ending.wait(REVIVE_AFTER):
                return

    async def _live(self, ending: threading.Event, on_start: Callable[[], object]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._beside = set()
        with suppress(RuntimeError):  # the loop that waited for it is closed
            on_start()
        if ending.is_set():  # before it knew whom to tell
            return
        connection = AsyncExitStack()
        self.spawn(self._beat(connection))
        await self._stop.wait()
        for task in self._beside:
            task.cancel()  # a database that hangs must not keep us
        await asyncio.wait(self._beside, timeout=STOP_WITHIN)
        with suppress(Exception):
            async with asyncio.timeout(STOP_WITHIN):
                await connection.aclose()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task on the keeper's thread until the keeper stops."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def hurry(self) -> None:
        """Renew again soon, because not all leases could be renewed."""
        self._hurried = True

    async def _beat(self, connection: AsyncExitStack) -> None:
        adapter: L | None = None
        is_open = failing = False
        task = asyncio.current_task()
        while True:
            await asyncio.sleep(self._interval / 4 if failing or self._hurried else self._interval)
            self._hurried, began = False, monotonic()
            try:
                if adapter is None:  # most workers that only drain are done before
                    adapter = self._adapter.sibling()
                    connection.push_async_callback(adapter.close)
                if not is_open:
                    await adapter.open()
                    is_open = True
                await self.beat(adapter)
                failing = False
                if monotonic() - began > self._interval / 4:
                    self.hurry()  # it waited, and what it wrote in the end was of the beginning
            except BaseException as error:  # the database is away: the leases may still outlast it
                Fence(task).absorb(error)
                self._on_error(error)
                if not failing:
                    self._logger.warning("leases could not be renewed: %s", error, exc_info=error)
                failing = True

    async def beat(self, adapter: L) -> None:
        """Renew all held leases once."""
        callbacks = dict(self._held)
        if not callbacks:
            return
        # A row that was claimed again after we lost it is here twice.
        newest = {one.id: one for one in callbacks}
        lost_ids = await self._renew(adapter, list(newest.values()))
        for one, on_lost in callbacks.items():
            if (one.id in lost_ids or newest[one.id] != one) and one in self._held:
                on_lost()
