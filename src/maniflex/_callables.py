"""What can be said of a function before it is called."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any


def is_async(fn: Any) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def label_of(fn: Any) -> str:
    """The name a function goes by in messages and traces; an object without one goes by its class."""
    return getattr(fn, "__name__", None) or type(fn).__name__
