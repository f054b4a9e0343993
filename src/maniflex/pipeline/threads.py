"""Where plain `def` code of the application runs: middleware, action handlers, computed fields.

Three promises hold for all of it, which is why it has one home: only so many requests are in it at
once, a request that has ended is not continued from it, and no thread keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from maniflex._fence import Fence, Fork

AT_ONCE = 64  # requests
IDLE_SECONDS = 10.0
ENDED = "the request has ended; nothing more is done for it"

_inside: ContextVar[Call | None] = ContextVar("maniflex_inside_a_thread", default=None)


class _CurrentCall(threading.local):
    call: Call | None = None


_here = _CurrentCall()


class Call:
    """One function on a thread; `over` once no request waits for it any more."""

    __slots__ = ("_error", "_fn", "_loop", "_rest", "_value", "finished", "outcome", "over", "running")

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        context = copy_context()
        context.run(_inside.set, self)
        self._fn = partial(context.run, fn, *args)
        self._loop = asyncio.get_running_loop()
        self._rest: set[asyncio.Task[None]] = set()
        self._value: Any = None
        self._error: BaseException | None = None
        self.outcome: asyncio.Future[Any] = self._loop.create_future()
        self.finished: Callable[[], None] | None = None
        self.running = True
        self.over = False

    # -- on the event loop

    def end(self) -> None:
        """The request has ended: stop what continues it, and let nothing else begin to."""
        self.over = True
        for task in self._rest:
            task.cancel()

    def settle(self) -> None:
        """The thread is done with it."""
        self.running = False
        if self.finished is not None:
            self.finished()
        if self.outcome.done():
            return
        if self._error is None:
            self.outcome.set_result(self._value)
        else:
            self.outcome.set_exception(self._error)
        self._value = self._error = None

    async def _continue(self, work: Callable[[], Awaitable[None]]) -> None:
        # Asked again on the loop, which is where requests end: none ends between here and the note.
        self.refuse_when_over()
        task = asyncio.current_task()
        assert task is not None
        self._rest.add(task)
        fence = Fence(task)
        try:
            await work()
        except Exception:
            raise
        except BaseException as error:  # a task that raises `SystemExit` ends the event loop
            raise fence.absorb(error) from error
        finally:
            self._rest.discard(task)

    # -- on the thread

    def run(self) -> None:
        _here.call = self
        try:
            self._value = self._fn()
            Fork.end_if_child()
        except (StopIteration, GeneratorExit) as error:  # no future can carry them
            self._error = RuntimeError(f"{type(error).__name__} was raised")
            self._error.__cause__ = error
        except BaseException as error:
            Fork.end_if_child(error)
            self._error = error
        finally:
            _here.call = None
            del self._fn
            # The error has this frame, and the call has the error: in a circle, all that was worked on
            # would wait for the garbage collector.
            del self

    def report(self) -> None:
        with suppress(RuntimeError):  # on a closed loop no task waits any more
            self._loop.call_soon_threadsafe(self.settle)

    def go_on(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` on the event loop and wait for it."""
        self.refuse_when_over()
        try:
            asyncio.run_coroutine_threadsafe(self._continue(work), self._loop).result()
        except asyncio.CancelledError:  # asyncio turns ours into its own, which `except Exception` lets pass
            raise CancelledError(ENDED) from None

    def refuse_when_over(self) -> None:
        if self.over:
            raise CancelledError(ENDED)


def refuse_when_over() -> None:
    """Raise on a thread whose request has ended; anywhere else do nothing."""
    if _here.call is not None:
        _here.call.refuse_when_over()


class Threads:
    """The threads of one server.

    A request that is inside already never waits for a turn again: it may be what the others wait
    for in `next()`. So the threads have no limit of their own; the requests have.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Call]] = []

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn` returns."""
        return await self.finish(Call(fn, *args))

    async def finish(self, call: Call) -> Any:
        """What the call returns. A cancellation ends the waiting; the thread goes on and keeps its turn."""
        around = _inside.get()
        if around is None or not around.running:
            await self._turns.acquire()
            call.finished = self._turns.release
        try:
            self._start(call)
        except BaseException:  # there are no more threads to be had
            call.settle()
            raise
        try:
            return await call.outcome
        except asyncio.CancelledError:
            call.end()
            raise
        finally:
            del call  # an error that passes has this frame, and the call has the error

    def _start(self, call: Call) -> None:
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(call)
            return
        inbox: SimpleQueue[Call] = SimpleQueue()
        inbox.put(call)  # not an argument: a thread keeps those as long as it lives
        # A daemon: the deadline of a shutdown also holds for code that does not return.
        threading.Thread(target=self._serve, args=(inbox,), name="maniflex-sync", daemon=True).start()

    def _serve(self, inbox: SimpleQueue[Call]) -> None:
        call: Call | None = inbox.get()
        while call is not None:
            call.run()
            # In line before it is known that this one is done, so that the next call finds this thread.
            with self._lock:
                self._idle.append(inbox)
            call.report()
            call = None  # it holds a request, and the wait may be long
            call = self._next(inbox)

    def _next(self, inbox: SimpleQueue[Call]) -> Call | None:
        """The next call, or None when none came for a while."""
        try:
            return inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return inbox.get()  # one is on its way here


# Where the framework's own long computations run: parsing large bodies, writing large answers.
#
# They run on a thread, so that the event loop serves other requests meanwhile; and one after another,
# because threads that compute at once share one interpreter and would only keep it from the loop.


T = TypeVar("T")
LARGE = 64 * 1024  # bytes that are read or written faster than a thread is asked to
GIVE_WAY_EVERY = 128  # calls


class Offload:
    """One thread's worth of computing."""

    def __init__(self) -> None:
        # Threads of its own: those of the application may all be waiting for what is done here.
        self._threads = Threads()
        self._turn = asyncio.Lock()

    async def run(self, size: int, compute: Callable[[], T]) -> T:
        """What `compute` returns; it is called at once when it works on few bytes."""
        if size <= LARGE:
            return compute()
        async with self._turn:
            result: T = await self._threads.run(partial(_compute_here, compute))
        return result


class _OffloadThread(threading.local):
    is_offloaded = False  # this thread computes for the loop of another
    calls = 0


_offload_thread = _OffloadThread()


def _compute_here(compute: Callable[[], T]) -> T:
    _offload_thread.is_offloaded = True
    return compute()


def give_way() -> None:
    """Let the loop have its turn now and then; for functions that C code calls over and over.

    The interpreter hands over between two of its own instructions, but hardly ever between such calls:
    they kept it from the loop for up to a quarter of a second.
    """
    if _offload_thread.is_offloaded:
        _offload_thread.calls += 1
        if _offload_thread.calls % GIVE_WAY_EVERY == 0:
            time.sleep(0.0005)
