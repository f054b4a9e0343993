"""What a request held is free when it is answered. If only the garbage collector frees it, it adds up:
bodies and rows of megabytes wait until many small things have been made."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.config import Limits
from maniflex.http.access_log import AccessLog
from maniflex.testing import client
from tests.kit.waiting import eventually

JSON = {"content-type": "application/json"}
LARGE = b'{"data":["' + b"t" * 300_000 + b'"]}'
MANY = b'{"data":[' + b"1," * 110_000 + b"1]}"


class Note(Model):
    data: list[Any] = field(default_factory=list)
    place: int = 0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def _serving(database: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[weakref.ref[Context]]]]:
    """A client of a server with an access log, and the contexts of its requests."""
    contexts: list[weakref.ref[Context]] = []
    server = Server(limits=Limits(answer_size=6_000_000))
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def remember(ctx: Context, next: Next) -> None:
        contexts.append(weakref.ref(ctx))
        await next()

    @server.action("POST", "/take", request=dict[str, Any])
    async def take(ctx: Context) -> int:
        assert len(await ctx.request.body()) == len(ctx.raw_body or b"")
        return len(ctx.body)

    @server.action("POST", "/fail", request=dict[str, Any])
    def fail(ctx: Context) -> int:
        raise RuntimeError(f"{len(ctx.body)} is not enough")

    async with client(server, database=database):
        transport = httpx.ASGITransport(app=AccessLog(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield http, contexts


async def _until_gone(contexts: list[weakref.ref[Context]]) -> None:
    """A thread may need a moment to let go of what it has done."""
    await eventually(lambda: all(ref() is None for ref in contexts), "contexts that are gone")


@pytest.mark.parametrize("path", ["/api/notes", "/api/take"])
@pytest.mark.parametrize(
    ("body", "status"),
    [(LARGE, 0), (MANY, 413), (LARGE[:-1], 400), (b'{"data":1, "data":' + LARGE + b"}", 400)],
    ids=["taken", "too many values", "cut off", "a repeated key"],
)
async def test_nothing_of_a_large_body_is_left(
    path: str, body: bytes, status: int, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "maniflex.access")
    async with _serving(database_url) as (http, contexts):
        answer = await http.post(path, content=body, headers=JSON)

        assert answer.status_code == (status or (201 if path == "/api/notes" else 200))
        await _until_gone(contexts)


async def test_nothing_is_left_of_a_refused_field_or_a_failing_handler(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "maniflex.access")
    async with _serving(database_url) as (http, contexts):
        refused = await http.post("/api/notes", json={"place": "x" * 300_000})
        failed = await http.post("/api/fail", content=LARGE, headers=JSON)

        assert (refused.status_code, failed.status_code) == (422, 500)
        await _until_gone(contexts)


@pytest.mark.parametrize(("limit", "status"), [(1, 200), (4, 200), (9, 400)])
async def test_nothing_is_left_of_a_large_list(
    limit: int, status: int, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "maniflex.access")
    async with _serving(database_url) as (http, contexts):
        for place in range(9):
            await http.post("/api/notes", json={"data": ["t" * 800_000], "place": place})
        # Several at once, so that some of them open connections.
        answers = await asyncio.gather(*(http.get(f"/api/notes?limit={limit}") for _ in range(3)))

        assert [answer.status_code for answer in answers] == [status] * 3
        await _until_gone(contexts)
