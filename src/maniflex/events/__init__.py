"""Events: their value, their patterns, and the buses that carry them; brokers are imported when first named.

from maniflex.events import Event, RedisBus
"""

from importlib import import_module
from typing import Any

from maniflex.errors import CursorGone, Lagged, QueueFull
from maniflex.events import patterns
from maniflex.events.emit import Emit
from maniflex.events.event import Event
from maniflex.events.port import Bus, Handle

__all__ = ["Bus", "CursorGone", "Emit", "Event", "Handle", "Lagged", "QueueFull", "patterns"]

_LAZY: dict[str, str] = {}  # name → module


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
