"""Why a run is not running, or a message not delivered, in one sentence.

`describe_wait` is pure; `Processes.why` reads the facts. `maniflex runs show` and the panel say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.processes.model import ProcessState, WorkProcess
from maniflex.background.processes.overview import count_of, describe_no_taker
from maniflex.background.runs.engine import CHILD
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.outcomes import FOREVER
from maniflex.background.spans import span

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
    if not any(message.kind in one.kinds or "*" in one.kinds for one in living):
        return f"no living process has a handler for {message.kind}"
    return "it is next"


def when(moment: datetime, now: datetime) -> str:
    """A moment in the future: how long until then, or its date when that is far."""
    return f"in {span(moment - now)}" if moment - now < SOON else f"at {moment:%Y-%m-%d %H:%M:%S} UTC"
