"""Tasks that last as long as their service, and a check that they do.

A task that ends though it was not stopped is begun again after a pause. Until then it is `dead`, and
`/live` says so: an orchestrator restarts a process whose work has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from maniflex._backoff import Backoff
from maniflex._fence import Fence
from maniflex._logging import log_panic
from maniflex.db.current import detached_context

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
