"""Who handles which type of run, and how patiently.

A type is a dotted name such as `email.receipt.v1`. Handlers are found by exact type; workers ask for
types by prefix, which here become ranges of text that both databases can look up.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from maniflex._callables import is_async
from maniflex._clock import Backoff
from maniflex._json import encode
from maniflex.background.declaring import (
    as_duration,
    duration_problems,
    key_id_of_option,
    key_option_problems,
    role_problems,
    switch_problems,
)
from maniflex.background.payload_types import PayloadType
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.model.base import losses

DEFAULT_PREFIX = "default."
MAX_ATTEMPTS = 3
PRIORITIES = 100  # above and below zero: each one in use is a lane that every claim looks into
_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True, eq=False)
class RunHandler:
    """What runs of one type are given to."""

    type: str
    fn: Callable[..., Any]
    is_async: bool
    max_attempts: int = MAX_ATTEMPTS
    lease: timedelta | None = None
    timeout: timedelta | None = None
    backoff: Callable[[int], timedelta] = _BACKOFF
    payload: PayloadType | None = None
    internal: bool = False  # True: over REST only operators see it
    public: bool = False  # True: clients submit it over REST, and change their runs of it
    max_priority: int = 0  # how far from 0 the priority of a client may be
    dead_letter: str | None = None  # a run of this type is submitted for each that fails for good
    scoped: bool = False  # True: scope rules bind it by the caller of the run
    encrypted: str | None = None  # the key id under which what its runs hold is stored
    undo_attempts: int | None = None  # to take steps back; None: the attempt that fails, and ten more
    undo_backoff: Callable[[int], timedelta] | None = None  # between those; None: as between others


def payload_text(handler: RunHandler | None, payload: Any, *, to_seal: bool = False) -> str:
    """The text to store for a payload, so that its handler gets what was given."""
    text = encode({} if payload is None else payload, "payload", to_seal=to_seal)
    if handler is None or handler.payload is None:
        return text
    return handler.payload.write(payload, text, to_seal=to_seal)


class RunHandlers:
    """The handlers of one server; open while declaring."""

    def __init__(self) -> None:
        self._by_type: dict[str, RunHandler] = {}
        self.get: Callable[[str], RunHandler | None] = self._by_type.get  # by exact type; asked for every run
        self.separate: dict[str, int] = {}  # types with a worker of their own, and how many it has at once
        self._problems: list[str] = []
        self._hidden: list[str] | None = None

    def __len__(self) -> int:
        return len(self._by_type)

    def __iter__(self) -> Iterator[RunHandler]:
        return iter(self._by_type.values())

    def add(self, type: str, fn: Callable[..., Any], **options: Any) -> None:
        where = f"work handler {type!r}"
        problems = list(_problems(type, fn, options))
        self._problems += [f"{where}: {problem}" for problem in problems]
        if type in self._by_type:
            self._problems.append(f"{where}: there is a handler of this type already")
        values = {name: value for name, value in options.items() if value is not None}
        if "payload" in values:
            values["payload"] = PayloadType(values["payload"])
        if not problems:
            values["encrypted"] = key_id_of_option(values.get("encrypted"))
            values |= {
                name: as_duration(values[name], name) for name in ("lease", "timeout") if name in values
            }
            values |= (
                {"undo_backoff": _as_backoff(values["undo_backoff"])} if "undo_backoff" in values else {}
            )
        bound_fn = _in_scope(fn) if values.get("scoped") is True else fn
        self._by_type[type] = RunHandler(type, bound_fn, is_async(fn), **values)
        self._hidden = None

    def problems(self) -> list[str]:
        letters = {h.dead_letter for h in self._by_type.values()}
        open_letters = [h.type for h in self._by_type.values() if h.public and h.type in letters]
        problem = "dead letters are sent to it, so it is not public"
        letter_problems = (f"work handler {type!r}: {problem}" for type in open_letters)
        return [*self._problems, *letter_problems, *self._circles(), *self._losses()]

    def _losses(self) -> Iterator[str]:
        """What clients submit is stored as it is bound, so its type must be one that can be stored."""
        for handler in self._by_type.values():
            adapter = handler.payload.adapter if handler.public and handler.payload is not None else None
            if adapter is not None and adapter.rebuild() is not False:
                schema = adapter.core_schema
                for why in dict.fromkeys(losses(schema, to_seal=handler.encrypted is not None)):
                    yield f"work handler {handler.type!r}: {why}"

    def hidden_types(self) -> list[str]:
        """The types that only operators see over REST: internal ones, and dead letters with their causes."""
        if self._hidden is None:
            internal = {h.type for h in self._by_type.values() if h.internal}
            letters = {h.dead_letter for h in self._by_type.values() if h.dead_letter is not None}
            self._hidden = sorted(internal | letters)
        return self._hidden

    def _circles(self) -> Iterator[str]:
        """Dead letters that come back to where they began would be written for ever."""
        types_in_circles: set[str] = set()
        for start in self._by_type:
            way = [start]
            while (handler := self._by_type.get(way[-1])) is not None and handler.dead_letter is not None:
                if handler.dead_letter in way:
                    way = way[way.index(handler.dead_letter) :]
                    if types_in_circles.isdisjoint(way) and len(way) > 1:
                        circle = " → ".join((*way, way[0]))
                        yield f"work handler {way[0]!r}: its dead letters go in a circle, {circle}"
                    types_in_circles |= set(way)
                    break
                way.append(handler.dead_letter)

    def leases(self) -> dict[str, timedelta]:
        """Types whose lease is not the worker's own."""
        return {h.type: h.lease for h in self._by_type.values() if h.lease is not None}

    def ranges(self, prefixes: Iterable[str]) -> list[tuple[str, str]]:
        """The types a worker asks for: those of its prefixes, or `default.` and the types handled here.

        A type handled here has a range of its own, so that its runs are found among many other types.
        """
        type_prefixes = tuple(prefixes)
        own_types = (type for type in self._by_type if not type_prefixes or type.startswith(type_prefixes))
        whole = map(prefix_range, type_prefixes or (DEFAULT_PREFIX,))
        return sorted({*whole, *map(type_range, own_types)})


