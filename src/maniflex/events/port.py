"""A bus: what carries events to handlers, in this process or by a broker.

`publish` returns when the bus has taken responsibility for the event. A subscription is named by its group
and its patterns: its replicas share the work, every other group gets every event too. A handler that raises
is called again, `max_retry` times; then the event goes to `dead_letter`, or is given up with an ERROR.
`BusConformance` in `maniflex.testing.conformance` proves all of it of a bus, of yours too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from maniflex.errors import DeclarationError
from maniflex.events.event import Event
from maniflex.events.patterns import matcher, read_patterns, type_problem

EventHandler = Callable[[Event], Any]  # plain or async
Pause = Callable[[int], timedelta | float]  # before the attempt after the n-th; seconds or a timedelta
Start = Literal["now", "beginning"]
STARTS = ("now", "beginning")


@runtime_checkable
class Handle(Protocol):
    """A subscription that is at work."""

    async def cancel(self) -> None:
        """Take nothing more, and wait for the handlers that run."""


class Bus(Protocol):
    """Carries events."""

    ordered: bool  # whether it keeps the order of a key across several consumers of a group

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Wait for what is under way, and say what had to be left."""

    async def publish(self, event: Event) -> None:
        """Return when the bus has taken responsibility; raise where it has not."""

    async def publish_many(self, events: Sequence[Event]) -> None:
        """The same for several, in this order."""

    async def subscribe(
        self,
        *patterns: str,
        handler: EventHandler,
        group: str = "default",
        concurrency: int = 1,
        max_retry: int = 3,
        backoff: Pause | None = None,
        dead_letter: str | None = None,
        start: Start = "now",
    ) -> Handle:
        """Hand the events of these patterns to the handler, those from now on or all that are kept."""

    async def forget(self, group: str, *patterns: str) -> None:
        """Remove what is kept for such a subscription."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """What was asked for by one call of `subscribe`, once it is checked."""

    patterns: tuple[str, ...]
    handler: EventHandler
    group: str
    concurrency: int
    max_retry: int
    pause: Callable[[int], timedelta]
    dead_letter: str | None
    start: Start
    matches: Callable[[str], bool]  # a type

    @property
    def id(self) -> str:
        """The group and a digest of the patterns: another set of patterns is another subscription."""
        return subscription_id(self.group, self.patterns)


def subscription_id(group: str, patterns: Sequence[str]) -> str:
    """How a broker calls the subscription of a group to these patterns.

    >>> subscription_id("billing", ["order.*"])
    'billing-5e343b8a'
    """
    digest = hashlib.sha256("\n".join(sorted(set(patterns))).encode()).hexdigest()
    return f"{group}-{digest[:8]}"


def seconds_each(failures: int) -> timedelta:
    """The pause without `backoff`: n seconds behind the n-th attempt."""
    return timedelta(seconds=failures)


def read_subscription(
    patterns: Sequence[str],
    *,
    handler: Any,
    group: str = "default",
    concurrency: int = 1,
    max_retry: int = 3,
    backoff: Pause | None = None,
    dead_letter: str | None = None,
    start: Start = "now",
) -> SubscriptionPlan:
    """The checked arguments of `subscribe`; `DeclarationError` names all that are wrong."""
    texts, problems = read_patterns(patterns)
    if not patterns:
        problems.append("a subscription has patterns such as 'order.*', or '*' for every event")
    problems += option_problems(group, concurrency, max_retry, backoff, dead_letter, start)
    if not callable(handler):
        problems.append(f"handler={handler!r} is no function of an event")
    if problems:
        raise DeclarationError(*(f"subscribe: {problem}" for problem in problems))
    return SubscriptionPlan(
        tuple(texts),
        handler,
        group,
        concurrency,
        max_retry,
        pause_of(backoff),
        dead_letter,
        start,
        matcher(texts),
    )


def pause_of(backoff: Pause | None) -> Callable[[int], timedelta]:
    """The pause behind the n-th attempt, whatever `backoff` gives: a timedelta or seconds."""
    if backoff is None:
        return seconds_each

    def pause(failures: int) -> timedelta:
        value = backoff(failures)
        return value if isinstance(value, timedelta) else timedelta(seconds=value)

    return pause


def option_problems(
    group: Any, concurrency: Any, max_retry: Any, backoff: Any, dead_letter: Any, start: Any
) -> list[str]:
    """What is wrong with the options that groups of the feed and subscriptions of a bus share."""
    problems = []
    if (problem := group_problem(group)) is not None:
        problems.append(f"group={group!r} {problem}")
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        problems.append(f"concurrency={concurrency!r} is no whole number from 1 on")
    if not isinstance(max_retry, int) or isinstance(max_retry, bool) or max_retry < 0:
        problems.append(f"max_retry={max_retry!r} is no whole number from 0 on")
    if backoff is not None and not callable(backoff):
        problems.append(f"backoff={backoff!r} is no function of the number of failures")
    if dead_letter is not None and (trouble := type_problem(dead_letter)) is not None:
        problems.append(f"dead_letter={dead_letter!r} {trouble}")
    if start not in STARTS:
        problems.append(f"start={start!r} is neither 'now' nor 'beginning'")
    return problems


_GROUP_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
LONGEST_GROUP = 64


def group_problem(group: Any) -> str | None:
    """What is wrong with the name of a group, as the end of a sentence about it."""
    if isinstance(group, str) and 0 < len(group) <= LONGEST_GROUP and _GROUP_LETTERS.issuperset(group):
        return None
    return f"is no name of a group: 1 to {LONGEST_GROUP} letters, digits, _ and -"


Disconnected = Callable[[str, BaseException], Awaitable[None] | None]  # on_disconnected(group, error)
