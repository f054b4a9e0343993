"""A service that ticks now and then, or when it is woken.

`Loop` owns starting, stopping, the pause between ticks and surviving a bad one: a tick may raise
anything, only the cancellation of the loop ends it. A subclass says what a tick does and whether there
is more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from random import random
from typing import Any, Protocol

from maniflex._clock import Backoff, Clock
from maniflex._fence import Fence
from maniflex._logging import log_panic
from maniflex.db.current import detached_context
from maniflex.errors import Timeout, Unavailable

PATIENCE = timedelta(seconds=30)


def stalled_loops(services: Iterable[object]) -> list[str]:
    """The names of those whose loop stands still; a service may be a `Loop` or have one as `loop`."""
    loops = [one if isinstance(one, Loop) else getattr(one, "loop", None) for one in services]
    return [loop.name for loop in loops if isinstance(loop, Loop) and loop.is_stalled]


class Loop:
    """Calls `tick` every `interval`, give or take `jitter` of it."""

    name = "loop"

    def __init__(
        self, clock: Clock, interval: timedelta, logger: logging.Logger, *, jitter: float = 0.1
    ) -> None:
        self.clock = clock
        self.interval = interval
        self.logger = logger
        self.ticks = 0
        self.errors = 0
        self.last_ok: datetime | None = None
        self.started: datetime | None = None
        self._good_at = 0.0  # by the monotonic clock, because a corrected time is no standstill
        self._jitter = jitter
        self._backoff = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=10))
        self._streak = 0
        self._stopping = False
        self._woken: asyncio.Event | None = None
        self._task = LastingTask(self.name, self._run, logger)
        self._event_loop: asyncio.AbstractEventLoop | None = None

    async def tick(self) -> bool:
        """Do the work that is due; True asks for another tick at once."""
        raise NotImplementedError

    async def start(self) -> None:
        self._stopping, self._woken = False, asyncio.Event()
        self.started, self._good_at = self.clock.now(), self.clock.monotonic()
        self._event_loop = asyncio.get_running_loop()
        self._task.start()

    async def stop(self) -> None:
        """Begin no further tick and wait for the one that runs."""
        self._stopping = True
        if self._woken is not None:
            self._woken.set()
        await self._task.stop()

    def wake(self) -> None:
        """Tick now; may be called from any thread."""
        woken, loop = self._woken, self._event_loop
        if woken is None or woken.is_set() or loop is None or loop.is_closed():
            return
        if asyncio._get_running_loop() is loop:
            woken.set()
        else:
            loop.call_soon_threadsafe(woken.set)

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def dead(self) -> bool:
        """Whether it is started, not stopped, and its task has ended."""
        return self._task.dead

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        """What should be alive as long as this is started."""
        return (self,)

    @property
    def is_stalled(self) -> bool:
        """Whether it is started and has had no good tick for longer than it should take."""
        if self.started is None or self._stopping:
            return False
        idle = self.clock.monotonic() - self._good_at
        return idle > max(3 * self.interval, PATIENCE).total_seconds()

    def pause(self) -> timedelta:
        """How long to wait when there is nothing more to do."""
        return self.interval * (1 + self._jitter * (random() * 2 - 1))

    async def _run(self) -> None:
        assert self._woken is not None
        while not self._stopping:
            self._woken.clear()
            again, pause = await self._survive()
            if not again and not self._stopping:
                await self._wait(pause)

    async def _survive(self) -> tuple[bool, timedelta]:
        fence = Fence()
        try:
            again = await self.tick()
        except BaseException as error:
            fence.absorb(error)
            self.errors += 1
            self._streak += 1
            self.on_failure(error)
            if self._streak == 1:  # once per streak: a database that is away would fill the log
                self._log_failure(error)
            return False, self._backoff(self._streak)
        if self._streak:
            self.logger.info("%s: works again after %d failed ticks", self.name, self._streak)
        self.ticks += 1
        self._streak = 0
        self.last_ok, self._good_at = self.clock.now(), self.clock.monotonic()
        return again, self.pause()

    def _log_failure(self, error: BaseException) -> None:
        what = f"{self.name}: a tick failed; it goes on trying"
        if isinstance(error, Unavailable | Timeout):  # an outage is foreseen, and each loop would tell of it
            self.logger.error("%s: %s", what, error)
        else:
            log_panic(self.logger, what, error)

    def on_failure(self, error: BaseException) -> None:
        """A tick failed; for counting."""

    async def _wait(self, pause: timedelta) -> None:
        assert self._woken is not None
        slept = asyncio.ensure_future(self.clock.sleep(pause))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((slept, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            slept.cancel()
            woken.cancel()


# The seam for spans around durable work.


NoteOutcome = Callable[[Any], None]


class WorkTracing(Protocol):
    """Makes spans of attempts and deliveries; what they came to is told before the block ends."""

    def run(self, run: Any) -> AbstractContextManager[NoteOutcome]:
        """A span around one attempt of a run."""

    def message(self, message: Any) -> AbstractContextManager[NoteOutcome]:
        """A span around one delivery of a message."""


# Tasks that last as long as their service, and a check that they do.
#
# A task that ends though it was not stopped is begun again after a pause. Until then it is `dead`, and
# `/live` says so: an orchestrator restarts a process whose work has ended.


_PAUSE = Backoff(base=timedelta(milliseconds=500), cap=timedelta(seconds=30))


class WatchedPart(Protocol):
    """Something that should be alive from its start to its stop."""

    @property
    def name(self) -> str: ...

    @property
    def dead(self) -> bool: ...


def dead_parts(services: Iterable[object]) -> list[str]:
    """The names of tasks that ended though their service runs; a service lists them as `parts_to_watch`."""
    parts: list[WatchedPart] = [
        part for service in services for part in getattr(service, "parts_to_watch", ())
    ]
    return [part.name for part in parts if part.dead]


class LastingTask:
    """A task that lasts until it is stopped."""

    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], logger: logging.Logger
    ) -> None:
        self.name = name
        self._work = work
        self._logger = logger
        self._task: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._stopping = False
        self._deaths = 0

    @property
    def dead(self) -> bool:
        return self._task is not None and self._task.done() and not self._stopping

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return (self,)

    def start(self) -> None:
        self._stopping, self._deaths = False, 0
        self._begin()

    def _begin(self) -> None:
        self._again = None
        self._task = asyncio.get_running_loop().create_task(
            self._work(), name=self.name, context=detached_context()
        )
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if self._stopping or task is not self._task:
            return
        if task.cancelled():  # the loop is being taken down, or the application cancelled it on purpose
            self._logger.warning("%s: its task was cancelled, and stays so until the next start", self.name)
            return
        self._deaths += 1
        text, error = f"{self.name}: its task ended; it is begun again", task.exception()
        if error is None:
            self._logger.error("%s", text)
        else:
            log_panic(self._logger, text, error)
        pause = _PAUSE(self._deaths).total_seconds()
        self._again = task.get_loop().call_later(pause, self._begin)

    async def stop(self) -> None:
        """Wait until the task has ended, as its work was told to; to cancel this call cancels the task."""
        task = self._let_go()
        if task is None or task.done():
            return
        fence = Fence()
        try:
            await task
        except BaseException as error:
            fence.absorb(error)
            self._logger.error("%s: its task failed while it was stopped", self.name, exc_info=error)

    def cancel(self) -> None:
        """End it now."""
        task = self._let_go()
        if task is not None:
            task.cancel()

    def _let_go(self) -> asyncio.Task[None] | None:
        self._stopping = True
        if self._again is not None:
            self._again.cancel()
            self._again = None
        task, self._task = self._task, None
        return task
