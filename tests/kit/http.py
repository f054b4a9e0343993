"""Shortcuts for tests that look at a server the way a client does."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import Context, Next, Server
from maniflex.testing import client


@asynccontextmanager
async def serving(database: str, *models: Any, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with these models and nothing else."""
    server = Server(**settings)
    server.register(*models)
    async with client(server, database=database) as http:
        yield http


def data_of(response: httpx.Response, status: int = 200) -> Any:
    """What a successful answer carries."""
    assert response.status_code == status, response.text
    return response.json()["data"]


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error block of a refusal, which has this status and code."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == code, error
    return error


def offenders(response: httpx.Response) -> dict[str, str]:
    """Field → code of everything a 422 complains about."""
    details = error_of(response, 422, "VALIDATION_FAILED")["details"]
    return {detail["field"]: detail["code"] for detail in details}


def csv_cells(response: httpx.Response) -> list[list[str]]:
    """The cells of a CSV, its header first."""
    assert response.status_code == 200, response.text
    return list(csv.reader(io.StringIO(response.content.decode(), newline=""), strict=True))


async def created(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    return data_of(await http.post(path, json=body), 201)


async def total(http: httpx.AsyncClient, path: str) -> int:
    count: int = (await http.get(path)).json()["meta"]["total"]
    return count


async def pass_on(ctx: Context, next: Next) -> None:
    """Middleware that does nothing."""
    await next()


async def together(count: int, request: Callable[[int], Awaitable[httpx.Response]]) -> list[httpx.Response]:
    """That many requests, none of which starts before all are ready to."""
    barrier = asyncio.Barrier(count)

    async def one(n: int) -> httpx.Response:
        await barrier.wait()
        return await request(n)

    return await asyncio.gather(*(one(n) for n in range(count)))
