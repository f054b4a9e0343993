"""Which routes a browser could be made to use: a cookie alone must not be enough where something changes.

The start asks here about every route as it runs, with all that stands before it, so no kind of route is left
out: records, actions, files, search, durable work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from maniflex.pipeline.entry import Entry
from maniflex.pipeline.registration import Middleware

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@dataclass(frozen=True, slots=True)
class RouteMiddleware:
    """A route, and the middleware that a request to it passes, in order."""

    method: str
    label: str  # as messages name it: "create of Post", "POST /pay"
    middleware: Sequence[Middleware]

    @property
    def entries(self) -> list[Entry]:
        """The entries that act on it: one may silence another."""
        entries = [fn for fn in self.middleware if isinstance(fn, Entry)]
        return [one for one in entries if not any(other.silences(one) for other in entries)]


def is_csrf(fn: Middleware) -> bool:
    """Whether it is the entry that refuses forged requests."""
    return isinstance(fn, Entry) and fn.name == "auth.csrf"


def forgery_problems(routes: Iterable[RouteMiddleware]) -> Iterator[str]:
    """The mistakes of cookies and of `auth.csrf`, one sentence for each entry with its routes."""
    names_by_route: dict[tuple[str, str], list[str]] = {}
    too_early: dict[str, list[str]] = {}
    for route in routes:
        entries = route.entries
        places = [place for place, entry in enumerate(entries) if is_csrf(entry)]
        for entry in entries if not places and route.method not in SAFE_METHODS else ():
            if cookie := getattr(entry, "forgeable_by", ""):
                names_by_route.setdefault((entry.name, cookie), []).append(route.label)
        for place in places:
            # One of a kind that stands before it too has nothing left to read: the first one decides.
            earlier = {entry.name for entry in entries[:place] if entry.reads_credential}
            later = [e.name for e in entries[place + 1 :] if e.reads_credential and e.name not in earlier]
            if later and getattr(entries[place], "is_bound", False):
                too_early.setdefault(later[-1], []).append(route.label)
    for (name, cookie), labels in names_by_route.items():
        yield (
            f"{name}: {cookie} is sent by browsers unasked, so auth.csrf must cover {_list(labels)};"
            " csrf=False of the authenticator says that this is meant"
        )
    for name, labels in too_early.items():
        yield (
            "auth.csrf: with a secret its tokens are bound to the session; register it after the"
            f" authenticators: {name} comes later on {_list(labels)}"
        )


def _list(labels: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(labels))