class WorkerTypes:
    """The types that one worker takes.

    They are those of its prefixes, or `default.` and the types handled here, without those to `leave`
    to another worker; with `only`, exactly these.
    """

    def __init__(
        self,
        handlers: RunHandlers,
        prefixes: Sequence[str],
        *,
        only: Sequence[str] = (),
        leave: Collection[str] = (),
    ) -> None:
        if not all(prefixes):
            raise DeclarationError(
                "a prefix of types is not empty; without any, a worker takes its own types"
            )
        self.ranges = (
            sorted(map(type_range, only)) if only else ranges_without(handlers.ranges(prefixes), leave)
        )
        self._prefixes = () if only else tuple(prefixes)
        self._only = list(only)
        self._handled = sorted(handler.type for handler in handlers if handler.type not in leave)

    def names(self) -> list[str]:
        """What the worker takes, for its log."""
        return self._only or [f"{prefix}*" for prefix in self._prefixes] or [*self._handled, "default.*"]

    def prefixes_without_handler(self) -> list[str]:
        """Prefixes that no handler's type starts with."""
        return [one for one in self._prefixes if not any(type.startswith(one) for type in self._handled)]


def type_range(type: str) -> tuple[str, str]:
    """From and to of the one text that is this type."""
    return type, f"{type}\x01"


def ranges_without(ranges: Iterable[tuple[str, str]], types: Iterable[str]) -> list[tuple[str, str]]:
    """The ranges with these types cut out of them."""
    rest = list(ranges)
    for type in types:
        start, end = type_range(type)
        rest = [
            piece
            for low, high in rest
            for piece in (((low, min(high, start)), (max(low, end), high)))
            if piece[0] < piece[1]
        ]
    return rest


