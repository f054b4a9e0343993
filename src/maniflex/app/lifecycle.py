"""Start and stop, each once and in order.

Start: open databases → migrate → on_start → services → running. Stop, under one deadline: no new
work → `go` tasks are told → services in reverse → on_shutdown → background work is awaited →
databases close. What fails on the way up is taken down again before the error goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from maniflex._caller import current_database, serve_from
from maniflex._fence import Fence, Fork
from maniflex._logging import log_panic
from maniflex._service import Service, call
from maniflex.db.current import detached_context
from maniflex.db.port import Adapter
from maniflex.errors import ManiflexError
from maniflex.pipeline.runtime import Runtime

UNDO_WITHIN = 1.0  # seconds, beyond the deadline


class LifecycleState(StrEnum):
    """Where a server is in its one life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class LifecycleError(ManiflexError):
    """The server cannot do this in the state it is in."""


class Lifecycle:
    """The one life of a server."""

    def __init__(self, logger: logging.Logger, shutdown_timeout: float) -> None:
        self.state = LifecycleState.NEW
        self.on_start: list[Callable[[], Any]] = []
        self.on_shutdown: list[Callable[[], Any]] = []
        self.services: list[Service] = []
        self._go: list[Callable[[], Awaitable[Any]]] = []
        self._going: set[asyncio.Task[None]] = set()
        self._started: list[Service] = []
        self._logger = logger
        self._shutdown_timeout = shutdown_timeout
        self._deadline: float | None = None
        self.accepting = False  # whether it runs and was not told to stop; every request asks
        self._loop: asyncio.AbstractEventLoop
        self._database: object | None = None  # of the server, once it starts

    def again(self) -> Lifecycle:
        """The same hooks and services, for another life."""
        fresh = Lifecycle(self._logger, self._shutdown_timeout)
        fresh.on_start, fresh.on_shutdown = list(self.on_start), list(self.on_shutdown)
        fresh.services, fresh._go = list(self.services), list(self._go)
        return fresh

    @property
    def running(self) -> Sequence[Service]:
        """The services that are started."""
        return tuple(self._started)

    def go(self, fn: Callable[[], Awaitable[Any]]) -> None:
        """Run `fn` beside the server until it stops; its task is cancelled when shutdown begins."""
        if self.state is LifecycleState.RUNNING:
            if asyncio._get_running_loop() is self._loop:
                self._launch(fn)
            else:  # from a thread
                self._loop.call_soon_threadsafe(self._launch, fn)
        elif self.state in (LifecycleState.NEW, LifecycleState.STARTING):
            self._go.append(fn)
        else:
            raise LifecycleError("the server is stopping; nothing new is started")

    def _launch(self, fn: Callable[[], Awaitable[Any]]) -> None:
        task = self._loop.create_task(self._run_and_log(fn), context=detached_context())
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _run_and_log(self, fn: Callable[[], Awaitable[Any]]) -> None:
        fence = Fence()
        try:
            with serve_from(self._database):
                await call(fn)
        except BaseException as error:
            fence.absorb(error)
            log_panic(self._logger, f"{getattr(fn, '__name__', 'a task of server.go')} failed", error)

    async def start(
        self,
        adapters: Sequence[Adapter],
        migrate: Callable[[], Awaitable[None]],
        *,
        services: bool = True,
        background: Callable[[], Sequence[Service]] = tuple,
    ) -> None:
        """Bring everything up, or leave nothing behind; what works in the background comes last."""
        if self.state is not LifecycleState.NEW:
            raise LifecycleError(f"the server is {self.state}; it starts once")
        self.state = LifecycleState.STARTING
        self._loop = asyncio.get_running_loop()
        Fork.serve_on(self._loop)
        self._database = current_database()
        open_adapters: list[Adapter] = []
        try:
            for adapter in adapters:
                open_adapters.append(adapter)
                await _open(adapter)
            await migrate()
            for hook in self.on_start:
                await call(hook)
            for service in (*self.services, *background()) if services else ():
                await call(service.start)
                self._started.append(service)
        except BaseException:
            await self._take_down(open_adapters)
            raise
        self.state = LifecycleState.RUNNING
        self.accepting = self._deadline is None
        for fn in self._go if services else ():
            self._launch(fn)

    async def _take_down(self, open_adapters: Sequence[Adapter]) -> None:
        self.begin_shutdown()
        await self._stop_services()
        for adapter in reversed(open_adapters):
            await self._quietly("closing the database", adapter.close)
        self.state = LifecycleState.STOPPED

    def begin_shutdown(self, timeout: float | None = None) -> None:
        """The moment shutdown begins: the one deadline counts from here."""
        self.accepting = False
        if self._deadline is None:
            self._deadline = time.monotonic() + (self._shutdown_timeout if timeout is None else timeout)

    @property
    def remaining(self) -> float:
        """Seconds left until the deadline."""
        return max((self._deadline or time.monotonic()) - time.monotonic(), 0)

    async def stop(self, runtime: Runtime, adapters: Sequence[Adapter], timeout: float | None = None) -> None:
        """Take everything down within the deadline."""
        if self.state is not LifecycleState.RUNNING:
            return
        self.begin_shutdown(timeout)
        self.state = LifecycleState.STOPPING
        for task in self._going:
            task.cancel()
        await self._stop_services()
        for hook in self.on_shutdown:
            await self._quietly("on_shutdown", hook)
        if self._going:
            await asyncio.wait(self._going, timeout=self.remaining)
        # Requests that the deadline cut off are cancelled by now. They undo what they did, and for that they
        # need the database.
        await runtime.watch.let_undo(UNDO_WITHIN)
        late = await runtime.tasks.drain(max(self.remaining, UNDO_WITHIN))
        if late:
            self._logger.warning("%d background tasks were still running at the shutdown deadline", late)
        for adapter in reversed(adapters):
            await self._quietly("closing the database", adapter.close, grace=1.0)
        self.state = LifecycleState.STOPPED

    async def _stop_services(self) -> None:
        while self._started:
            service = self._started.pop()
            await self._quietly(f"stopping {type(service).__name__}", service.stop)

    async def _quietly(self, what: str, fn: Callable[[], Any], grace: float = 0.0) -> None:
        """Run one shutdown phase; neither its failure nor its slowness keeps the next from running."""
        fence = Fence()
        try:
            async with asyncio.timeout(max(self.remaining, grace, 0.01)):
                await call(fn)
        except TimeoutError:
            self._logger.warning("%s did not finish before the shutdown deadline", what)
        except BaseException as error:
            fence.absorb(error)
            self._logger.exception("%s failed", what)


