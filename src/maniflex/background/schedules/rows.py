"""Schedules and their firings as a scheduler reads and writes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.background.json_text import decode_stored, instant
from maniflex.background.schedules.plan import Firing
from maniflex.db.port import Row


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule that is due, as far as firing needs to know it."""

    id: str
    name: str
    cron: str
    timezone: str
    kind: str
    target: str
    payload: Any  # `Unreadable` where the stored text is no JSON
    policy: str
    attempts: int | None
    allow_private: bool
    next_run_at: datetime
    tenant_id: str | None = None
    actor_id: str | None = None

    @classmethod
    def of(cls, row: Row) -> Due:
        """The schedule of a row that the statements `claim` and `claim_one` return."""
        id, name, cron, timezone, kind, target, payload, policy, attempts, allow_private, due, *owner = row
        value, private = decode_stored(payload), bool(allow_private)
        what = (kind, target, value, policy, attempts, private)
        return cls(id, name, cron, timezone, *what, instant(due), *owner)


@dataclass(frozen=True, slots=True)
class Planned:
    """When an active schedule is due next."""

    id: str
    name: str
    cron: str
    timezone: str
    next_run_at: datetime


@dataclass(frozen=True, slots=True)
class Fired:
    """A firing of a schedule that was not there before."""

    id: str
    schedule: Due
    firing: Firing


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Where a schedule goes from here; without a next time it is inactive, for the reason given."""

    id: str
    next_run_at: datetime | None
    last_run_at: datetime | None = None
    error: str | None = None
