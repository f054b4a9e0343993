"""The fence between our loops and the code of an application.

A handler or hook may raise anything: `SystemExit` out of a library, the panic of an extension module
(a `BaseException`), a `CancelledError` of its own. All of that is its failure and ends neither the loop
that called it nor the process. Only two things go on, because they are meant for the calling task
itself: that it is cancelled, and that its coroutine is closed.

>>> fence = Fence()
>>> try:
...     await hook()
... except BaseException as error:
...     fence.absorb(error)
...     logger.exception("a hook failed")
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet

MOST_LEAVES = 10  # of a group that are named
CAME_BACK = (
    "maniflex: this process was forked off a server and came back to it, so it ends here; do not fork in a"
    " handler, or let the child end with os._exit"
)


class Fork:
    """Ends the child of a handler that forks where it comes back to us.

    It has the sockets of its parent, and would be a second worker. Nobody should fork in a handler, but to
    forget `os._exit` must not cost data. A child that serves by itself is no such child any more.
    """

    is_child: ClassVar[bool] = False
    _serving: ClassVar[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()

    @classmethod
    def serve_on(cls, loop: asyncio.AbstractEventLoop) -> None:
        """A server starts on this loop."""
        cls._serving.add(loop)
        cls.is_child = False

    @classmethod
    def note(cls) -> None:
        """This process was forked off just now."""
        for loop in cls._serving:
            if loop.is_running():
                cls.is_child = True
                loop.call_soon(end_child)  # in its next turn, where no exception brings the child back
        cls._serving = WeakSet()

    @classmethod
    def end_if_child(cls, error: BaseException | None = None) -> None:
        """The code of an application returned or raised, on a thread of ours."""
        if cls.is_child:
            end_child(error)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Fork.note)


class Fence:
    """Stands around one call of a handler or hook."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        """`task` is the calling one, where it is at hand."""
        self._task = task or asyncio.current_task()

    def absorb(self, error: BaseException) -> Exception:
        """The exception as the failure of what was called; raises it again if it is meant for us."""
        if Fork.is_child:
            end_child(error)
        if isinstance(error, asyncio.CancelledError):
            if self._task is not None and self._task.cancelling():
                raise error
        elif isinstance(error, GeneratorExit):
            if _running_task() is not self._task:  # our coroutine is closed from outside
                raise error
        elif isinstance(error, KeyboardInterrupt):
            _pass_on_interrupt()
        if isinstance(error, Exception):
            return error
        failure = RuntimeError(f"{describe(error)} was raised")
        failure.__cause__ = error
        return failure


def describe(error: BaseException) -> str:
    """The type and the text of an exception, also where the text cannot be had, and of those in a group."""
    text = text_of(error)
    description = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        description += ": " + "; ".join(map(describe, islice(leaves_of(error), MOST_LEAVES)))
    return description


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and the groups within it, in order; another one is its own."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))
        else:
            yield one


def text_of(error: BaseException) -> str:
    """The text of an exception; empty where making it raises, even a `BaseException`."""
    try:
        return str(error)
    except BaseException:  # nothing is awaited in it, so none of this is meant for us
        return ""


def end_child(error: BaseException | None = None) -> NoReturn:
    """End a process that a handler forked off, with the code of its `sys.exit`."""
    code: Any = 0
    print(CAME_BACK, file=sys.stderr)
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):  # as the interpreter does
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code or 0)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


def _pass_on_interrupt() -> None:
    """Where Python itself turns Ctrl-C into an exception, it may have struck just while a handler ran.

    Everywhere else the signal handler that was set gets the signal, and the exception is our handler's own.
    """
    by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_python and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().call_soon(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt
