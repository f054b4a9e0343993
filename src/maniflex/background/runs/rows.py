"""Runs on their way between the database and those who submit, claim and settle them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, TypedDict

from maniflex._json import is_text
from maniflex._names import did_you_mean
from maniflex.background.declaring import as_duration
from maniflex.background.leases import Held
from maniflex.background.runs.handlers import PRIORITIES
from maniflex.background.runs.model import Status
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.model.base import Model

WORTHWHILE = 10  # runs; who asks for fewer can afford to look
FOLLOWED_AT_MOST = 20
FOLLOWED_FOR = timedelta(milliseconds=100)

# What is a run's own among those submitted together: its id, payload and idempotency key.
NewRun: TypeAlias = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class RunDraft:
    """What runs submitted together have in common."""

    type: str
    run_at: datetime
    max_attempts: int
    priority: int = 0
    timeout: float | None = None
    group_key: str | None = None
    actor_id: str | None = None
    tenant_id: str | None = None
    trace_id: str | None = None
    traceparent: str | None = None
    parent_id: str | None = None
    about: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Which runs a worker claims, and for how long: up to `limit`, of a type in one of the ranges."""

    ranges: Sequence[tuple[str, str]]
    limit: int
    owner: str
    now: datetime
    lease: timedelta
    leases: Mapping[str, timedelta]  # of types that have their own
    token: str


@dataclass(slots=True)
class ClaimedRun:
    """A run that is ours until its lease ends; up to `held`, its fields are the columns of a claim."""

    id: str
    type: str
    payload: str | None  # None where the stored value is no text
    attempt: int
    max_attempts: int
    timeout: float | None
    priority: int
    run_at: Any
    group_key: str | None
    actor_id: str | None
    tenant_id: str | None
    trace_id: str | None
    traceparent: str | None
    parent_id: str | None
    held: Held
    keyed: bool = False  # it has an idempotency key, by which others may find it and wait for it
    until: datetime | None = None  # what the claim was given; renewals come on top
    tried: tuple[datetime, ...] = ()  # when its outcome was sent, confirmed or not
    begun: float = 0.0  # by the monotonic clock
    busy: float = 0.0  # seconds its handler took
    key_id: str | None = None  # under which what it leaves is stored


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a run becomes when its handler is done with it, other than succeeded."""

    held: Held
    status: Status
    event: str
    data: str | None = None
    run_at: datetime | None = None
    unspent: int = 0  # 1: this attempt does not count
    error: str | None = None
    last_error: str | None = None
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """A run whose worker let its lease run out."""

    id: str
    type: str
    status: str


class Renewed(NamedTuple):
    """The ids that a renewal could not renew: `gone` to another worker, `locked` by a transaction."""

    gone: set[str]
    locked: set[str]


class RunState(NamedTuple):
    """What a worker asks about a run whose outcome was not taken."""

    status: str
    lease: str | None
    attempt: int
    updated_at: datetime


class ClaimPosition(NamedTuple):
    """The last run taken of a lane."""

    type: str
    priority: int
    run_at: Any
    id: str


class ClaimCursor:
    """Where a worker's last full claim ended in each lane, for its next claim to go on from.

    A claimed run leaves a dead entry at the front of its lane until the database sweeps it, and a claim that
    looks for the first live entry passes them all: under load, a claim would cost more with every run since.
    So while claims come back full the next begins behind the last run taken. Every so often one looks at
    everything: a run that became due ahead of that place, or in another lane, waits no longer than that.
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[str, int], ClaimPosition] = {}
        self._followed = 0
        self._since: datetime | None = None  # when everything was looked at

    def positions(self, limit: int, now: datetime) -> list[ClaimPosition]:
        """Where to go on; nothing when it is time to look at everything."""
        fresh = self._since is not None and self._since <= now < self._since + FOLLOWED_FOR
        if not fresh or self._followed >= FOLLOWED_AT_MOST or limit < WORTHWHILE:
            self._positions.clear()
        self._followed += 1
        return list(self._positions.values())

    def restart(self, now: datetime) -> None:
        """Forget the positions, because the next claim looks at all lanes."""
        self._positions.clear()
        self._followed, self._since = 0, now

    def advance(self, runs: Sequence[ClaimedRun], *, full: bool) -> None:
        """Note the last run taken of each lane; without `full` the lanes are empty, so forget them."""
        if not full or any(run.group_key is not None for run in runs):
            self._positions.clear()
            return
        for run in runs:
            self._positions[run.type, run.priority] = ClaimPosition(
                run.type, run.priority, run.run_at, run.id
            )


