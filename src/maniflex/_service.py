"""Long-lived parts of an application: they start after the database and stop before it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol


class Service(Protocol):
    """Anything with a start and a stop; both may be plain or async."""

    def start(self) -> Any: ...

    def stop(self) -> Any: ...


class StartOnly:
    """A bare function as a service: it is called at start, and there is nothing to stop."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn

    def start(self) -> Any:
        return self._fn()

    def stop(self) -> None:
        return None


async def call(fn: Callable[[], Any]) -> Any:
    """Call a plain or async function alike."""
    outcome = fn()
    return await outcome if inspect.isawaitable(outcome) else outcome


# The end of an event loop: it waits for every task it knows, so that one that will not end keeps it.


PATIENCE = 1.0


async def cancel_remaining_tasks(logger: logging.Logger) -> None:
    """Cancel all other tasks of this loop; a task that swallows that is left behind with the process."""
    others: set[asyncio.Task[Any]] = asyncio.all_tasks()
    others.discard(asyncio.current_task())
    for task in others:
        task.cancel()
    if not others:
        return
    _, stubborn = await asyncio.wait(others, timeout=PATIENCE)
    for task in stubborn:
        logger.warning("%s does not end when it is cancelled; it is left behind", task.get_name())
        asyncio.tasks._unregister_task(task)
