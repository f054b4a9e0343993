"""Runs on their way between the database and those who submit, claim and settle them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from maniflex.background.leases import Held


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
    parent_id: str | None = None


@dataclass(slots=True)
class ClaimedRun:
    """A run that is ours until its lease ends."""

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
    parent_id: str | None
    held: Held
    keyed: bool = False  # it has an idempotency key, by which others may find it and wait for it
    until: datetime | None = None  # what the claim was given; renewals come on top
    tried: tuple[datetime, ...] = ()  # when its outcome was sent, confirmed or not


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a run becomes when its handler is done with it, other than succeeded."""

    held: Held
    status: str
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
