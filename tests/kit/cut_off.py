"""Cut work off in the middle, as a stop of its process would: an exception would fail one request alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest


async def cut_off() -> None:
    """End the task that works here; called by code that stands in the way of the work."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def expect_cut_off(work: Coroutine[Any, Any, Any]) -> None:
    """Do `work` in a task of its own, which must be cut off."""
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work)