async def _open(adapter: Adapter) -> None:
    try:
        await adapter.open()
    except ManiflexError as error:
        if adapter.label not in str(error):
            error.add_note(f"while opening {adapter.label}")
        raise


# Warnings of a start, kept instead of logged: a strict server does not start with any.


_LOGGERS = ("maniflex", "maniflex.db", "maniflex.migrate", "maniflex.work")
_collecting: ContextVar[list[str] | None] = ContextVar("maniflex_start_warnings", default=None)


class _Keep(logging.Filter):
    """Takes the warnings of a start that collects them; all other lines pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        warnings = _collecting.get()
        if warnings is None or record.levelno != logging.WARNING:
            return True
        warnings.append(record.getMessage())
        return False


@contextmanager
def collect_warnings(logger: logging.Logger) -> Iterator[list[str]]:
    """Keep what this block would warn of, by this logger or one of ours."""
    warnings: list[str] = []
    loggers = {logger, *map(logging.getLogger, _LOGGERS)}
    keep, token = _Keep(), _collecting.set(warnings)
    for one in loggers:
        one.addFilter(keep)
    try:
        yield warnings
    finally:
        for one in loggers:
            one.removeFilter(keep)
        _collecting.reset(token)


def stop_collecting() -> None:
    """Let what this start still warns of be logged: nothing stops it any more."""
    _collecting.set(None)
