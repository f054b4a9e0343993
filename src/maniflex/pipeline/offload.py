"""Where the framework's own long computations run: parsing large bodies, writing large answers.

They run on a thread, so that the event loop serves other requests meanwhile; and one after another,
because threads that compute at once share one interpreter and would only keep it from the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from maniflex.pipeline.threads import Threads

T = TypeVar("T")
LARGE = 64 * 1024  # bytes that are read or written faster than a thread is asked to


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
            result: T = await self._threads.run(compute)
        return result
