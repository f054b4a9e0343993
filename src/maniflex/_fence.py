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

MOST_LEAVES = 10  # of a group that are named


class Forks:
    """The forks between this process and the one that imported us."""

    count: ClassVar[int] = 0

    @classmethod
    def note(cls) -> None:
        """This process was forked off."""
        cls.count += 1


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Forks.note)


class Fence:
    """Stands around one call of a handler or hook."""

    __slots__ = ("_forks", "_task")

    def __init__(self, task: asyncio.Task[Any] | None = None, forks: int | None = None) -> None:
        """`task` is the calling one, where it is at hand; `forks` their count before the call, if noted."""
        self._task = task or asyncio.current_task()
        self._forks = Forks.count if forks is None else forks

    def absorb(self, error: BaseException) -> Exception:
        """The exception as the failure of what was called; raises it again if it is meant for us."""
        if Forks.count != self._forks:
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

    def end_if_forked(self) -> None:
        """The call returned: in a process that it forked off, that is where the process ends."""
        if Forks.count != self._forks:
            end_child()


class ThreadFence:
    """The same for a call on a thread, where only a fork has to be noticed."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = Forks.count

    def end_if_forked(self, error: BaseException | None = None) -> None:
        """The call returned or raised: in a process that it forked off, that is where the process ends."""
        if Forks.count != self._forks:
            end_child(error)


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
    """End a process that a handler forked off: it has our sockets, and must not go on as a second worker."""
    code: Any = 0
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
