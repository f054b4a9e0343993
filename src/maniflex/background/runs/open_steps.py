"""The steps of one attempt that are under way: the attempt is over when they are.

A step that has had its effect is remembered, even when the task that awaited it is cancelled: when a
neighbour fails, the attempt runs out of time or the worker stops, a plain function still comes to its
end on its thread, and what a step returned is still written down. Only then is an outcome settled, so
that no retry begins what still goes on, and none repeats what was done.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex.background.threads import begin_on_thread
from maniflex.errors import DeclarationError

GRACE = 30.0  # seconds for steps on the loop to come to their end, before they are cancelled
CANCEL_AGAIN = 1.0

Keep = Callable[[Any], Awaitable[Any]]


class OpenSteps:
    """What goes on in one attempt besides its handler."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}  # by step: the task that is in it
        self._lasting: dict[str, asyncio.Task[Any]] = {}  # by step: what goes on without that task
        self._ended: asyncio.Event | None = None  # made when somebody waits for it

    def __len__(self) -> int:
        return len(self._tasks) + len(self._lasting)

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        """The step of that name is under way."""
        if name in self._tasks or name in self._lasting:
            raise DeclarationError(f"step {name!r} is under way already; side by side they need two names")
        self._tasks[name] = asyncio.current_task()
        try:
            yield
        finally:
            del self._tasks[name]
            self._tell()

    async def perform(self, name: str, call: partial[Any], keep: Keep | None) -> Any:
        """Call a function, async here and plain on a thread, and keep what it returns.

        Without `keep`, what it returns is given back as it is, and dropped when no task waits for it.
        """
        fence = Fence()
        try:
            if is_async(call):
                result = await call()
            else:
                result = await self._call_plain(name, call, keep)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # A task that somebody else started would pass the first two on to the loop, and end the process;
            # the third would close whoever awaits it.
            raise fence.absorb(error) from error
        fence.end_if_forked()
        if keep is None:
            return result
        try:
            return await keep(result)
        except asyncio.CancelledError:
            self._outlast(name, _keep(keep, result))  # to keep it twice does no harm
            raise

    async def _call_plain(self, name: str, call: Callable[[], Any], keep: Keep | None) -> Any:
        on_thread = begin_on_thread(call)
        try:
            result = await asyncio.wrap_future(on_thread)
        except asyncio.CancelledError:
            if not on_thread.cancelled():  # it had begun, and nothing stops it
                self._outlast(name, self._finish(on_thread, keep))
            raise
        return await result if inspect.isawaitable(result) else result

    async def _finish(self, on_thread: Future[Any], keep: Keep | None) -> None:
        result = await asyncio.wrap_future(on_thread)
        if keep is not None and not inspect.isawaitable(result):
            await keep(result)

    def _outlast(self, name: str, rest: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(rest)
        self._lasting[name] = task
        task.add_done_callback(partial(self._forget_lasting, name))

    def _forget_lasting(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._lasting[name]
        if not task.cancelled():
            task.exception()  # the step failed, or the run is not ours any more: the outcome shows it
        self._tell()

    def _tell(self) -> None:
        if self._ended is not None and not len(self):
            self._ended.set()

    async def end(self, grace: float) -> None:
        """Wait for the steps under way; after `grace` seconds they are cancelled."""
        if not len(self):
            return
        self._ended = asyncio.Event()
        await self._wait(grace)
        while len(self):
            for task in self._tasks.values():
                if task is not None:
                    task.cancel()
            await self._wait(CANCEL_AGAIN)

    async def _wait(self, seconds: float) -> None:
        assert self._ended is not None
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass

    def abandon(self) -> None:
        """The worker waits no longer: what goes on is lost as in a crash."""
        for task in self._lasting.values():
            task.cancel()


async def _keep(keep: Keep, result: Any) -> None:
    await keep(result)
