"""The numbers of durable work at one glance, and whether all is well, in a sentence.

`maniflex top` and the panel show the same `Overview`. Rows are counted up to `MOST`, so an overview costs the
same however many runs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from maniflex.background.processes.model import ProcessState, WorkProcess
from maniflex.background.processes.store import ProcessStore, Sums
from maniflex.background.runs.store import RunStore
from maniflex.background.schedules.store import ScheduleStore
from maniflex.background.spans import span

MOST = 10_000
RATE_OVER = timedelta(minutes=5)
FAILED_WITHIN = timedelta(hours=24)
LATE_RUN = timedelta(minutes=1)  # a run that has been due for longer is late
LATE_SCHEDULE = timedelta(minutes=1)
LATE_MESSAGE = timedelta(minutes=5)
BAD_SHARE = 0.5  # of attempts that failed


class Light(StrEnum):
    """How things stand."""

    GREEN = "green"
    YELLOW = "yellow"  # somebody should look
    RED = "red"  # work is due that nobody does


@dataclass(frozen=True, slots=True)
class TypeNumbers:
    """The runs of one type."""

    type: str
    due: int
    running: int
    oldest_due: datetime | None
    per_minute: float  # that were finished, over the last minutes
    failure_share: float  # of attempts that ended, those that failed
    is_taken: bool  # whether a living process takes them


@dataclass(frozen=True, slots=True)
class Overview:
    """Durable work at one moment; a number above `MOST` stands for any that is larger."""

    now: datetime
    due: int
    running: int
    retrying: int
    failed: int  # within the last day
    oldest_due: datetime | None
    messages_waiting: int
    messages_dead: int
    oldest_message: datetime | None
    schedules_late: int
    latest_schedule: datetime | None  # since when the first of them is late
    processes: Sequence[WorkProcess]
    types: Sequence[TypeNumbers]
    light: Light = Light.GREEN
    sentence: str = ""

    @property
    def alive(self) -> Sequence[WorkProcess]:
        """The processes that are there."""
        return [one for one in self.processes if one.state(self.now) is ProcessState.ALIVE]


def count_text(number: int) -> str:
    """A number as an overview shows it: `10,000+` for every larger one."""
    return f"{MOST:,}+" if number > MOST else f"{number:,}"


def count_of(number: int, noun: str) -> str:
    """A number of things, with the noun it needs."""
    return f"{count_text(number)} {noun}" + ("" if number == 1 else "s")


async def read_overview(
    store: ProcessStore,
    processes: Sequence[WorkProcess],
    now: datetime,
    *,
    runs: RunStore | None,
    schedules: ScheduleStore | None,
    has_outbox: bool,
) -> Overview:
    """The numbers as the database has them, in at most six bounded statements."""
    most = MOST + 1
    depth = [] if runs is None else await runs.depth(now, most)
    running = {} if runs is None else await store.running(most)
    retrying_runs, failed_runs = (0, 0) if runs is None else await store.failing(now - FAILED_WITHIN, most)
    rates = {} if runs is None else await store.rates(now - RATE_OVER)
    waiting, dead, oldest_message = (0, 0, None) if not has_outbox else await store.messages(most)
    late, since = (0, None) if schedules is None else await schedules.overdue(now - LATE_SCHEDULE)
    living = [one for one in processes if one.state(now) is ProcessState.ALIVE]
    types = _types(depth, running, rates, living)
    overview = Overview(
        now=now,
        due=min(sum(one.due for one in types), most),
        running=sum(running.values()),
        retrying=retrying_runs,
        failed=failed_runs,
        oldest_due=min((oldest for _, _, oldest in depth), default=None),
        messages_waiting=waiting,
        messages_dead=dead,
        oldest_message=oldest_message,
        schedules_late=late,
        latest_schedule=since,
        processes=processes,
        types=types,
    )
    light, sentence = judge(overview)
    return replace(overview, light=light, sentence=sentence)


def _types(
    depth: Sequence[tuple[str, int, datetime]],
    running: Mapping[str, int],
    rates: Mapping[tuple[str, str], Sums],
    living: Sequence[WorkProcess],
) -> list[TypeNumbers]:
    due = {type: (number, oldest) for type, number, oldest in depth}
    sums_by_type = {type: sums for (kind, type), sums in rates.items() if kind == "run"}
    minutes = RATE_OVER.total_seconds() / 60
    numbers = []
    for type in sorted({*due, *running, *sums_by_type}):
        sums = sums_by_type.get(type, Sums())
        attempts = sums.succeeded + sums.failed + sums.retried
        number, oldest = due.get(type, (0, None))
        numbers.append(
            TypeNumbers(
                type,
                due=number,
                running=running.get(type, 0),
                oldest_due=oldest,
                per_minute=(sums.succeeded + sums.failed) / minutes,
                failure_share=(sums.failed + sums.retried) / attempts if attempts else 0.0,
                is_taken=any(one.takes(type) for one in living),
            )
        )
    return numbers


def judge(overview: Overview) -> tuple[Light, str]:
    """Whether all is well, and the first reason why not; pure, so every branch is a one-line test."""
    now = overview.now
    for one in overview.types:
        if one.due and not one.is_taken:
            why = describe_no_taker(overview.processes, one.type, now)
            return Light.RED, f"{count_of(one.due, 'run')} of {one.type} due, and {why}"
    if overview.oldest_due is not None and now - overview.oldest_due > LATE_RUN:
        age = span(now - overview.oldest_due)
        return Light.YELLOW, f"the oldest of {count_of(overview.due, 'due run')} has waited for {age}"
    if overview.schedules_late and overview.latest_schedule is not None:
        age = span(now - overview.latest_schedule)
        fires = any(one.schedules for one in overview.alive)
        why = "" if fires else ", and no living process fires schedules"
        light = Light.YELLOW if fires else Light.RED
        return light, f"{count_of(overview.schedules_late, 'schedule')} late, the first for {age}{why}"
    if overview.oldest_message is not None and now - overview.oldest_message > LATE_MESSAGE:
        age = span(now - overview.oldest_message)
        return (
            Light.YELLOW,
            f"the oldest of {count_of(overview.messages_waiting, 'message')} has waited for {age}",
        )
    for one in overview.types:
        if one.failure_share > BAD_SHARE:
            return Light.YELLOW, f"{one.failure_share:.0%} of the attempts at {one.type} failed lately"
    if overview.messages_dead:
        return Light.YELLOW, f"{count_of(overview.messages_dead, 'dead message')}"
    return Light.GREEN, "all work is on time"


def describe_no_taker(processes: Sequence[WorkProcess], type: str, now: datetime) -> str:
    """That no living process takes a type, and when the last one that did was seen."""
    last = max((one.seen_at for one in processes if one.takes(type)), default=None)
    suffix = "" if last is None else f" (the last one was seen {span(now - last)} ago)"
    return f"no living process takes {type}{suffix}"
