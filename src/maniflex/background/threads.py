"""Plain functions of an application, on threads of our own beside the event loop.

The threads of `asyncio.to_thread` and of the standard pools are joined when the loop closes or the
interpreter exits, so one function that does not return would keep the process for ever. A call that
is lost with these threads is lost as in a crash, and durable work is made for crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from threading import Condition, Thread
from typing import Any, ParamSpec, Protocol, TypeVar

from maniflex._clock import Backoff
from maniflex._fence import Fence, Fork, describe
from maniflex._logging import log_panic
from maniflex.db.current import detached_context

P = ParamSpec("P")
T = TypeVar("T")
MOST = 64
IDLE = 30.0  # seconds until a thread without work ends


class DaemonThreads(Executor):
    """At most `most` threads; a call that finds none free waits for its turn."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: deque[_ThreadCall] = deque()
        self._changed = Condition()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        job = _ThreadCall(partial(fn, *args, **kwargs))
        with self._changed:
            if self._closed:
                raise RuntimeError("these threads take no more work")
            self._jobs.append(job)
            if self._idle < len(self._jobs) and self._threads < self._most:
                self._threads += 1
                Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.notify()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; unlike the standard pools it never waits for what runs."""
        with self._changed:
            self._closed = True
            jobs_to_cancel = list(self._jobs) if cancel_futures else []
            if cancel_futures:
                self._jobs.clear()
            self._changed.notify_all()
        for job in jobs_to_cancel:
            job.future.cancel()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # or it would live on until the next one comes

    def _next(self) -> _ThreadCall | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed, IDLE)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads -= 1
            return None


class _ThreadCall:
    """One call and its outcome to be."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_plain = DaemonThreads(MOST, "maniflex-plain")


def on_thread(call: Callable[[], T], threads: Executor | None = None) -> asyncio.Future[T]:
    """Begin a plain function on a thread, in our context; what comes of it."""
    return asyncio.wrap_future(begin_on_thread(call, threads))


def begin_on_thread(call: Callable[[], T], threads: Executor | None = None) -> Future[T]:
    """The same, as a future that goes on when the task which awaits it is cancelled."""
    return (threads or _plain).submit(copy_context().run, _deliverable, call)


def _deliverable(call: Callable[[], T]) -> T:
    """No future carries these two: the task that awaits it would wait for ever, or be closed by it."""
    try:
        result = call()
    except BaseException as error:
        Fork.end_if_child(error)
        if isinstance(error, StopIteration | GeneratorExit):
            raise RuntimeError(f"{describe(error)} was raised") from error
        raise
    Fork.end_if_child()
    return result


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
