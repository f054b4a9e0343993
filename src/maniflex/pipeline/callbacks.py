"""Functions of the application that entries ask: plain or async, and never taken for a yes when they fail."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from maniflex.errors import CallbackFailed, RequestError

MEANT_FOR_TASKS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)  # perhaps; `answer` tells


async def ask(ctx: object, fn: Callable[..., Any], *args: Any) -> Any:
    """The result of a callback, plain or async; what it raises refuses the request, never lets it pass."""
    try:
        outcome = fn(*args)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(fn) from error


def callback_failure(fn: Any) -> CallbackFailed:
    """The refusal of a request whose callback raised something else."""
    return CallbackFailed(f"{getattr(fn, '__qualname__', fn)} failed")
