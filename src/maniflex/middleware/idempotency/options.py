"""The arguments of `idempotency.keys`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.stores.port import mistakes_of
from maniflex.model.file_field import size_in_bytes
from maniflex.pipeline.context import Context

NAME = "idempotency.keys"
OUTSIDE = "it claims its key outside any transaction"
ON_ERROR = ("refuse", "run")
_STORE = ("on", "claim", "look", "renew", "settle", "release")


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """How keys are taken and kept; durations in seconds."""

    ttl: float
    wait: float
    lease: float
    max_answer: int
    is_required: bool
    runs_on_error: bool
    in_transaction: bool
    caller: Callable[[Context], Any] | None


def option_mistakes(arguments: dict[str, Any]) -> Iterator[str]:
    """The mistakes in the arguments, one sentence each."""
    seconds = {}
    for name in ("ttl", "wait", "lease"):
        value = arguments[name]
        duration = as_timedelta(value)
        if duration < timedelta(0):
            yield f"{name}={value!r} is not a time: give seconds or a timedelta"
        else:
            seconds[name] = duration.total_seconds()
    if seconds.get("lease", 1) < 1:
        yield f"lease={arguments['lease']!r} is less than a second"
    elif "ttl" in seconds and "lease" in seconds and seconds["ttl"] <= seconds["lease"]:
        yield f"ttl={arguments['ttl']!r} is not more than the lease of {seconds['lease']:g} s"
    if size_in_bytes(arguments["max_answer"]) is None:
        yield f"max_answer={arguments['max_answer']!r} is not a size such as 1MB"
    if arguments["on_error"] not in ON_ERROR:
        yield f"on_error={arguments['on_error']!r} is neither 'refuse' nor 'run'"
    for name in ("required", "transaction"):
        if not isinstance(arguments[name], bool):
            yield f"{name}={arguments[name]!r} is neither True nor False"
    if arguments["caller"] is not None and not callable(arguments["caller"]):
        yield f"caller={arguments['caller']!r} is not a function of (ctx)"
    store = arguments["store"]
    missing = [name for name in _STORE if not callable(getattr(store, name, None))]
    if missing:
        yield f"store={store!r} has no {missing[0]}(); use one of maniflex.middleware.stores"
    yield from mistakes_of((store,))
