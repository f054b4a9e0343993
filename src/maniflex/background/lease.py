"""The lease discipline: claim, renew, settle only what is still ours.

Whoever claims a row writes a fresh token into its `lease` column and a time into `lease_until`. Every
later write names that token, so a worker that was given up for dead cannot overwrite what its
successor did. `Heart` keeps the leases of running work alive, on a thread and a connection of
its own: a handler that blocks the event loop does not lose its run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from maniflex._fence import Fence

STOP_WITHIN = 1.0
JOIN_WITHIN = 3.0
REVIVE_AFTER = 1.0


class Line(Protocol):
    """A way to where leases are kept, such as an `Adapter`; a sibling is one more, for another thread."""

    def sibling(self) -> Any: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


L = TypeVar("L", bound=Line)


class Held(NamedTuple):
    """A row we claimed and the token that proves it."""

    id: str
    lease: str


class Heart(Generic[L]):
    """Renews what is held every `every`; `lost` is called, on the heart's thread, for what is not ours."""

    def __init__(
        self,
        adapter: L,
        renew: Callable[[L, Sequence[Held]], Awaitable[set[str]]],
        every: timedelta,
        logger: logging.Logger,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._adapter = adapter
        self._renew = renew
        self._every = every.total_seconds()
        self._logger = logger
        self._failed = failed
        self._held: dict[Held, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ending = threading.Event()
        self._hurried = False
        self._beside: set[asyncio.Task[None]] = set()

    def hold(self, held: Held, lost: Callable[[], None]) -> None:
        self._held[held] = lost

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
        started = asyncio.Event()
        here = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._keep_alive,
            args=(self._ending, lambda: here.call_soon_threadsafe(started.set)),
            name=self.name,
            daemon=True,
        )
        self._thread.start()
        await started.wait()

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
        # On a thread of the loop's own pool: whatever the last beat waits for must not hold up the loop.
        await asyncio.get_running_loop().run_in_executor(None, thread.join, JOIN_WITHIN)

    # -- on the heart's own thread

    def _keep_alive(self, ending: threading.Event, started: Callable[[], object]) -> None:
        """Whatever ends the heart, it beats again: without it, all that runs here would lose its lease."""
        while True:
            try:
                asyncio.run(self._live(self._adapter.sibling(), ending, started))
            except BaseException as error:
                self._logger.error("the renewal of leases ended; it begins again", exc_info=error)
            if ending.wait(REVIVE_AFTER):
                return

    async def _live(self, adapter: L, ending: threading.Event, started: Callable[[], object]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._beside = set()
        with suppress(RuntimeError):  # whoever waited for it is gone
            started()
        if ending.is_set():  # before it knew whom to tell
            return
        self.beside(self._beat(adapter))
        await self._stop.wait()
        for task in self._beside:
            task.cancel()  # a database that hangs must not keep us
        await asyncio.wait(self._beside, timeout=STOP_WITHIN)
        with suppress(Exception):
            async with asyncio.timeout(STOP_WITHIN):
                await adapter.close()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something else on this thread until the heart stops."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def hurry(self) -> None:
        """Not all could be renewed: beat again soon."""
        self._hurried = True

    async def _beat(self, adapter: L) -> None:
        is_open = failing = False
        fence = Fence()
        while True:
            await asyncio.sleep(self._every / 4 if failing or self._hurried else self._every)
            self._hurried, began = False, monotonic()
            try:
                if not is_open:
                    await adapter.open()
                    is_open = True
                await self.beat(adapter)
                failing = False
                if monotonic() - began > self._every / 4:
                    self.hurry()  # it waited, and what it wrote in the end was of the beginning
            except BaseException as error:  # the database is away: the leases may still outlast it
                fence.absorb(error)
                self._failed(error)
                if not failing:
                    self._logger.warning("leases could not be renewed: %s", error, exc_info=error)
                failing = True

    async def beat(self, adapter: L) -> None:
        """Renew once everything that is held now."""
        held = dict(self._held)
        if not held:
            return
        newest = {one.id: one for one in held}  # claimed again after we lost it, the same row is here twice
        gone = await self._renew(adapter, list(newest.values()))
        for one, lost in held.items():
            if (one.id in gone or newest[one.id] != one) and one in self._held:
                lost()