def prefix_range(prefix: str) -> tuple[str, str]:
    """From and to of the texts that start with `prefix`."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def is_type(type: Any) -> bool:
    """Whether it can name a type of runs."""
    return isinstance(type, str) and _TYPE.fullmatch(type) is not None


def check_type(type: Any) -> str:
    """The type as it is, or `ValidationFailed`."""
    if not is_type(type):
        message = "must be a dotted name such as email.receipt.v1"
        raise ValidationFailed(f"the type {message}", [{"field": "type", "message": message}])
    return str(type)


class HasScope(Protocol):
    """A run, as far as binding its handler needs it."""

    def scope(self) -> AbstractContextManager[object]:
        """A block that scope rules bind by the caller of the run."""


def _in_scope(fn: Callable[..., Any]) -> Callable[[HasScope], Any]:
    """The function, bound by the scope rules to the caller of its run."""
    if is_async(fn):

        async def call(run: HasScope) -> Any:
            with run.scope():
                return await fn(run)

        return call

    def call_plain(run: HasScope) -> Any:
        with run.scope():
            return fn(run)

    return call_plain


def _as_backoff(pause: Any) -> Callable[[int], timedelta]:
    """What gives the pause behind an attempt: a function already, or one that always gives the same."""
    if callable(pause):
        return pause  # type: ignore[no-any-return]  # its outcome is checked when it is called
    duration = as_duration(pause, "undo_backoff")
    return lambda attempt: duration


def _takes_one(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function of C that does not say
        return True
    return True


def _problems(type: Any, fn: Any, options: Mapping[str, Any]) -> Iterable[str]:
    if not is_type(type):
        yield "a type is a dotted name such as email.receipt.v1"
    if not callable(fn):
        yield f"{fn!r} is not callable"
    elif not _takes_one(fn):
        yield "the function is called with the run, its only argument"
    attempts = options.get("max_attempts")
    if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1):
        yield "max_attempts must be a whole number above zero"
    undo_attempts: Any = options.get("undo_attempts")
    if undo_attempts is not None and (
        not isinstance(undo_attempts, int) or isinstance(undo_attempts, bool) or undo_attempts < 1
    ):
        yield "undo_attempts must be a whole number above zero"
    durations = {name: options[name] for name in ("lease", "timeout") if options.get(name) is not None}
    if not callable(options.get("undo_backoff")) and options.get("undo_backoff") is not None:
        durations["undo_backoff"] = options["undo_backoff"]
    yield from duration_problems(**durations)
    yield from switch_problems(
        **{name: options.get(name, False) for name in ("public", "internal", "scoped")}
    )
    yield from key_option_problems(options.get("encrypted"))
    letter = options.get("dead_letter")
    if letter is not None and (not is_type(letter) or letter == type):
        yield "dead_letter is another type, a dotted name such as email.dead.v1"
    if options.get("public") and options.get("internal"):
        yield "it is public or internal, not both"
    urgent: Any = options.get("max_priority") or 0
    if not isinstance(urgent, int) or isinstance(urgent, bool) or not 0 <= urgent <= PRIORITIES:
        yield f"max_priority must be a whole number from 0 to {PRIORITIES}"
    elif urgent and not options.get("public"):
        yield "max_priority is what clients may ask for, so it is for public types"
    backoff = options.get("backoff")
    if backoff is not None and not callable(backoff):
        yield "backoff is called with the number of failures and gives a timedelta"


# Who may do what with runs over REST.

# The failures whose text the handler wrote for the caller who waits for the run. The text of any other
# exception may quote a driver, a path or another caller's data.
CODES_WITH_TEXT = ("fatal", "retry")


@dataclass(frozen=True, slots=True)
class RunAccess:
    """What an application says about its runs; their routes are in `maniflex.background_api.runs`."""

    admin_role: str = "admin"
    routes: bool = True
    # Types, and prefixes that end with a dot, beside those of public handlers; None: clients submit nothing.
    submit: tuple[str, ...] | None = ()

    def problems(self, handlers: RunHandlers) -> list[str]:
        """The mistakes in the arguments of `work.enable`."""
        problems = [*role_problems(self.admin_role), *switch_problems(routes=self.routes)]
        problems += [
            f"public_submit {one!r}: {why}" for one in self.submit or () if (why := _flaw(one, handlers))
        ]
        return [f"work.enable: {problem}" for problem in problems]

    def is_public(self, type: str, handlers: RunHandlers) -> bool:
        """Whether clients may submit runs of this type, and change their own."""
        handler = handlers.get(type)
        if self.submit is None or type in handlers.hidden_types():
            return False
        if handler is not None and handler.public:
            return True
        return any(type == one or (one.endswith(".") and type.startswith(one)) for one in self.submit)

    def public_types(self, handlers: RunHandlers) -> tuple[str, ...]:
        """The types, and prefixes of types, that clients may submit."""
        if self.submit is None:
            return ()
        return tuple(dict.fromkeys([*(h.type for h in handlers if h.public), *self.submit]))


def public_types(public_submit: Any) -> tuple[str, ...] | None:
    """The types of `enable(public_submit=...)`, None for False; else `DeclarationError`."""
    if public_submit is False:
        return None
    types = (public_submit,) if isinstance(public_submit, str) else public_submit
    if not isinstance(types, Sequence) or not all(isinstance(one, str) for one in types):
        raise DeclarationError(
            "public_submit lists types and prefixes, or is False; `handler(type, public=True)` opens a type"
        )
    return tuple(types)


def _flaw(opened: str, handlers: RunHandlers) -> str | None:
    """Why clients cannot submit what `public_submit` opens, if they cannot."""
    if not is_type(opened):
        return "it is a type such as email.receipt.v1, or a prefix that ends with a dot such as 'email.'"
    if opened in handlers.hidden_types():
        return "it is internal or has dead letters sent to it, so clients do not submit it"
    if "." not in opened and handlers.get(opened) is None:
        # A word is hardly ever a type: what is handled elsewhere has a dotted name.
        return f"there is no handler of this type here; the types that begin with it are '{opened}.'"
    return None


def excesses(
    handlers: RunHandlers, type: str, *, priority: int, max_attempts: int | None, timeout: float | None
) -> Iterator[tuple[str, str]]:
    """What a client asks for beyond what the handler of the type allows: the field and the reason.

    A type that is handled elsewhere allows what a handler allows that says nothing.
    """
    handler = handlers.get(type)
    most = handler.max_attempts if handler is not None else MAX_ATTEMPTS
    urgent = handler.max_priority if handler is not None else 0
    if abs(priority) > urgent:
        bounds = f"from -{urgent} to {urgent}" if urgent else "0"
        yield "priority", f"runs of this type have a priority of {bounds}"
    if max_attempts is not None and max_attempts > most:
        yield "max_attempts", f"runs of this type have at most {most} attempts"
    if timeout is None:
        return
    if handler is None:
        yield "timeout", "how long an attempt of this type takes is not the caller's to say"
    elif handler.timeout is not None and timeout > handler.timeout.total_seconds():
        yield "timeout", f"an attempt of this type takes at most {handler.timeout.total_seconds():g} seconds"
