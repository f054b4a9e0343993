"""Where the framework's own long computations run: parsing large bodies, writing large answers.

They run on a thread, so that the event loop serves other requests meanwhile; and one after another,
because threads that compute at once share one interpreter and would only keep it from the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from maniflex.pipeline.threads import Threads

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


_here = _OffloadThread()


def _compute_here(compute: Callable[[], T]) -> T:
    _here.is_offloaded = True
    return compute()


def give_way() -> None:
    """Let the loop have its turn now and then; for functions that C code calls over and over.

    The interpreter hands over between two of its own instructions, but hardly ever between such calls:
    they kept it from the loop for up to a quarter of a second.
    """
    if _here.is_offloaded:
        _here.calls += 1
        if _here.calls % GIVE_WAY_EVERY == 0:
            time.sleep(0.0005)