# The options of a run: each as it is stored, or `ValidationFailed` naming it.


class Options(TypedDict, total=False):
    """The options of `submit`."""

    priority: int  # -100 to 100, higher first
    run_at: datetime | None
    delay: timedelta | float | None
    max_attempts: int | None
    group_key: str | None
    timeout: timedelta | float | None
    actor_id: str | None
    tenant_id: str | None
    trace_id: str | None
    parent_id: str | None
    about: Model | str | None  # the record it is about
    subjects: Sequence[str]  # the persons it is about, whose erasure blanks it
    encrypted: bool | str | None  # True, or the id of the key that it is stored under; None: as its handler


def check_names(options: Iterable[str]) -> None:
    """Raise `TypeError` for the first name that is no option of a run."""
    for name in options:
        if name not in Options.__annotations__:
            near = did_you_mean(name, Options.__annotations__)
            raise TypeError(f"a run has no option {name!r}{near}")


def when(now: datetime, run_at: Any, delay: timedelta | float | None) -> datetime:
    """When a run is due that is submitted now."""
    if run_at is not None and delay is not None:
        raise DeclarationError("a run has a run_at or a delay, not both")
    if delay is not None:
        try:
            return now + as_duration(delay, "delay")
        except (DeclarationError, OverflowError):
            raise option_error("delay", "must be a timedelta or seconds, and not centuries") from None
    if run_at is not None and not (isinstance(run_at, datetime) and run_at.tzinfo is not None):
        raise option_error("run_at", "must be a datetime with a time zone")
    return now if run_at is None else run_at


def key(value: Any) -> str | None:
    """An idempotency key."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= 500):
        raise option_error("idempotency_key", "must be a text of 1 to 500 characters")
    return text("idempotency_key", value)


def signal_name(value: Any) -> str:
    """The name of a signal: any text but those that stand for a run that is waited for."""
    if not is_text(value):
        raise option_error("name", "must be a text without NUL and lone surrogates")
    if not value:
        raise option_error("name", "must not be empty")
    if value.startswith("run:"):
        raise option_error("name", "must not begin with run:")
    return str(value)


def text(name: str, value: Any) -> str | None:
    """A text that both databases take as it is."""
    if value is not None and not is_text(value):
        raise option_error(name, "must be a text without NUL and lone surrogates")
    return None if value is None else str(value)


def seconds(timeout: timedelta | float | None) -> float | None:
    """How long an attempt may take."""
    if timeout is None:
        return None
    try:
        limit = as_duration(timeout, "timeout").total_seconds()
    except DeclarationError:
        limit = 0
    if limit <= 0:
        raise option_error("timeout", "must be a timedelta or seconds, above zero")
    return limit


def check_int(name: str, value: Any, least: int) -> None:
    """A whole number that both databases take."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise option_error(name, f"must be a whole number of at least {least}")


def check_priority(value: Any) -> None:
    """One of the few there are."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > PRIORITIES:
        raise option_error("priority", f"must be a whole number from -{PRIORITIES} to {PRIORITIES}")


def option_error(name: str, message: str) -> ValidationFailed:
    """The error of an option that cannot be used."""
    return ValidationFailed(f"{name} {message}", [{"field": name, "message": message}])
