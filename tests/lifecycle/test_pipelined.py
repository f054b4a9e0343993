"""Several requests on one connection, torn anywhere: each is answered once, in the order they came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex import Context, Server
from tests.kit.notes import Note
from tests.kit.sockets import Connection, a_request, connected, listening

PATIENCE = 60.0
LONG = b"GET /api/notes HTTP/1.1\r\nHost: test\r\nX-Long: " + b"x" * 200_000


@asynccontextmanager
async def notes(
    sqlite_url: str, go_on: asyncio.Event | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, Connection]]:
    server = Server(sqlite_url, **settings)
    server.register(Note)

    @server.action("POST", "/wait")
    async def wait(ctx: Context) -> None:
        assert go_on is not None
        await go_on.wait()

    async with listening(server) as port, connected(port) as client, asyncio.timeout(PATIENCE):
        yield server, client


def a_note(number: int) -> bytes:
    return a_request("POST", "/api/notes", json.dumps({"text": str(number)}).encode())


async def test_1500_requests_in_one_go_get_1500_answers_in_order(sqlite_url: str) -> None:
    async with notes(sqlite_url) as (_, client):
        await client.send(b"".join(a_note(number) for number in range(1500)))
        for number in range(1500):
            status, _, body = await client.answer()
            assert (status, json.loads(body)["data"]["text"]) == (201, str(number))


@pytest.mark.parametrize("size", [1, 7, 100, 65_536, 70_000])
async def test_requests_torn_anywhere_are_all_answered(sqlite_url: str, size: int) -> None:
    count = 10 if size == 1 else 400
    sent = b"".join(a_note(number) for number in range(count))
    async with notes(sqlite_url) as (_, client):
        for start in range(0, len(sent), size):
            await client.send(sent[start : start + size])
        for number in range(count):
            status, _, body = await client.answer()
            assert (status, json.loads(body)["data"]["text"]) == (201, str(number))


async def test_a_large_body_and_the_beginning_of_another_head_are_no_huge_head(sqlite_url: str) -> None:
    large = a_request("POST", "/api/notes", b'{"text": "%b"}' % (b"x" * 150_000))
    second = a_request("GET", "/live", b"", "X-Long: " + "x" * 40_000)
    async with notes(sqlite_url) as (_, client):
        for torn in (5, 30, 30_000):
            await client.send(large + second[:torn])
            assert (await client.answer())[0] == 201
            await client.send(second[torn:])
            assert (await client.answer())[0] == 200


@pytest.mark.parametrize("before", [b"", a_note(1), a_note(1) + a_note(2)], ids=["alone", "second", "third"])
@pytest.mark.parametrize("ending", [b"", b"\r\n\r\n"], ids=["half", "whole"])
async def test_a_huge_head_is_refused_in_its_turn(sqlite_url: str, before: bytes, ending: bytes) -> None:
    async with notes(sqlite_url) as (server, client):
        await client.send(before + LONG + ending)
        for _ in range(before.count(b"POST")):
            assert (await client.answer())[0] == 201
        status, headers, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (431, "HEADERS_TOO_LARGE")
        assert (headers["connection"], headers["cache-control"]) == ("close", "no-store")
        assert await server.db(Note).count() == before.count(b"POST")


@pytest.mark.parametrize("last", [LONG, b"no HTTP\r\n\r\n"], ids=["huge head", "garbage"])
async def test_a_refusal_waits_for_the_answer_before_it(sqlite_url: str, last: bytes) -> None:
    go_on = asyncio.Event()
    async with notes(sqlite_url, go_on) as (_, client):
        await client.send(a_request("POST", "/api/wait") + last)
        reading = asyncio.create_task(client.answer())
        await asyncio.wait([reading], timeout=0.3)
        assert not reading.done()
        go_on.set()
        assert (await reading)[0] == 204
        assert (await client.answer())[0] in (400, 431)
        assert await client.read() == b""


async def test_a_head_that_waits_for_an_answer_before_it_is_not_cut_off(sqlite_url: str) -> None:
    go_on = asyncio.Event()
    second = a_note(1)
    async with notes(sqlite_url, go_on, head_timeout=0.6, body_timeout=0.6) as (_, client):
        for torn in (5, len(second) - 2):
            go_on.clear()
            await client.send(a_request("POST", "/api/wait") + second[:torn])
            reading = asyncio.create_task(client.answer())
            await asyncio.wait([reading], timeout=1)
            assert not reading.done()
            go_on.set()
            assert (await reading)[0] == 204
            await client.send(second[torn:])
            assert (await client.answer())[0] == 201
