"""Plain functions of an application, on threads of our own beside the event loop.

The threads of `asyncio.to_thread` and of the standard pools are joined when the loop closes or the
interpreter exits, so one function that does not return would keep the process for ever. A call that is
lost with these threads is lost as in a crash, and durable work is made for crashes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from threading import Condition, Thread
from typing import Any, ParamSpec, TypeVar

from maniflex._fence import Fork, describe

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
