"""Requests that end in an odd place: no answer, a late hook, a first client that leaves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.testing import client


class Doc(Model):
    name: str
    data: dict[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, unique=True, hidden=True)


def docs() -> Server:
    server = Server()
    server.register(Doc)
    return server


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_forgetting_next_is_a_failure_and_never_a_success(method: str) -> None:
    server = docs()

    @server.pipeline.auth.middleware()
    async def forgetful(ctx: Context, next: Next) -> None:
        return None

    path = "/api/docs/some-id" if method == "DELETE" else "/api/docs"
    async with client(server) as http:
        answer = await http.request(method, path, json={"name": "n"} if method == "POST" else None)

    assert answer.status_code == 500


async def test_a_database_step_of_ones_own_may_delete_in_its_own_way() -> None:
    server = docs()

    @server.pipeline.db.middleware(operations=[Operation.DELETE], at="replace")
    async def elsewhere(ctx: Context, next: Next) -> None:
        await next()

    async with client(server) as http:
        assert (await http.delete("/api/docs/some-id")).status_code == 204


async def test_an_after_commit_call_of_the_response_step_runs(database_url: str) -> None:
    server, ran = docs(), []

    @server.pipeline.response.middleware(operations=[Operation.CREATE])
    async def late(ctx: Context, next: Next) -> None:
        ctx.after_commit(lambda: ran.append("late"))
        await next()

    async with client(server, database=database_url) as http:
        await http.post("/api/docs", json={"name": "n"})

    assert ran == ["late"]


async def test_work_started_in_a_transaction_does_not_keep_it(database_url: str) -> None:
    server, done = docs(), asyncio.Event()
    names: list[str] = []

    async def later() -> None:
        names.extend(doc.name for doc in await server.db(Doc).list())
        done.set()

    async with client(server, database=database_url):
        async with server.transaction():
            await server.db(Doc).create(name="kept")
            outside = asyncio.Event()

            async def waits() -> None:
                await outside.wait()
                await later()

            task = asyncio.create_task(waits())
        outside.set()
        await asyncio.wait_for(done.wait(), 10)
        await task

        async with server.transaction():
            done.clear()
            server.go(later)
        await asyncio.wait_for(done.wait(), 10)

    assert names == ["kept", "kept"]


async def test_a_first_client_that_leaves_does_not_end_the_server(sqlite_url: str) -> None:
    server, entered, go_on = Server(database=sqlite_url), asyncio.Event(), asyncio.Event()
    server.register(Doc)

    @server.on_start
    async def slow() -> None:
        entered.set()
        await go_on.wait()

    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        first = asyncio.create_task(http.get("/api/docs"))
        await entered.wait()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        go_on.set()

        assert (await http.get("/api/docs")).status_code == 200
    await server.stop()


async def test_in_process_head_and_options_know_one_record_from_many() -> None:
    server = docs()
    async with client(server):
        missing = await server.execute(Operation.HEAD, Doc, "nope")
        allowed = await server.execute(Operation.OPTIONS, Doc, "nope")

    assert missing.status == 404
    assert allowed.headers is not None
    assert "PATCH" in allowed.headers["allow"]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**40])
async def test_whole_numbers_beyond_64_bits_are_refused_inside_json_too(
    number: int, database_url: str
) -> None:
    async with client(docs(), database=database_url) as http:
        answer = await http.post("/api/docs", json={"name": "n", "data": {"deep": [{"n": number}]}})
        fits = await http.post("/api/docs", json={"name": "n", "data": {"n": 2**63 - 1, "t": "1" * 30}})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_JSON")
    assert fits.status_code == 201


async def test_a_duplicate_of_a_hidden_field_names_nothing(database_url: str) -> None:
    server = docs()

    @server.pipeline.service.middleware(operations=[Operation.CREATE])
    async def same_key(ctx: Context, next: Next) -> None:
        ctx.set_field("key", "same")
        await next()

    async with client(server, database=database_url) as http:
        await http.post("/api/docs", json={"name": "a"})
        second = await http.post("/api/docs", json={"name": "b"})

    assert second.status_code == 409
    assert "key" not in second.text
