"""Small words for tests of durable runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from maniflex import Run, Server
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from tests.kit.waiting import eventually


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


async def kinds(work: Work, id: str) -> list[str]:
    """The events of a run, by name."""
    return [event.event_type for event in await work.events(id)]


async def status(work: Work, id: str) -> str:
    return (await work.get(id)).status


def is_free(run: WorkflowRun) -> bool:
    """Whether nothing of a lease is left on it."""
    return (run.lease, run.lease_until, run.leased_by) == (None, None, None)


async def outlive_lease(work: Work, id: str, lease: timedelta, times: int = 2) -> None:
    """Wait until a leased run was renewed for so many leases more than it was claimed for."""
    first = (await work.get(id)).lease_until
    assert first is not None

    async def is_renewed() -> bool:
        until = (await work.get(id)).lease_until
        return until is not None and until >= first + times * lease

    await eventually(is_renewed, "renewed leases")
