"""Events: their value, their patterns, and the buses that carry them; brokers are imported when first named.

from maniflex.events import Event, RedisBus
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maniflex.errors import CursorGone, Lagged, QueueFull
from maniflex.events import patterns
from maniflex.events.emit import Emit
from maniflex.events.event import Event
from maniflex.events.port import Bus, Handle

if TYPE_CHECKING:
    from maniflex.events.handlers import MemoryDedupe, dedupe, log_handler
    from maniflex.events.in_process import InProcessBus
    from maniflex.events.kafka import KafkaBus
    from maniflex.events.nats import NatsBus
    from maniflex.events.rabbitmq import RabbitBus
    from maniflex.events.redis import RedisBus

__all__ = [
    "Bus",
    "CursorGone",
    "Emit",
    "Event",
    "Handle",
    "InProcessBus",
    "KafkaBus",
    "Lagged",
    "MemoryDedupe",
    "NatsBus",
    "QueueFull",
    "RabbitBus",
    "RedisBus",
    "dedupe",
    "log_handler",
    "patterns",
]

_LAZY = {  # name → module
    "InProcessBus": "in_process",
    "KafkaBus": "kafka",
    "MemoryDedupe": "handlers",
    "NatsBus": "nats",
    "RabbitBus": "rabbitmq",
    "RedisBus": "redis",
    "dedupe": "handlers",
    "log_handler": "handlers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
