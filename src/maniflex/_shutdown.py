"""The end of an event loop: it waits for every task it knows, so that one that will not end keeps it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

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
