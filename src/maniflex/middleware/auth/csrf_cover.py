"""Which routes that change something are covered by `auth.csrf`: a cookie alone must not be enough there."""

from __future__ import annotations

from collections.abc import Iterator

from maniflex.pipeline.entry import Entry, Seat
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Registration

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_WRITES = (Operation.CREATE, Operation.UPDATE, Operation.DELETE)


def is_csrf(fn: Middleware) -> bool:
    """Whether it is the entry that refuses forged requests."""
    return isinstance(fn, Entry) and fn.name == "auth.csrf"


def uncovered_routes(seat: Seat) -> list[str]:
    """The unsafe routes that an entry stands on and no `auth.csrf` does."""
    covers = [r for r in seat.registrations if is_csrf(r.fn)]
    if seat.is_action:
        [action] = seat.actions
        is_safe = action.method in SAFE_METHODS or bool(covers)
        return [] if is_safe else [f"{action.method} {action.path}"]
    return [*_of_models(seat, covers), *_of_actions(seat, covers)]


def _of_models(seat: Seat, covers: list[Registration]) -> Iterator[str]:
    own = seat.registration
    for meta in seat.registered.values():
        for operation in () if meta.options.headless or meta.options.query else _WRITES:
            is_here = own.matches(meta, operation, item=True)
            if is_here and not any(r.matches(meta, operation, item=True) for r in covers):
                yield f"{operation} of {meta.name}"


def _of_actions(seat: Seat, covers: list[Registration]) -> Iterator[str]:
    if not seat.registration.matches(None, Operation.ACTION, item=False):
        return
    if any(r.matches(None, Operation.ACTION, item=False) for r in covers):
        return
    for action in seat.actions:
        is_covered = any(is_csrf(fn) or _is_exempt(fn) for fn in action.middleware)
        if action.method not in SAFE_METHODS and not is_covered:
            yield f"{action.method} {action.path}"


def _is_exempt(fn: Middleware) -> bool:
    return getattr(fn, "needs_no_csrf", False) is True
