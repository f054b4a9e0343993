"""Small words for tests of durable runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from maniflex import Server
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.run import Run

TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def no_pause(failures: int) -> timedelta:
    """A backoff for tests that do not wait."""
    return timedelta(0)


@asynccontextmanager
async def working(server: Server) -> AsyncIterator[Work]:
    """The started server's work; nothing runs unless the test has a worker do it."""
    async with server.lifespan(role="client"):
        yield server.work


def succeeding(server: Server, type: str = "default.ok") -> list[Run]:
    """A handler that only remembers what it was given."""
    seen: list[Run] = []

    @server.work.handler(type)
    async def ok(run: Run) -> Any:
        seen.append(run)
        return {"payload": run.payload}

    return seen


def failing(server: Server, error: BaseException, type: str = "default.bad", **options: Any) -> list[int]:
    attempts: list[int] = []

    @server.work.handler(type, **options)
    async def bad(run: Run) -> None:
        attempts.append(run.attempt)
        raise error

    return attempts


async def eventually(condition: Callable[[], Any], what: str, patience: float = 40) -> None:
    """Ask again until the answer, awaited where it has to be, is true."""
    for _ in range(int(patience / 0.01)):
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited {patience} s in vain: {what}")


async def kinds(work: Work, id: str) -> list[str]:
    """The events of a run, by name."""
    return [event.event_type for event in await work.events(id)]


async def status(work: Work, id: str) -> str:
    return (await work.get(id)).status


def is_free(run: WorkflowRun) -> bool:
    """Whether nothing of a lease is left on it."""
    return (run.lease, run.lease_until, run.leased_by) == (None, None, None)


async def terminate(url: str) -> int:
    """End every connection to a PostgreSQL database but our own."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(TERMINATE))
    finally:
        await connection.close()
