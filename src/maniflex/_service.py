"""Long-lived parts of an application that start after the database and stop before it."""

from __future__ import annotations

import inspect
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
