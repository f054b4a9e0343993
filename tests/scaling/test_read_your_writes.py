"""A client, a request and a run find what they wrote, however far the replica is behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Context, Run, Server
from maniflex.db.postgres.replicated import REPLAYED, ReplicatedAdapter
from maniflex.middleware import db
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.postgres import execute, fetch_value
from tests.kit.replicas import Note, ReplicatedDatabase, server_with_replica
from tests.kit.waiting import eventually

HEADER = "x-database-position"
BEHIND = 5.0  # seconds


@asynccontextmanager
async def behind(
    pair: ReplicatedDatabase, server: Server, seconds: float = BEHIND, *, background: bool = False
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose replica has all tables, and shows what is written from now on later."""
    async with client(server, database=None, background=background) as http:
        await pair.servers.until_caught_up()
        await pair.servers.follow_after(seconds)
        yield http


async def post(http: httpx.AsyncClient, **headers: str) -> tuple[str, str]:
    """The path of a new note, and the position that its answer carried."""
    answer = await http.post("/api/notes", json={"text": "new"}, headers=headers)
    assert answer.status_code == 201
    return f"/api/notes/{answer.json()['data']['id']}", answer.headers[HEADER]


@pytest.mark.parametrize("delay", [0.0, BEHIND])
async def test_a_read_that_brings_the_position_of_a_write_finds_it(
    pair: ReplicatedDatabase, long_mode: bool, delay: float
) -> None:
    rounds = 1_000 if long_mode else 100
    async with behind(pair, server_with_replica(pair.primary, pair.replica), delay) as http:
        missing = stale = 0
        for _ in range(rounds):
            path, position = await post(http)
            stale += (await http.get(path)).status_code == 404
            missing += (await http.get(path, headers={HEADER: position})).status_code == 404
    print(f"\n{rounds} writes, {delay} s behind: {missing} not found with their position, {stale} without")
    assert missing == 0
    if delay:
        assert stale == rounds  # without it the replica answers


async def test_lists_counts_and_streams_show_the_write_too(pair: ReplicatedDatabase) -> None:
    async with behind(pair, server_with_replica(pair.primary, pair.replica)) as http:
        _, position = await post(http)
        for path in ("/api/notes", "/api/notes?filter=text:eq:new", "/api/notes/export?format=csv"):
            with_position = await http.get(path, headers={HEADER: position})
            without = await http.get(path)
            assert "new" in with_position.text, path
            assert "new" not in without.text, path


async def test_a_position_that_the_replica_has_passed_is_read_there(pair: ReplicatedDatabase) -> None:
    async with behind(pair, server_with_replica(pair.primary, pair.replica), 0) as http:
        _, position = await post(http)
        await pair.servers.until_caught_up()
        answer = await http.get("/api/where", headers={HEADER: position})
        assert answer.json()["data"] == "replica"
        for made_up in ("0/0", "0" * 32, position[:-1], "primary", "soon", ""):
            answer = await http.get("/api/where", headers={HEADER: made_up})
            assert answer.json()["data"] == "primary", made_up


async def test_processes_read_each_others_positions(pair: ReplicatedDatabase) -> None:
    async with (
        behind(pair, server_with_replica(pair.primary, pair.replica)) as one,
        client(server_with_replica(pair.primary, pair.replica), database=None) as other,
    ):
        path, position = await post(one)
        assert (await other.get(path, headers={HEADER: position})).status_code == 200


async def test_a_browser_keeps_the_position_in_a_cookie(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica, position_cookie="seen", read_max_lag=20)
    async with behind(pair, server) as http:
        answer = await http.post("/api/notes", json={"text": "new"})
        path = f"/api/notes/{answer.json()['data']['id']}"
        assert "Max-Age=30; Path=/; HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
        assert (await http.get(path)).status_code == 200
        http.cookies.clear()
        assert (await http.get(path)).status_code == 404


async def test_a_request_finds_what_it_wrote(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)

    @server.action("GET", "/visit")  # it writes although it is a GET
    async def visit(ctx: Context) -> list[str]:
        before = await where()
        note = await ctx.db(Note).create(text="a visit")
        read = await ctx.db(Note).read(note.id)
        async with ctx.transaction():
            other = await ctx.db(Note).create(text="another")
            ctx.after_commit(lambda: find(other.id))
        await asyncio.gather(find(other.id), find(note.id))
        return [before, read.text, await where()]

    async def find(note_id: str) -> None:
        finds.append((await server.db(Note).read(note_id)).id)

    async def where() -> str:
        [row] = await server.raw_query("SELECT pg_is_in_recovery() AS is_replica")
        return "replica" if row["is_replica"] else "primary"

    finds: list[str] = []
    async with behind(pair, server) as http:
        answer = await http.get("/api/visit")
        assert answer.json()["data"] == ["replica", "a visit", "primary"]
        assert len(finds) == 3
        assert HEADER in answer.headers


async def test_a_request_that_may_write_reads_from_the_primary(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)

    @server.action("POST", "/look")
    async def look(ctx: Context) -> int:
        return await ctx.db(Note).count()

    async with behind(pair, server) as http:
        path, _ = await post(http)
        answer = await http.post("/api/look")
        assert (answer.json()["data"], HEADER in answer.headers) == (1, True)
        assert (await http.patch(path, json={"text": "changed"})).status_code == 200
        refused = await http.post("/api/notes", json={})
        assert (refused.status_code, HEADER in refused.headers) == (422, False)


async def test_primary_is_a_block_whose_reads_are_current(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)

    @server.action("GET", "/counts")
    async def counts(ctx: Context) -> list[int]:
        outside = await ctx.db(Note).count()
        with server.primary():
            inside = await ctx.db(Note).count()
        async with server.primary():
            await server.db(Note).create(text="written inside")
        return [outside, inside, await ctx.db(Note).count()]

    async with behind(pair, server) as http:
        await post(http)
        answer = await http.get("/api/counts")
        assert answer.json()["data"] == [0, 1, 2]
        assert HEADER in answer.headers


async def test_a_run_finds_what_it_was_submitted_for_and_what_it_wrote(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)

    @server.work.handler("default.read", max_attempts=1)
    async def read(run: Run) -> dict[str, Any]:
        note = await server.db(Note).read(run.payload["id"])
        own = await server.db(Note).create(text="by the run")
        return {"texts": [note.text, (await server.db(Note).read(own.id)).text]}

    @server.action("POST", "/order")
    async def order(ctx: Context) -> str:
        async with ctx.transaction():
            note = await ctx.db(Note).create(text="ordered")
            run = await server.work.submit("default.read", {"id": note.id})
        return run.id

    async with behind(pair, server, background=True) as http:
        run_id = (await http.post("/api/order")).json()["data"]
        run = await server.work.wait(run_id, 30)
        assert run.result == {"texts": ["ordered", "by the run"]}


async def test_limits_that_write_in_every_request_leave_its_reads_on_the_replica(
    pair: ReplicatedDatabase,
) -> None:
    server = server_with_replica(pair.primary, pair.replica)
    server.pipeline.db.register(db.rate_limit(100))
    async with behind(pair, server) as http:
        path, position = await post(http)
        assert (await http.get(path)).status_code == 404
        assert (await http.get(path, headers={HEADER: position})).status_code == 200


async def test_a_cache_keeps_nothing_that_is_behind(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)
    server.pipeline.db.register(db.cache_query(ttl=300), models=[Note])
    async with behind(pair, server) as http:
        assert (await http.get("/api/notes")).json()["data"] == []
        await post(http)
        assert len((await http.get("/api/notes")).json()["data"]) == 1


async def test_a_replica_too_far_behind_is_not_read_from(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica, read_max_lag=1)
    async with behind(pair, server, 30) as http:
        path, _ = await post(http)

        async def is_shown() -> bool:
            return (await http.get(path)).status_code == 200

        assert not await is_shown()
        await eventually(is_shown, "reads go to the primary", 10)
        numbers = (await http.get("/metrics")).text
        assert "maniflex_replica_up 1.0" in numbers
        lag = float(numbers.split("maniflex_replica_lag_seconds ")[-1].split()[0])
        assert 1 < lag < 30


async def test_a_primary_that_nobody_writes_to_makes_no_replica_late(pair: ReplicatedDatabase) -> None:
    """A segment that is switched, as `archive_timeout` does: the next record stands behind a header then."""
    database = ReplicatedAdapter(pair.primary, read_url=pair.replica)
    await database.open()
    try:
        await execute(pair.primary, "SELECT txid_current()")
        await execute(pair.primary, "SELECT pg_switch_wal()")
        _, position = await database.position()

        async def has_passed() -> bool:
            return bool(await fetch_value(pair.replica, REPLAYED.text) >= position)

        await eventually(has_passed, "the replica is known to have everything", 8)
    finally:
        await database.close()


async def test_a_task_of_the_server_reads_from_the_primary(pair: ReplicatedDatabase) -> None:
    server = server_with_replica(pair.primary, pair.replica)
    places: asyncio.Queue[bool] = asyncio.Queue()

    async def look() -> None:
        [row] = await server.raw_query("SELECT pg_is_in_recovery() AS is_replica")
        places.put_nowait(row["is_replica"])

    @server.action("GET", "/begin")
    async def begin(ctx: Context) -> None:
        await look()
        server.go(look)

    async with behind(pair, server, 0) as http:
        assert (await http.get("/api/begin")).status_code < 300
        assert [await asyncio.wait_for(places.get(), 10) for _ in range(2)] == [True, False]


async def test_on_one_database_the_same_code_runs_and_no_header_is_sent(database_url: str) -> None:
    server = Server(database_url, position_cookie="seen")
    server.register(Note)

    @server.action("GET", "/visit")
    async def visit(ctx: Context) -> int:
        async with server.primary():
            await server.db(Note).create(text="a visit")
        with server.primary():
            return await ctx.db(Note).count()

    async with client(server, database=None) as http:
        assert (await http.get("/api/visit")).json()["data"] == 1
        answer = await http.post("/api/notes", json={"text": "new"})
        assert HEADER not in answer.headers
        assert "set-cookie" not in answer.headers
        path = f"/api/notes/{answer.json()['data']['id']}"
        assert (await http.get(path, headers={HEADER: "soon"})).status_code == 200


async def test_what_durable_work_knows_comes_from_the_primary(pair: ReplicatedDatabase) -> None:
    clock = FakeClock()
    server = server_with_replica(pair.primary, pair.replica, clock=clock)

    @server.work.handler("default.ok", backoff=lambda attempt: timedelta(0))
    async def ok(run: Run) -> None: ...

    async with behind(pair, server):
        work = server.work
        lost = await work.submit("default.ok")
        await work.worker().claim(1)
        clock.advance(timedelta(minutes=1))
        assert await work.worker().drain() == 1  # it took back what ran out
        assert (await work.wait(lost.id, 5)).attempt == 2
        later = await work.submit("default.ok", delay=timedelta(minutes=5))
        assert (await work.cancel(later.id)).status == "cancelled"
        assert (await work.retry(later.id)).status == "pending"
        assert {run.id for run in await work.list()} == {lost.id, later.id}
        events = await work.events(later.id)
        assert [event.event_type for event in events] == ["created", "cancelled", "retried"]
