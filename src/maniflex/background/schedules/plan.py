"""The plan of a schedule that is due: which of its due times fire, and when it is due next.

Pure arithmetic over `Times`, so that every policy is a one-line test.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from maniflex.background.schedules.cron import Times
from maniflex.background.schedules.model import FiringOutcome


@dataclass(frozen=True, slots=True)
class Firing:
    """One due time; when it is skipped, so is every other one before `skipped_until`."""

    due_at: datetime
    skipped_until: datetime | None = None
    outcome: FiringOutcome = FiringOutcome.FIRED


@dataclass(frozen=True, slots=True)
class Plan:
    """The firings to record, and the next due time; there is none when the calendar runs out."""

    firings: tuple[Firing, ...]
    next_run_at: datetime | None


def plan(
    cron: Times, policy: str, due: datetime, now: datetime, *, grace: timedelta, most: int = 1000
) -> Plan:
    """The plan of a schedule; `due` is its first due time that was not fired, not later than `now`."""
    if policy == "all":
        return _every(cron, due, now, most)
    latest, following = cron.around(due, now)
    if policy == "skip" and now - latest > grace:
        return Plan((Firing(due, following, FiringOutcome.SKIPPED),), following)
    skips = (Firing(due, latest, FiringOutcome.SKIPPED),) if due < latest else ()
    return Plan((*skips, Firing(latest)), following)


def _every(cron: Times, due: datetime, now: datetime, most: int) -> Plan:
    firings: list[Firing] = []
    following: datetime | None = due
    while following is not None and following <= now and len(firings) < most:
        firings.append(Firing(following))
        following = cron.after(following)
    return Plan(tuple(firings), following)
