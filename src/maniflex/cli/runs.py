"""`maniflex runs list | show | cancel | retry module:server`: look after runs from a terminal."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from pydantic_core import to_jsonable_python

from maniflex.app.server import Server
from maniflex.background.clock import ClockKeeper, ServerClock
from maniflex.background.runs.model import Status, WorkflowEvent, WorkflowRun
from maniflex.cli.process import run_once
from maniflex.cli.target import load_sealed
from maniflex.db.port import Adapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.errors import ConfigError, RequestError
from maniflex.sql.statement import Dialect, Sql

T = TypeVar("T")
TABLE = {
    Dialect.SQLITE: Sql("SELECT 1 FROM sqlite_master WHERE name = 'workflow_run'"),
    Dialect.POSTGRES: Sql("SELECT 1 WHERE to_regclass('workflow_run') IS NOT NULL"),
}
COLUMNS = ("id", "type", "status", "attempt", "run_at", "last_error")
WIDEST = 40
_target = click.argument("target", metavar="MODULE:SERVER")
_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


@click.group()
def runs() -> None:
    """Look at runs, cancel them and try them again."""


@runs.command("list")
@_target
@click.option("--type", help="Of exactly this type.")
@click.option("--prefix", help="Whose type starts like this.")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="In this state.")
@click.option("--actor", help="Of this actor.")
@click.option("--tenant", help="Of this tenant.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)
@_json
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
    stored_runs = _on_database(server, lambda: server.work.list(**filters, actor_id=actor, tenant_id=tenant))
    if as_json:
        _print_json([_plain(run) for run in stored_runs])
    else:
        _print_table(stored_runs)


@runs.command()
@_target
@click.argument("id")
@_json
def show(target: str, id: str, as_json: bool) -> None:
    """One run and what happened to it."""
    server = load_sealed(target)

    async def run_and_events() -> tuple[WorkflowRun, list[WorkflowEvent]]:
        return await server.work.get(id), await server.work.events(id)

    run, events = _on_database(server, run_and_events)
    values = _plain(run)
    if as_json:
        _print_json({**values, "events": [_plain(event) for event in events]})
        return
    trace = (values["error"] or {}).pop("trace", "")
    for name, value in values.items():
        if value is not None:
            click.echo(f"{name:<16}{value if isinstance(value, str) else _text(value)}")
    for event in events:
        data = "" if event.data is None else f"  {_text(event.data)}"
        click.echo(f"  {event.created_at:%Y-%m-%d %H:%M:%S.%f}  {event.event_type}{data}")
    if trace:
        click.echo(trace.rstrip())


@runs.command()
@_target
@click.argument("ids", nargs=-1, required=True)
@_json
def cancel(target: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel runs that are not finished."""
    server = load_sealed(target)
    _change(server, ids, server.work.cancel, as_json)


@runs.command()
@_target
@click.argument("ids", nargs=-1, required=True)
@_json
def retry(target: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Try failed or cancelled runs again."""
    server = load_sealed(target)
    _change(server, ids, server.work.retry, as_json)


def _on_database(server: Server, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do it on the database as it is: nothing is made or migrated, no hook of the application is called."""
    return run_once(server, work, within=lambda: _open_databases(server))


@asynccontextmanager
async def _open_databases(server: Server) -> AsyncIterator[None]:
    adapter = server.work.require_sealed().adapter
    _check_file(adapter)
    await adapter.open()
    try:
        await _check_table(adapter)
        if isinstance(server.work.clock, ServerClock):
            await ClockKeeper(server.work.clock, adapter, server.work.environment.logger).tick()
        yield
    finally:
        await adapter.close()


def _check_file(adapter: Adapter) -> None:
    if isinstance(adapter, SqliteAdapter) and not Path(adapter._path).is_file():  # opening would make it
        raise ConfigError(f"there is no database {adapter._path!r}; it is made when the server starts")


async def _check_table(adapter: Adapter) -> None:
    if await adapter.fetch_one(TABLE[adapter.dialect]) is None:
        where = f"the database {adapter.label}"
        raise ConfigError(f"{where} has no table workflow_run; it is made when the server starts")


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

    changed_runs, refusals = _on_database(server, all_of_them)
    if as_json:
        _print_json([_plain(run) for run in changed_runs])
    elif changed_runs:
        _print_table(changed_runs)
    for why in refusals:
        click.echo(why, err=True)
    if refusals:
        sys.exit(1)


def _plain(record: Any) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(record.__dict__)
    plain.pop("lease", None)
    return plain


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _print_table(stored_runs: Sequence[WorkflowRun]) -> None:
    rows = [COLUMNS, *(tuple(_cell(run, name) for name in COLUMNS) for run in stored_runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(run: WorkflowRun, name: str) -> str:
    if name == "attempt":
        return f"{run.attempt}/{run.max_attempts}"
    if name == "run_at":
        return f"{run.run_at:%Y-%m-%d %H:%M:%S}"
    text = " ".join(str(getattr(run, name) or "").split())
    return text if len(text) <= WIDEST or name == "id" else text[: WIDEST - 1] + "…"
