"""What can be said of a function before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


def is_async(fn: Any) -> bool:
    """Whether calling it gives something to await."""
    whole = _without_partials(fn)
    return inspect.iscoroutinefunction(whole) or inspect.iscoroutinefunction(type(whole).__call__)


def cache_by_class(fn: Callable[[type], T]) -> Callable[[type], T]:
    """Remember what a function says of each class while the class lives; the value must not hold it."""
    results: WeakKeyDictionary[type, T] = WeakKeyDictionary()

    @wraps(fn)
    def look_up(cls: type) -> T:
        try:
            return results[cls]
        except KeyError:
            result = results[cls] = fn(cls)
            return result

    return look_up


def label_of(fn: Any) -> str:
    """The name a function goes by in messages and traces; an object without one goes by its class."""
    whole = _without_partials(fn)
    return getattr(whole, "__name__", None) or type(whole).__name__


def _without_partials(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn
