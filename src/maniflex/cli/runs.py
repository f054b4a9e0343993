"""`maniflex runs list | show | cancel | retry module:server`: look after runs from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from maniflex.app.server import Server
from maniflex.background.runs.model import Status, WorkflowEvent, WorkflowRun
from maniflex.cli.database import on_database
from maniflex.cli.output import (
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
from maniflex.cli.process import load_sealed
from maniflex.errors import RequestError

COLUMNS = ("id", "type", "status", "attempt", "run_at", "last_error")
TABLE = "workflow_run"


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
        server, lambda: server.work.list(**filters, actor_id=actor, tenant_id=tenant), TABLE
    )
    if as_json:
        print_json([plain_values(run) for run in stored_runs])
    else:
        _print_runs(stored_runs)


@runs.command(epilog="Example: maniflex runs show app:server 019aa2f0-6a2e-7d1c-b8a5-000000000000")
@target_argument
@click.argument("id")
@json_option
def show(target: str, id: str, as_json: bool) -> None:
    """One run, why it is not running, and what happened to it."""
    server = load_sealed(target)

    async def run_and_events() -> tuple[WorkflowRun, list[WorkflowEvent], str]:
        run = await server.work.get(id)
        return run, await server.work.events(id), await server.processes.why(run)

    run, events, why = on_database(server, run_and_events, TABLE, "work_process")
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


@runs.command(epilog="Example: maniflex runs cancel app:server ID1 ID2")
@target_argument
@click.argument("ids", nargs=-1, required=True)
@json_option
def cancel(target: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel runs that are not finished."""
    server = load_sealed(target)
    _change(server, ids, server.work.cancel, as_json)


@runs.command(epilog="Example: maniflex runs retry app:server ID1 ID2")
@target_argument
@click.argument("ids", nargs=-1, required=True)
@json_option
def retry(target: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Try failed or cancelled runs again."""
    server = load_sealed(target)
    _change(server, ids, server.work.retry, as_json)


def _change(
    server: Server, ids: Sequence[str], call: Callable[[str], Awaitable[WorkflowRun]], as_json: bool
) -> None:
    """Do it to each; one that refuses keeps the others from nothing, but the command ends with 1."""

    async def all_of_them() -> tuple[list[WorkflowRun], list[str]]:
        changed_runs, refusals = [], []
        for one in ids:
            try:
                changed_runs.append(await call(one))
            except RequestError as error:
                refusals.append(f"{one}: {error.message}")
        return changed_runs, refusals

    changed_runs, refusals = on_database(server, all_of_them, TABLE)
    if as_json:
        print_json([plain_values(run) for run in changed_runs])
    elif changed_runs:
        _print_runs(changed_runs)
    for why in refusals:
        click.echo(why, err=True)
    if refusals:
        sys.exit(1)


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
    print_table(COLUMNS, rows)
