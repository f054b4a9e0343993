"""`maniflex processes` and `maniflex top`: which processes there are, and how durable work stands."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import click
from pydantic_core import to_jsonable_python

from maniflex.app.server import Server
from maniflex.background.parameters import span
from maniflex.background.processes.model import ProcessState, WorkProcess
from maniflex.background.processes.overview import Overview, count_text
from maniflex.cli.database import on_database
from maniflex.cli.output import json_option, plain_values, print_json, print_table, shorten, target_argument
from maniflex.cli.process import load_sealed

TABLES = ("work_process", "work_stat")
COLUMNS = ("host", "pid", "role", "state", "seen", "started_at", "running", "lag", "version", "takes")
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

    rows, now = on_database(server, read, *TABLES)
    if as_json:
        print_json([{**plain_values(one), "state": one.state(now)} for one in rows])
    else:
        print_table(COLUMNS, [_process_row(one, now) for one in rows])


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
    return [*TABLES, *(table for table, is_used in is_used_by_table.items() if is_used)]


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
        print_table(COLUMNS, [_process_row(one, now) for one in living])


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
