"""Who handles which type of run, and how patiently.

A type is a dotted name such as `email.receipt.v1`. Handlers are found by exact type; workers ask for
types by prefix, which here become ranges of text that both databases can look up.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from maniflex._backoff import Backoff
from maniflex.errors import DeclarationError, ValidationFailed

DEFAULT_PREFIX = "default."
MAX_ATTEMPTS = 3
_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """What runs of one type are given to."""

    type: str
    fn: Callable[..., Any]
    is_async: bool
    max_attempts: int = MAX_ATTEMPTS
    lease: timedelta | None = None
    timeout: timedelta | None = None
    backoff: Callable[[int], timedelta] = _BACKOFF
    payload: TypeAdapter[Any] | None = None
    internal: bool = False  # True: clients may not submit it over REST
    dead_letter: str | None = None  # a run of this type is submitted for each that fails for good


class Handlers:
    """The handlers of one server; open while declaring."""

    def __init__(self) -> None:
        self._by_type: dict[str, Handler] = {}
        self._problems: list[str] = []

    def __len__(self) -> int:
        return len(self._by_type)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_type.values())

    def get(self, type: str) -> Handler | None:
        return self._by_type.get(type)

    def add(self, type: str, fn: Callable[..., Any], **options: Any) -> None:
        where = f"work handler {type!r}"
        for problem in _problems(type, fn, options):
            self._problems.append(f"{where}: {problem}")
        if type in self._by_type:
            self._problems.append(f"{where}: there is a handler of this type already")
        given = {name: value for name, value in options.items() if value is not None}
        if "payload" in given:
            given["payload"] = TypeAdapter(given["payload"])
        self._by_type[type] = Handler(type, fn, _is_async(fn), **given)

    def problems(self) -> list[str]:
        return list(self._problems)

    def leases(self) -> dict[str, timedelta]:
        """Types whose lease is not the worker's own."""
        return {h.type: h.lease for h in self._by_type.values() if h.lease is not None}

    def ranges(self, prefixes: Iterable[str]) -> list[tuple[str, str]]:
        """The types a worker asks for: those of its prefixes, or `default.` and what is handled here."""
        asked = tuple(prefixes)
        if asked:
            return sorted({prefix_range(prefix) for prefix in asked})
        exact = {(type, f"{type}\x01") for type in self._by_type if not type.startswith(DEFAULT_PREFIX)}
        return sorted({prefix_range(DEFAULT_PREFIX), *exact})


def prefix_range(prefix: str) -> tuple[str, str]:
    """From and to of the texts that start with `prefix`."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def check_type(type: Any) -> str:
    """The type as it is, or `ValidationFailed`."""
    if not isinstance(type, str) or not _TYPE.fullmatch(type):
        message = "must be a dotted name such as email.receipt.v1"
        raise ValidationFailed(f"the type {message}", [{"field": "type", "message": message}])
    return type


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _takes_one(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function of C that does not say
        return True
    return True


def _problems(type: Any, fn: Any, options: Mapping[str, Any]) -> Iterable[str]:
    try:
        check_type(type)
    except ValidationFailed:
        yield "a type is a dotted name such as email.receipt.v1"
    if not callable(fn):
        yield f"{fn!r} is not callable"
    elif not _takes_one(fn):
        yield "the function is called with the run, its only argument"
    attempts = options.get("max_attempts")
    if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1):
        yield "max_attempts must be a whole number above zero"
    for name in ("lease", "timeout"):
        value = options.get(name)
        if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
            yield f"{name} must be a timedelta above zero"
    letter = options.get("dead_letter")
    if letter is not None and (not isinstance(letter, str) or not _TYPE.fullmatch(letter) or letter == type):
        yield "dead_letter is another type, a dotted name such as email.dead.v1"
    backoff = options.get("backoff")
    if backoff is not None and not callable(backoff):
        yield "backoff is called with the number of failures and gives a timedelta"


def as_duration(value: timedelta | float, what: str) -> timedelta:
    """A duration given as such or in seconds."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=value)
    except (TypeError, OverflowError, ValueError):
        raise DeclarationError(f"{what} must be a timedelta or seconds") from None
