"""`maniflex runs`, `outbox`, `schedules`, `processes`, `top`, `worker` and others: durable work.

The subcommands that change records are rows of `background/commands.py`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import click
from pydantic_core import to_jsonable_python

from maniflex._service import Service
from maniflex.app.server import Server
from maniflex.background.commands import FIRE, REDRIVE, RUN, SCHEDULE, Command, commands_of
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.parameters import span
from maniflex.background.partitions.layout import PartitionedTable, Period
from maniflex.background.partitions.mover import TABLES, partition_tables
from maniflex.background.processes.overview import Overview, count_text
from maniflex.background.processes.store import ProcessState, WorkProcess
from maniflex.background.runs.model import Status, WorkflowEvent, WorkflowRun
from maniflex.background.schedules.cron import Cron, describe
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.cli.output import (
    Progress,
    json_option,
    json_text,
    limit_option,
    plain_values,
    print_json,
    print_table,
    print_values,
    shorten,
    target_argument,
)
from maniflex.cli.process import load_sealed, on_database, run_once, run_services
from maniflex.db.short_locks import LockLimits
from maniflex.errors import InvalidSchedule, RequestError

RUN_TABLE = "workflow_run"
MESSAGE_TABLE = "outbox_event"
SCHEDULE_TABLES = ("schedules", "schedule_firing")
PROCESS_TABLES = ("work_process", "work_stat")
_AN_ID = "019aa2f0-6a2e-7d1c-b8a5-000000000000"


def _subcommand(group: click.Group, command: Command) -> Callable[[Callable[..., None]], click.Command]:
    """Makes the subcommand of a row, with its words."""
    return group.command(command.name, help=command.help, epilog=f"Example: {command.example}")


def _change_each(
    server: Server, ids: Sequence[str], call: Callable[[str], Awaitable[Any]], *tables: str
) -> list[Any]:
    """What came of each record, a text for one that was refused; that keeps the others from nothing."""

    async def all_of_them() -> list[Any]:
        answers: list[Any] = []
        for one in ids:
            try:
                answers.append(await call(one))
            except RequestError as error:
                answers.append(f"{one}: {error.message}")
        return answers

    return on_database(server, all_of_them, *tables)


# -- runs


RUN_COLUMNS = ("id", "type", "status", "attempt", "run_at", "last_error")


@click.group()
def runs() -> None:
    """Look at runs, cancel them and try them again."""


@runs.command("list", epilog="Example: maniflex runs list app:server --status failed --limit 10")
@target_argument
@click.option("--type", help="Of exactly this type.")
@click.option("--prefix", help="Whose type starts like this.")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="In this state.")
@click.option("--actor", help="Of this actor.")
@click.option("--tenant", help="Of this tenant.")
@limit_option()
@json_option
def list_runs(
    target: str,
    type: str | None,
    prefix: str | None,
    status: str | None,
    actor: str | None,
    tenant: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """The newest runs first."""
    server = load_sealed(target)
    filters: dict[str, Any] = {"type": type, "prefix": prefix, "status": status, "limit": limit}
    stored_runs = on_database(
        server, lambda: server.work.list(**filters, actor_id=actor, tenant_id=tenant), RUN_TABLE
    )
    if as_json:
        print_json([plain_values(run) for run in stored_runs])
    else:
        _print_runs(stored_runs)


@runs.command("show", epilog=f"Example: maniflex runs show app:server {_AN_ID}")
@target_argument
@click.argument("id")
@json_option
def show_run(target: str, id: str, as_json: bool) -> None:
    """One run, why it is not running, and what happened to it."""
    server = load_sealed(target)

    async def run_and_events() -> tuple[WorkflowRun, list[WorkflowEvent], str]:
        run = await server.work.get(id)
        return run, await server.work.events(id), await server.processes.why(run)

    run, events, why = on_database(server, run_and_events, RUN_TABLE, "work_process")
    values = plain_values(run)
    if as_json:
        print_json({**values, "why": why, "events": [plain_values(event) for event in events]})
        return
    trace = (values["error"] or {}).pop("trace", "")
    print_values({**values, "why": why})
    for event in events:
        data = "" if event.data is None else f"  {json_text(event.data)}"
        click.echo(f"  {event.created_at:%Y-%m-%d %H:%M:%S.%f}  {event.event_type}{data}")
    if trace:
        click.echo(trace.rstrip())


def _add_run_command(command: Command) -> None:
    @_subcommand(runs, command)
    @target_argument
    @click.argument("ids", nargs=-1, required=True)
    @json_option
    def change(target: str, ids: tuple[str, ...], as_json: bool) -> None:
        server = load_sealed(target)
        answers = _change_each(server, ids, partial(command.call, server.work), RUN_TABLE)
        changed_runs = [one for one in answers if isinstance(one, WorkflowRun)]
        refusals = [one for one in answers if isinstance(one, str)]
        if as_json:
            print_json([plain_values(run) for run in changed_runs])
        elif changed_runs:
            _print_runs(changed_runs)
        for why in refusals:
            click.echo(why, err=True)
        if refusals:
            sys.exit(1)


for command in commands_of(RUN):
    if command.help:
        _add_run_command(command)


def _print_runs(stored_runs: Sequence[WorkflowRun]) -> None:
    rows = [
        (
            run.id,
            shorten(run.type),
            run.status,
            f"{run.attempt}/{run.max_attempts}",
            run.run_at,
            shorten(run.last_error),
        )
        for run in stored_runs
    ]
    print_table(RUN_COLUMNS, rows)


# -- messages


MESSAGE_COLUMNS = ("id", "kind", "key", "status", "attempts", "created_at", "retry_at", "last_error")
REDRIVEN_AT_ONCE = 500


@click.group()
def outbox() -> None:
    """Look at messages, and deliver dead ones after all."""


@outbox.command("list", epilog="Example: maniflex outbox list app:server --status dead --kind order.placed")
@target_argument
@click.option("--status", type=click.Choice([one.value for one in MessageStatus]), help="In this state.")
@click.option("--kind", help="Of this kind.")
@click.option("--key", help="Of this key.")
@click.option("--about", help="About this record, such as order/7.")
@limit_option()
@json_option
def list_messages(
    target: str,
    status: str | None,
    kind: str | None,
    key: str | None,
    about: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """The newest messages first."""
    server = load_sealed(target)
    filters = {"status": status, "kind": kind, "key": key, "about": about}
    messages = on_database(server, lambda: _list_messages(server, filters, limit), MESSAGE_TABLE)
    if as_json:
        print_json([_plain_message(message) for message in messages])
        return
    rows = [
        (
            one.id,
            shorten(one.kind),
            shorten(one.key),
            one.status,
            one.attempts,
            one.created_at,
            one.retry_at if one.status is MessageStatus.PENDING else None,
            shorten(one.last_error),
        )
        for one in messages
    ]
    print_table(MESSAGE_COLUMNS, rows)


@outbox.command("show", epilog=f"Example: maniflex outbox show app:server {_AN_ID}")
@target_argument
@click.argument("id")
@json_option
def show_message(target: str, id: str, as_json: bool) -> None:
    """One message with its payload."""
    server = load_sealed(target)
    values = _plain_message(on_database(server, lambda: server.db(OutboxMessage).read(id), MESSAGE_TABLE))
    if as_json:
        print_json(values)
    else:
        print_values(values)


@_subcommand(outbox, REDRIVE)
@target_argument
@click.argument("ids", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All dead messages, or with --kind all of that kind.")
@click.option("--kind", help="With --all: of this kind.")
def redrive(target: str, ids: tuple[str, ...], every: bool, kind: str | None) -> None:
    if every == bool(ids):
        raise click.UsageError("name the messages, or say --all")
    if kind is not None and not every:
        raise click.UsageError("--kind goes with --all")
    server = load_sealed(target)
    if every:
        count = on_database(server, lambda: _redrive_all(server, kind), MESSAGE_TABLE)
        click.echo(f"{count} messages wait for delivery again")
        return
    refusals = on_database(server, lambda: _redrive(server, ids), MESSAGE_TABLE)
    for id in refusals:
        click.echo(f"{id}: there is no such dead message", err=True)
    click.echo(f"{len(ids) - len(refusals)} messages wait for delivery again")
    if refusals:
        sys.exit(1)


async def _list_messages(server: Server, filters: dict[str, str | None], limit: int) -> list[OutboxMessage]:
    conditions: list[Any] = [(name, "eq", value) for name, value in filters.items() if value is not None]
    return await server.db(OutboxMessage).list(conditions, sorts="seq:desc", limit=limit)


async def _redrive(server: Server, ids: Sequence[str]) -> list[str]:
    return [id for id in dict.fromkeys(ids) if not await REDRIVE.call(server.outbox, id)]


async def _redrive_all(server: Server, kind: str | None) -> int:
    """Put back those that are dead by now, in the order they were enqueued."""
    conditions: list[Any] = [("status", "eq", "dead"), *([("kind", "eq", kind)] if kind else [])]
    count, after = 0, 0
    with Progress("messages") as progress:
        while page := await server.db(OutboxMessage).list(
            [*conditions, ("seq", "gt", after)], sorts="seq", limit=REDRIVEN_AT_ONCE
        ):
            after = page[-1].seq
            for message in page:
                count += await REDRIVE.call(server.outbox, message.id)
                progress.to(count)
    return count


def _plain_message(message: OutboxMessage) -> dict[str, Any]:
    values = plain_values(message)
    values.pop("claimed_with", None)
    return values


# -- schedules


SCHEDULE_COLUMNS = ("name", "tenant", "status", "times", "target", "next_run_at", "last_run_at", "late")
NEXT_TIMES = 10
FIRINGS = 10
tenant_option = click.option("--tenant", help="The tenant of the schedule; without it, one that has none.")


@click.group()
def schedules() -> None:
    """Look at schedules, run them now, pause them and resume them."""


@schedules.command("list", epilog="Example: maniflex schedules list app:server --status active")
@target_argument
@click.option("--status", type=click.Choice(["active", "inactive"]), help="In this state.")
@click.option("--tenant", help="Of this tenant; without it, of all tenants and of none.")
@limit_option(1000)
@json_option
def list_schedules(target: str, status: str | None, tenant: str | None, limit: int, as_json: bool) -> None:
    """All schedules, by name."""
    server = load_sealed(target)

    async def read() -> tuple[list[Schedule], datetime]:
        schedules = await server.schedules.list(status=status, tenant_id=tenant, limit=limit)
        return schedules, server.schedules.now()

    records, now = on_database(server, read, *SCHEDULE_TABLES)
    if as_json:
        print_json([{**plain_values(one), "times": _times_in_words(one)} for one in records])
        return
    rows = [
        (
            one.name,
            one.tenant_id,
            one.status,
            shorten(_times_in_words(one)),
            shorten(f"{one.kind} {one.target}"),
            one.next_run_at,
            one.last_run_at,
            _lateness(one, now),
        )
        for one in records
    ]
    print_table(SCHEDULE_COLUMNS, rows)


@schedules.command("show", epilog="Example: maniflex schedules show app:server nightly")
@target_argument
@click.argument("name")
@tenant_option
@json_option
def show_schedule(target: str, name: str, tenant: str | None, as_json: bool) -> None:
    """One schedule by name or id, its next times and its last firings."""
    server = load_sealed(target)

    async def read() -> tuple[Schedule, list[ScheduleFiring], datetime]:
        schedule = await server.schedules.get(name, tenant_id=tenant)
        return schedule, await server.schedules.firings(schedule.id, FIRINGS), server.schedules.now()

    schedule, firings, now = on_database(server, read, *SCHEDULE_TABLES)
    times = [time.isoformat() for time in _next_times(schedule, now)]
    values = {**plain_values(schedule), "times": _times_in_words(schedule)}
    if as_json:
        print_json({**values, "next_times": times, "firings": [plain_values(one) for one in firings]})
        return
    print_values(values)
    for time in times:
        click.echo(f"  next   {time}")
    for firing in firings:
        by_hand = " by hand" if firing.manual else ""
        run = "" if firing.run_id is None else f"  run {firing.run_id}"
        click.echo(f"  {firing.outcome}{by_hand}  {firing.due_at.isoformat()}{run}")


@_subcommand(schedules, FIRE)
@target_argument
@click.argument("name")
@tenant_option
def fire(target: str, name: str, tenant: str | None) -> None:
    server = load_sealed(target)
    call = partial(FIRE.call, server.schedules, name, tenant_id=tenant)
    run = on_database(server, call, *SCHEDULE_TABLES)
    click.echo(f"{name}: run {run.id} is due")


def _add_schedule_command(command: Command) -> None:
    @_subcommand(schedules, command)
    @target_argument
    @click.argument("names", nargs=-1, required=True)
    @tenant_option
    def change(target: str, names: tuple[str, ...], tenant: str | None) -> None:
        server = load_sealed(target)
        call = partial(command.call, server.schedules, tenant_id=tenant)
        answers = _change_each(server, names, call, *SCHEDULE_TABLES)
        for answer in answers:
            if isinstance(answer, str):
                click.echo(answer, err=True)
            else:
                following = (
                    "" if answer.next_run_at is None else f", next at {answer.next_run_at.isoformat()}"
                )
                click.echo(f"{answer.name}: {answer.status}{following}")
        if any(isinstance(answer, str) for answer in answers):
            sys.exit(1)


for command in commands_of(SCHEDULE):
    if command.help and command is not FIRE:
        _add_schedule_command(command)


def _times_in_words(schedule: Schedule) -> str:
    return describe(schedule.cron, schedule.timezone)


def _lateness(schedule: Schedule, now: datetime) -> str:
    due = schedule.next_run_at
    return "" if schedule.status != "active" or due is None or due >= now else span(now - due)


def _next_times(schedule: Schedule, now: datetime) -> Iterator[datetime]:
    """The next times in the zone of the schedule; none while it rests."""
    if schedule.status != "active":
        return
    try:
        cron = Cron.parse(schedule.cron, schedule.timezone)
    except InvalidSchedule:  # its last_error says so
        return
    moment: Any = now
    for _ in range(NEXT_TIMES):
        moment = cron.after(moment)
        if moment is None:
            return
        yield moment.astimezone(ZoneInfo(schedule.timezone))


# -- processes


PROCESS_COLUMNS = ("host", "pid", "role", "state", "seen", "started_at", "running", "lag", "version", "takes")
TYPE_COLUMNS = ("type", "due", "running", "per minute", "failing", "oldest")
CLEAR = "\x1b[H\x1b[2J"
COLOURS = {"green": "green", "yellow": "yellow", "red": "red"}


@click.command(epilog="Example: maniflex processes app:server")
@target_argument
@json_option
def processes(target: str, as_json: bool) -> None:
    """The processes that were seen within a day, the latest first."""
    server = load_sealed(target)

    async def read() -> tuple[list[WorkProcess], datetime]:
        return await server.processes.list(), server.processes.now()

    rows, now = on_database(server, read, *PROCESS_TABLES)
    if as_json:
        print_json([{**plain_values(one), "state": one.state(now)} for one in rows])
    else:
        print_table(PROCESS_COLUMNS, [_process_row(one, now) for one in rows])


@click.command(epilog="Example: maniflex top app:server --interval 5")
@target_argument
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--once", is_flag=True, help="Look once and end, as it does where there is no terminal.")
@json_option
def top(target: str, interval: float, once: bool, as_json: bool) -> None:
    """How durable work stands, until it is interrupted."""
    server = load_sealed(target)
    goes_on = not once and not as_json and sys.stdout.isatty()

    async def watch() -> Overview:
        while True:
            overview = await server.processes.overview()
            if not goes_on:
                return overview
            click.echo(CLEAR, nl=False)
            _print_overview(overview)
            await asyncio.sleep(interval)

    overview = on_database(server, watch, *_tables(server))
    if as_json:
        print_json(_plain_overview(overview))
    else:
        _print_overview(overview)


def _tables(server: Server) -> list[str]:
    is_used_by_table = {
        "workflow_run": server.work.is_used,
        "outbox_event": server.outbox.is_used,
        "schedules": server.schedules.is_used,
    }
    return [*PROCESS_TABLES, *(table for table, is_used in is_used_by_table.items() if is_used)]


def _print_overview(overview: Overview) -> None:
    now = overview.now
    click.secho(f"{overview.light}: {overview.sentence}", fg=COLOURS[overview.light])
    oldest = "" if overview.oldest_due is None else f" (oldest {span(now - overview.oldest_due)})"
    click.echo(
        f"runs       {count_text(overview.due)} due{oldest}, {count_text(overview.running)} running,"
        f" {count_text(overview.retrying)} to be tried again, {count_text(overview.failed)} failed in 24 h"
    )
    click.echo(
        f"messages   {count_text(overview.messages_waiting)} waiting,"
        f" {count_text(overview.messages_dead)} dead"
    )
    click.echo(f"schedules  {overview.schedules_late} late")
    states = [one.state(now) for one in overview.processes]
    alive, late = states.count(ProcessState.ALIVE), states.count(ProcessState.LATE)
    click.echo(f"processes  {alive} alive, {late} late")
    if overview.types:
        click.echo()
        print_table(
            TYPE_COLUMNS,
            [
                (
                    one.type,
                    count_text(one.due),
                    count_text(one.running),
                    f"{one.per_minute:.1f}",
                    f"{one.failure_share:.0%}",
                    "" if one.oldest_due is None else span(now - one.oldest_due),
                )
                for one in overview.types
            ],
        )
    living = [one for one in overview.processes if one.state(now) is not ProcessState.GONE]
    if living:
        click.echo()
        print_table(PROCESS_COLUMNS, [_process_row(one, now) for one in living])


def _process_row(one: WorkProcess, now: datetime) -> tuple[Any, ...]:
    last_beat = "stopped" if one.stopped_at is not None else f"{span(now - one.seen_at)} ago"
    takes = [
        *one.types,
        *(f"message {kind}" for kind in one.kinds),
        *(["schedules"] if one.schedules else []),
    ]
    return (
        one.host,
        one.pid,
        one.role,
        one.state(now),
        last_beat,
        one.started_at,
        f"{one.running}/{one.concurrency}",
        f"{one.lag_ms} ms",
        one.version,
        shorten(", ".join(takes), 60),
    )


def _plain_overview(overview: Overview) -> dict[str, Any]:
    values = asdict(replace(overview, processes=()))
    values["processes"] = [
        {**plain_values(one), "state": one.state(overview.now)} for one in overview.processes
    ]
    plain: dict[str, Any] = to_jsonable_python(values)
    return plain


# `maniflex worker module:server`: work on runs and deliver outbox messages, without serving.


def prefixes(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """`a.,b.` → its parts."""
    parts = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not parts:
        raise click.BadParameter("it names no prefix; write billing.,email.")
    return parts


@click.command(epilog="Example: maniflex worker app:server --types billing.,email. --concurrency 4")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--types", callback=prefixes, help="Prefixes of the types to work on, such as billing.,email.")
@click.option("--concurrency", type=click.IntRange(1), help="How many runs at once.")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Answer /live, /ready and /metrics here.")
def worker(target: str, types: tuple[str, ...], concurrency: int | None, probe_port: int | None) -> None:
    """Work on runs, and deliver messages and events, until it is interrupted."""
    server = load_sealed(target)

    def services() -> Sequence[Service]:
        runs = server.work.services(types, concurrency)
        parts = [
            *runs,
            *server.outbox.services(),
            *server.events.services(),
            *server.webhooks.services(),
            *server.jobs.services(),
        ]
        if not parts:
            raise click.ClickException("there is nothing to work on: no handler of runs, none of messages")
        return parts

    run_services(server, services, "worker", probe_port)


# `maniflex scheduler module:server`: fire schedules and sweep scheduled fields, without serving.


@click.command(epilog="Example: maniflex scheduler app:server --probe-port 9001")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Answer /live, /ready and /metrics here.")
def scheduler(target: str, probe_port: int | None) -> None:
    """Fire schedules, and sweep scheduled fields and what is kept no longer, until it is interrupted."""
    server = load_sealed(target)

    def services() -> Sequence[Service]:
        parts = [
            *server.schedules.services(),
            *server.scheduled.services(),
            *server.retention.services(),
            *server.erasure.services(),
        ]
        if not parts:
            raise click.ClickException(
                "there is nothing to wait for: no schedule, no scheduled field, no retention or erasure"
            )
        return parts

    run_services(server, services, "scheduler", probe_port)


# `maniflex partition module:server runs|messages|all`: cut the tables of durable work into
# partitions.


_ALL = "all"


@click.command(epilog="Example: maniflex partition app:server all --by day")
@click.argument("target", metavar="MODULE:SERVER")
@click.argument("what", type=click.Choice([*TABLES, _ALL]))
@click.option(
    "--by",
    "period",
    type=click.Choice([period.name.lower() for period in Period]),
    default="day",
    show_default=True,
    help="How much time one partition holds.",
)
@click.option("--tries", type=click.IntRange(1), default=100, show_default=True, help="Waits for a lock.")
def partition(target: str, what: str, period: str, tries: int) -> None:
    """Partition the tables of runs (with events and steps) or messages, on PostgreSQL, while others work.

    Retention then drops whole partitions. Run again, it finishes what was interrupted. It ends with 1 when a
    partition could not be made.
    """
    server = load_sealed(target)
    tables = _partitioned_tables(server, what)
    patience = LockLimits(timedelta(milliseconds=200), tries)

    async def work() -> list[str]:
        adapter = server.work.environment.adapter
        return await partition_tables(
            adapter, tables, Period.of_name(period), patience=patience, tell=click.echo
        )

    if run_once(server, work):
        raise click.exceptions.Exit(1)


def _partitioned_tables(server: Server, what: str) -> list[PartitionedTable]:
    """The tables that the application has."""
    parts = {"runs": server.work.is_used, "messages": server.outbox.is_used}
    names = [name for name in TABLES if what in (name, _ALL) and parts[name]]
    if not names:
        raise click.ClickException(
            f"the application has no {what if what != _ALL else 'runs and no messages'}"
        )
    return [table for name in names for table in TABLES[name]]
