"""`maniflex doctor module:server`: what would hurt later; and how fast this machine and this database are."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

import click

from maniflex.app.server import Server
from maniflex.background.runs.run import Run
from maniflex.cli.process import load, run_loop
from maniflex.config import Config, sqlite_path
from maniflex.doctor.check import DoctorReport, Finding, Severity
from maniflex.doctor.run import codes, examine
from maniflex.errors import DeclarationError, ManiflexError
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.pipeline.operation import Operation
from maniflex.sql.statement import Dialect

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "blue"}


@click.command(epilog="Example: maniflex doctor app:server --strict --ignore T104")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--no-database", is_flag=True, help="Look at declarations and settings alone.")
@click.option("--probe", is_flag=True, help="Also ask for lists, to find statements sent per record.")
@click.option("--measure", is_flag=True, help="Also measure this machine, on a scratch database.")
@click.option("--strict", is_flag=True, help="End with 1 on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@click.option("--ignore", "ignored", multiple=True, metavar="CODE", help="Leave a code out; may be repeated.")
def doctor(
    target: str,
    no_database: bool,
    probe: bool,
    measure: bool,
    strict: bool,
    as_json: bool,
    ignored: tuple[str, ...],
) -> None:
    """Look for what would hurt later: open routes, missing indexes, settings, work that waits.

    It only reads. Ends with 1 when there are errors.
    """
    _check_codes(ignored)
    server = load(target)
    try:
        subject = server.doctor_subject()
    except DeclarationError as error:
        raise click.ClickException(str(error)) from None
    report = run_loop(examine(subject, with_databases=not no_database, probe=probe))
    findings = [finding for finding in report.findings if finding.code not in ignored]
    if as_json:
        click.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        _print(findings, report)
    if measure:
        _measure(server, as_json)
    bad = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    if any(finding.severity in bad for finding in findings):
        raise SystemExit(1)


def _measure(server: Server, as_json: bool) -> None:
    from maniflex.cli.doctor import measure_databases

    for line in run_loop(measure_databases(server.config)):
        click.echo(line, err=as_json)


def _check_codes(ignored: tuple[str, ...]) -> None:
    known_codes = codes()
    for code in ignored:
        if code not in known_codes:
            raise click.BadParameter(
                f"there is no code {code!r}; there are {', '.join(known_codes)}", param_hint="--ignore"
            )


def _print(findings: list[Finding], report: DoctorReport) -> None:
    for finding in findings:
        head = click.style(f"{finding.code} {finding.severity}", fg=_COLORS[finding.severity], bold=True)
        click.echo(f"{head}  {finding.where}\n    {finding.why}\n    → {finding.fix}\n")
    for finding, rule in report.silenced:
        click.echo(f"{finding.code} silenced  {finding.where}\n    {rule.reason}\n")
    counts = [(sum(f.severity is severity for f in findings), severity) for severity in Severity]
    total = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for count, severity in counts)
    click.echo(total if findings else "nothing found")


# What this machine and this database do in a second, on a scratch database that is gone afterwards.
#
# The file of SQLite is made beside that of the application, so it is the same disk. On PostgreSQL it is
# another database on the same server, which needs a role that may make one.


SECONDS = 5.0
CALLERS = 32  # at once
ROWS = 2_000
BATCH = 500  # runs that are submitted at once
TYPE = "default.measure"
# Requests and runs a second by docs/operate/benchmarks.md: two shared cores, one process.
PUBLISHED: dict[Dialect, dict[str, int]] = {
    Dialect.SQLITE: {"read": 12_500, "list": 3_100, "write": 5_500, "run": 17_100},
    Dialect.POSTGRES: {"read": 9_300, "list": 2_000, "write": 6_300, "run": 12_500},
}


class Measured(Model, table="measured"):
    """A row of the scratch database."""

    title: str = field(filterable=True, sortable=True, index=True)
    number: int = field(default=0)


async def measure_databases(config: Config, seconds: float = SECONDS) -> list[str]:
    """A line for each thing that was measured, with the published figure beside it."""
    try:
        async with _scratch_url(config) as url:
            figures = await _measure_database(url, seconds)
    except (ManiflexError, OSError) as error:
        return [f"this could not be measured: {error}"]
    dialect = Dialect.POSTGRES if url.startswith("postgres") else Dialect.SQLITE
    return list(_lines(figures, PUBLISHED[dialect]))


def _lines(figures: dict[str, float], published: dict[str, int]) -> Iterator[str]:
    yield "this machine, this database, in this process:"
    for name, figure in figures.items():
        yield f"  {name:<6} about {figure:>8,.0f} per second   (published: {published[name]:,})"


@asynccontextmanager
async def _scratch_url(config: Config) -> AsyncIterator[str]:
    """The address of an empty database of the same kind, on the same disk or server."""
    address = config.database if isinstance(config.database, str) else ":memory:"
    if address.startswith("postgres"):
        async with _scratch_database(address, config) as url:
            yield url
        return
    path = sqlite_path(address)
    directory = None if path == ":memory:" else os.path.dirname(path) or "."
    with TemporaryDirectory(prefix="maniflex-measure-", dir=directory) as folder:
        yield f"sqlite:///{folder}/scratch.db"


@asynccontextmanager
async def _scratch_database(address: str, config: Config) -> AsyncIterator[str]:
    name = f"maniflex_measure_{secrets.token_hex(6)}"
    patience = timedelta(
        minutes=5
    )  # a busy server takes its time, and what it begins must not be left behind
    settings = Config(database=address, pooler=config.pooler, auto_migrate=False, statement_timeout=patience)
    server = Server(config=settings)
    async with server.lifespan(role="client"):
        try:
            await server.raw_exec(f'CREATE DATABASE "{name}"')
            yield urlunsplit(urlsplit(address)._replace(path=f"/{name}"))
        finally:
            await server.raw_exec(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _measure_database(url: str, seconds: float) -> dict[str, float]:
    server = Server(url, work_concurrency=100, pool_size=10, work_poll_interval=timedelta(milliseconds=200))
    server.register(Measured)
    finished_runs = 0

    @server.work.handler(TYPE)
    async def note(run: Run) -> None:
        nonlocal finished_runs
        finished_runs += 1

    async with server.lifespan(role="server"):
        ids = [(await server.db(Measured).create(title=f"row {n}", number=n)).id for n in range(ROWS // 10)]
        query = {"limit": 20, "sort": "title:asc"}
        return {
            "read": await _rate(
                seconds, lambda n: server.execute(Operation.READ, Measured, ids[n % len(ids)])
            ),
            "list": await _rate(seconds, lambda n: server.execute(Operation.LIST, Measured, query=query)),
            "write": await _rate(
                seconds, lambda n: server.execute(Operation.CREATE, Measured, body={"title": f"new {n}"})
            ),
            "run": await _run_rate(server, seconds, lambda: finished_runs),
        }


async def _rate(seconds: float, call: Callable[[int], Awaitable[object]]) -> float:
    """How often a second it can be called, by several callers at once."""
    count, began = 0, time.perf_counter()

    async def caller() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            count += 1
            await call(count)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / (time.perf_counter() - began)


async def _run_rate(server: Server, seconds: float, finished_runs: Callable[[], int]) -> float:
    """How many runs a second are submitted, in bulk, and done."""
    began, run_count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        if run_count - finished_runs() < 2 * BATCH:
            await server.work.submit_many(TYPE, [{}] * BATCH)
            run_count += BATCH
        else:
            await asyncio.sleep(0.001)
    return finished_runs() / (time.perf_counter() - began)
