"""Waiting for a condition: `eventually` inside an event loop, `until` in a test that has none.

Both ask at once, then again and again, at first without a pause; they return the first answer that is true.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 40.0  # seconds; a test that waits longer has failed


async def eventually(condition: Callable[[], Any], what: str = "", patience: float = PATIENCE) -> Any:
    """Ask until the answer, awaited where it has to be, is true; fail with the name of what did not come."""
    start = time.monotonic()
    try:
        async with asyncio.timeout(patience) as limit:
            while True:
                answer = condition()
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer:
                    return answer
                await asyncio.sleep(_pause(start))
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"waited {patience} s in vain: {what or condition}") from None


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """`eventually` for a test without an event loop."""
    start = time.monotonic()
    while not (answer := condition()):
        if time.monotonic() - start > patience:
            raise AssertionError(f"waited {patience} s in vain: {what}")
        time.sleep(_pause(start))
    return answer


def _pause(start: float) -> float:
    """How long to wait before asking again: a twentieth of the time that has passed already."""
    passed = time.monotonic() - start
    return 0 if passed < 0.005 else min(passed / 20, 0.05)
