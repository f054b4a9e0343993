"""What this machine and this database do in a second, on a scratch database that is gone afterwards.

The file of SQLite is made beside that of the application, so it is the same disk. On PostgreSQL it is another
database on the same server, which needs a role that may make one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

from maniflex.app.server import Server
from maniflex.background.runs.run import Run
from maniflex.config import Config, sqlite_path
from maniflex.errors import ManiflexError
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.pipeline.operation import Operation
from maniflex.sql.statement import Dialect

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
            figures = await _measure(url, seconds)
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


async def _measure(url: str, seconds: float) -> dict[str, float]:
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
