"""What can be said of a function before it is called."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any


def is_async(fn: Any) -> bool:
    """Whether calling it gives something to await."""
    whole = _without_partials(fn)
    return inspect.iscoroutinefunction(whole) or inspect.iscoroutinefunction(type(whole).__call__)


def label_of(fn: Any) -> str:
    """The name a function goes by in messages and traces; an object without one goes by its class."""
    whole = _without_partials(fn)
    return getattr(whole, "__name__", None) or type(whole).__name__


def _without_partials(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn
