"""A write that the synchronous standby has not got is not acknowledged, however often it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from maniflex import Model, Server, field
from maniflex.errors import RequestError
from maniflex.middleware import idempotency
from maniflex.testing import client
from tests.kit.postgres import fetch_value
from tests.kit.private_postgres import PrivatePostgres, private_postgres, standby_of
from tests.kit.replicas import replicate_synchronously
from tests.kit.waiting import eventually

COUNT = "SELECT count(*) FROM notes"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
LOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
NOT_LOCKED = "SELECT 1 - count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class Note(Model):
    text: str = field(filterable=True)


@asynccontextmanager
async def with_standby() -> AsyncIterator[tuple[PrivatePostgres, PrivatePostgres, Server]]:
    with private_postgres() as primary:
        await primary.start()
        async with standby_of(primary) as standby:
            await replicate_synchronously(primary)
            server = Server(primary.url, query_timeout=1)
            server.register(Note)
            server.pipeline.deserialize.register(idempotency.keys(), at="after")
            yield primary, standby, server


async def post(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/api/notes", json={"text": "new"}, headers={"Idempotency-Key": "once"})


async def test_a_write_that_took_too_long_is_not_taken_for_done() -> None:
    async with with_standby() as (primary, standby, server), client(server, database=None) as http:
        standby.freeze()
        assert (await post(http)).status_code == 504
        assert (await post(http)).status_code in (409, 503, 504)
        assert await fetch_value(primary.url, COUNT) == 0
        standby.thaw()

        async def is_acknowledged() -> bool:
            return (await post(http)).status_code == 201

        await eventually(is_acknowledged, "the write", 20)
        assert await fetch_value(primary.url, COUNT) == 1


async def test_a_caller_that_gives_up_does_not_end_the_wait_of_its_commit() -> None:
    async with with_standby() as (primary, standby, server), client(server, database=None):
        standby.freeze()

        async def write() -> None:
            async with server.transaction():
                await server.db(Note).create(text="new")

        writing = asyncio.create_task(write())
        await eventually(lambda: _is_one(primary, WAITS), "the commit waits for the standby")
        writing.cancel()
        with pytest.raises((asyncio.CancelledError, RequestError)):
            await writing
        assert await fetch_value(primary.url, COUNT) == 0
        assert await _is_one(primary, WAITS)
        standby.thaw()
        await eventually(lambda: _is_one(primary, COUNT), "the write, when the standby has it")


async def test_a_write_that_waits_for_a_lock_is_given_up_by_the_server() -> None:
    async with with_standby() as (primary, _, server), client(server, database=None):
        note = await server.db(Note).create(text="old")
        other = await asyncpg.connect(primary.url)
        async with other.transaction():
            await other.execute("UPDATE notes SET text = 'first'")
            writing = asyncio.create_task(server.raw_exec("UPDATE notes SET text = 'second'"))
            await eventually(lambda: _is_one(primary, LOCKED), "the write waits for the lock")
            writing.cancel()
            await eventually(lambda: _is_one(primary, NOT_LOCKED), "the server has given it up", 4.5)
        await other.close()
        assert (await server.db(Note).read(note.id)).text == "first"


async def test_connections_from_before_the_standby_keep_to_the_same() -> None:
    with private_postgres() as primary:
        await primary.start()
        server = Server(primary.url, pool_size=1)
        server.register(Note)
        async with client(server, database=None):
            note = await server.db(Note).create(text="old")
            async with standby_of(primary) as standby:
                await replicate_synchronously(primary)
                standby.freeze()
                writing = asyncio.create_task(server.raw_exec("UPDATE notes SET text = 'new'"))
                await eventually(lambda: _is_one(primary, WAITS), "the write waits for the standby")
                writing.cancel()
                await asyncio.wait([writing])
                # The only connection is free for this when the write is over, or was left to itself.
                assert (await server.db(Note).read(note.id)).text == "old"
                assert await _is_one(primary, WAITS)
                standby.thaw()
                await eventually(lambda: _is_new(server, note.id), "the write, when the standby has it")


async def _is_new(server: Server, note_id: str) -> bool:
    return (await server.db(Note).read(note_id)).text == "new"


async def _is_one(postgres: PrivatePostgres, query: str) -> bool:
    return bool(await fetch_value(postgres.url, query) == 1)
