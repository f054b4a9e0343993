"""The numbers of durable work at one glance, and whether all is well, in a sentence.

`maniflex top` and the panel show the same `Overview`. Rows are counted up to `MOST`, so an overview costs the
same however many runs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.parameters import span
from maniflex.background.processes.store import ProcessState, ProcessStore, Sums, WorkProcess
from maniflex.background.runs.engine import CHILD
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.outcomes import FOREVER
from maniflex.background.runs.store import RunStore
from maniflex.background.schedules.store import ScheduleStore

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


# Why a run is not running, or a message not delivered, in one sentence.
#
# `describe_wait` is pure; `Processes.why` reads the facts. `maniflex runs show` and the panel say the
# same.


SOON = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """What surrounds a run that waits."""

    now: datetime
    processes: Sequence[WorkProcess] = ()
    group_holder: str | None = None  # the run that is worked on in its group
    runs_ahead: int = 0
    names_others: bool = True  # False for a reader who may not know of other runs and of workers


def needs_facts(run: WorkflowRun, now: datetime) -> bool:
    """Whether the run is due, so that others decide when it runs."""
    return run.status == Status.PENDING and run.deleted_at is None and run.run_at <= now


def describe_wait(run: WorkflowRun, facts: WaitFacts) -> str:
    """Why it is not running; or what it is doing, or came to, when it does not wait."""
    now = facts.now
    if run.deleted_at is not None:
        return f"deleted {span(now - run.deleted_at)} ago" + (
            f": {run.delete_reason}" if run.delete_reason else ""
        )
    if run.status == Status.LEASED:
        return _describe_leased(run, facts)
    if run.status != Status.PENDING:
        still = ", and its handler has yet to stop" if run.lease_until is not None else ""
        return f"{run.status} {span(now - run.updated_at)} ago{still}"
    if run.run_at > now:
        return _describe_future(run, now)
    if facts.group_holder is not None and facts.group_holder != run.id:
        other = f"run {facts.group_holder}" if facts.names_others else "another run"
        return f"group {run.group_key} is busy with {other}"
    if not any(one.takes(run.type) and one.state(now) is ProcessState.ALIVE for one in facts.processes):
        return describe_no_taker(facts.processes, run.type, now)
    if facts.runs_ahead and not facts.names_others:
        return "other runs are before it"
    if facts.runs_ahead:
        return f"{count_of(facts.runs_ahead, 'run')} before it"
    return "it is next"


def _describe_leased(run: WorkflowRun, facts: WaitFacts) -> str:
    now, worker = facts.now, run.leased_by if facts.names_others else "a worker"
    if run.lease_until is not None and run.lease_until < now:
        return f"{worker} did not renew its lease, which ended {span(now - run.lease_until)} ago"
    return f"{worker} works on it, attempt {run.attempt} of {run.max_attempts}"


def _describe_future(run: WorkflowRun, now: datetime) -> str:
    if run.waiting_for is not None:
        for_what = (
            f"run {run.waiting_for.removeprefix(CHILD)}"
            if run.waiting_for.startswith(CHILD)
            else f"signal {run.waiting_for}"
        )
        until = "" if run.run_at >= FOREVER else f" until {run.run_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"waits for {for_what}{until}"
    if run.attempt and run.last_error is not None:
        return f"retry {run.attempt + 1} of {run.max_attempts} {when(run.run_at, now)}"
    return f"due {when(run.run_at, now)}"


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What surrounds a message that waits."""

    now: datetime
    processes: Sequence[WorkProcess] = ()
    ahead: str | None = None  # the first message of its key


def describe_message_wait(message: OutboxMessage, facts: MessageFacts) -> str:
    """Why a message is not delivered yet; or what became of it."""
    now = facts.now
    if message.status != MessageStatus.PENDING:
        return f"{message.status} {span(now - message.updated_at)} ago"
    if message.lease_until is not None and message.lease_until >= now:
        return f"{message.leased_by} delivers it"
    if facts.ahead is not None and facts.ahead != message.id:
        return f"message {facts.ahead} of key {message.key} is before it"
    if message.retry_at > now:
        retry = f"attempt {message.attempts + 1} " if message.attempts else "due "
        return retry + when(message.retry_at, now)
    living = [one for one in facts.processes if one.state(now) is ProcessState.ALIVE]
    if not any(one.takes_message(message.kind) for one in living):
        return f"no living process has a handler for {message.kind}"
    return "it is next"


def when(moment: datetime, now: datetime) -> str:
    """A moment in the future: how long until then, or its date when that is far."""
    return f"in {span(moment - now)}" if moment - now < SOON else f"at {moment:%Y-%m-%d %H:%M:%S} UTC"
