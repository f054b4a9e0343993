"""`maniflex schedules list | show | run | pause | resume module:server`: schedules from a terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import click

from maniflex.app.server import Server
from maniflex.background.parameters import span
from maniflex.background.schedules.cron import Cron, describe
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.cli.database import on_database
from maniflex.cli.output import (
    json_option,
    limit_option,
    plain_values,
    print_json,
    print_table,
    print_values,
    shorten,
    target_argument,
)
from maniflex.cli.process import load_sealed
from maniflex.errors import InvalidSchedule, RequestError

TABLES = ("schedules", "schedule_firing")
COLUMNS = ("name", "tenant", "status", "times", "target", "next_run_at", "last_run_at", "late")
NEXT_TIMES = 10
FIRINGS = 10


tenant_option = click.option("--tenant", help="The tenant of the schedule; without it, one that has none.")


@click.group()
def schedules() -> None:
    """Look at schedules, fire them, pause them and let them go on."""


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

    records, now = on_database(server, read, *TABLES)
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
    print_table(COLUMNS, rows)


@schedules.command(epilog="Example: maniflex schedules show app:server nightly")
@target_argument
@click.argument("name")
@tenant_option
@json_option
def show(target: str, name: str, tenant: str | None, as_json: bool) -> None:
    """One schedule by name or id, its next times and its last firings."""
    server = load_sealed(target)

    async def read() -> tuple[Schedule, list[ScheduleFiring], datetime]:
        schedule = await server.schedules.get(name, tenant_id=tenant)
        return schedule, await server.schedules.firings(schedule.id, FIRINGS), server.schedules.now()

    schedule, firings, now = on_database(server, read, *TABLES)
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


@schedules.command(epilog="Example: maniflex schedules run app:server nightly")
@target_argument
@click.argument("name")
@tenant_option
def run(target: str, name: str, tenant: str | None) -> None:
    """Fire a schedule once, now; its next time stays."""
    server = load_sealed(target)
    run_record = on_database(server, lambda: server.schedules.run_now(name, tenant_id=tenant), *TABLES)
    click.echo(f"{name}: run {run_record.id} is due")


@schedules.command(epilog="Example: maniflex schedules pause app:server nightly weekly")
@target_argument
@click.argument("names", nargs=-1, required=True)
@tenant_option
def pause(target: str, names: tuple[str, ...], tenant: str | None) -> None:
    """Let schedules rest; they keep their names and firings."""
    server = load_sealed(target)
    _change(server, names, partial(server.schedules.deactivate, tenant_id=tenant))


@schedules.command(epilog="Example: maniflex schedules resume app:server nightly")
@target_argument
@click.argument("names", nargs=-1, required=True)
@tenant_option
def resume(target: str, names: tuple[str, ...], tenant: str | None) -> None:
    """Let schedules be due again from now on."""
    server = load_sealed(target)
    _change(server, names, partial(server.schedules.activate, tenant_id=tenant))


def _change(server: Server, names: tuple[str, ...], call: Callable[[str], Awaitable[Schedule]]) -> None:
    """Do it to each; one that refuses keeps the others from nothing, but the command ends with 1."""

    async def all_of_them() -> list[Schedule | str]:
        answers: list[Schedule | str] = []
        for name in names:
            try:
                answers.append(await call(name))
            except RequestError as error:
                answers.append(f"{name}: {error.message}")
        return answers

    answers = on_database(server, all_of_them, *TABLES)
    for answer in answers:
        if isinstance(answer, str):
            click.echo(answer, err=True)
        else:
            following = "" if answer.next_run_at is None else f", next at {answer.next_run_at.isoformat()}"
            click.echo(f"{answer.name}: {answer.status}{following}")
    if any(isinstance(answer, str) for answer in answers):
        raise SystemExit(1)


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
