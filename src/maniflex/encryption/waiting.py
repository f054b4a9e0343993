"""Lets code that cannot await wait for a key provider that is asked over a network.

Rows are sealed and opened deep inside plain functions. With keys of this process that takes microseconds.
With a provider elsewhere it is a question and an answer, during which the event loop has to go on: each
step of a coroutine that is run by `allow_waiting` runs on a stack of its own (a greenlet, as SQLAlchemy
does it), which stands still while the coroutine awaits the answer in its place. Servers with keys of their
own use none of this.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import cache, wraps
from importlib.util import find_spec
from types import coroutine
from typing import Any, ParamSpec, TypeVar, cast

from maniflex.errors import EncryptionError

T = TypeVar("T")
P = ParamSpec("P")

MISSING_GREENLET = 'a key provider that is asked elsewhere needs greenlet: pip install "maniflex[encryption]"'


def has_greenlet() -> bool:
    """Whether waiting is possible."""
    return find_spec("greenlet") is not None


def wait_for(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """The outcome of the work; the coroutine that runs this code awaits it, or on a thread, the loop does."""
    here = _stacks().getcurrent()
    if isinstance(here, _stack_class()):
        answer: T = here.parent.switch(work)
        return answer
    if loop is not None and asyncio._get_running_loop() is None and not loop.is_closed():
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    work.close()
    raise EncryptionError("a key provider that is asked elsewhere is used by requests, runs and server.db")


async def allow_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run the work, whose plain functions may call `wait_for`."""
    return await _steps_of(work)


def waits_inside(fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same function, whose plain functions may call `wait_for`."""

    @wraps(fn)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _steps_of(cast(Coroutine[Any, Any, T], fn(*args, **kwargs)))

    return call


@coroutine
def _steps_of(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Each step of the work on a stack of its own; what the step waits for is awaited here."""
    new_stack, current = _stack_class(), _stacks().getcurrent
    step, argument = work.send, None
    while True:
        stack = new_stack(step)
        stack.gr_context = current().gr_context
        go_on = stack.switch
        try:
            outcome = go_on(argument)
            while not stack.dead:  # it stands still in `wait_for`
                try:
                    answer, go_on = (yield from outcome.__await__()), stack.switch
                except BaseException as error:
                    answer, go_on = error, stack.throw
                stack.parent = current()  # which is another one in each step of work around this one
                outcome = go_on(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        try:
            step, argument = work.send, (yield outcome)
        except BaseException as error:  # a cancellation too: it is the work's to handle
            step, argument = work.throw, error


@cache
def _stacks() -> Any:
    import greenlet  # type: ignore[import-untyped]  # it has no types

    return greenlet


@cache
def _stack_class() -> Any:
    class Stack(_stacks().greenlet):  # type: ignore[misc]  # a class without types
        """The stack of one step."""

    return Stack


TaskFactory = Callable[..., "asyncio.Future[Any]"]


def let_tasks_wait(loop: asyncio.AbstractEventLoop) -> None:
    """Let the plain functions of all tasks that begin from now on wait: of requests, runs and services."""
    before = loop.get_task_factory()
    if getattr(before, "lets_wait", False):
        return

    def begin(
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Future[Any]:
        own: Any = allow_waiting(work) if inspect.iscoroutine(work) else work
        if before is None:
            return asyncio.Task(own, loop=loop, **options)
        return before(loop, own, **options)

    begin.lets_wait = True  # type: ignore[attr-defined]  # a mark of ours
    loop.set_task_factory(begin)


class WithLeaveToWait:
    """What a call of an object's async methods gives, with leave to wait; the rest is the object's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return waits_inside(value) if inspect.iscoroutinefunction(value) else value
