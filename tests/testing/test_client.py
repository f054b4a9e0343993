"""The test kit leaves nothing to chance: no worker of its own, a clock to move, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Next, Run, Server
from maniflex.errors import ConfigError
from maniflex.testing import FakeClock, client
from tests.kit.notes import Note

START = datetime(2030, 1, 1, tzinfo=UTC)


def a_server() -> Server:
    server = Server()
    server.register(Note)

    @server.work.handler("note.write.v1")
    async def write(run: Run) -> None:
        await server.db(Note).create(text=run.payload["text"])

    @server.action("GET", "/time")
    async def time(ctx: Context) -> str:
        return ctx.now().isoformat()

    @server.action("GET", "/me")
    async def me(ctx: Context) -> str:
        return ctx.require_auth().user_id

    @server.pipeline.auth.middleware()
    async def header(ctx: Context, next: Next) -> None:
        if user := ctx.header("x-user"):
            ctx.auth = AuthInfo(user_id=user)
        await next()

    return server


async def test_nothing_works_by_itself_so_drain_does_it_all(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url):
        for text in ("a", "b"):
            await server.work.submit("note.write.v1", {"text": text})

        assert await server.work.worker().drain() == 2
        assert await server.db(Note).count() == 2


async def test_the_background_works_when_it_is_asked_for(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url, background=True):
        run = await server.work.submit("note.write.v1", {"text": "a"})

        assert (await server.work.wait(run.id)).status == "succeeded"


async def test_the_clock_of_a_block_is_that_of_stored_times_and_own_code(database_url: str) -> None:
    server, clock = a_server(), FakeClock(START)
    async with client(server, database=database_url, clock=clock) as http:
        clock.advance(timedelta(hours=1))
        note = (await http.post("/api/notes", json={"text": "x"})).json()["data"]
        answer = await http.get("/api/time")

        assert note["created_at"] == "2030-01-01T01:00:00Z"
        assert answer.json()["data"] == "2030-01-01T01:00:00+00:00"
        assert server.now() == clock.now()
    assert server.now() != clock.now()


async def test_nobody_is_401_where_an_identity_is_required() -> None:
    async with client(a_server()) as http:
        nobody = await http.get("/api/me")
        ada = await http.get("/api/me", headers={"x-user": "ada"})

    assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "UNAUTHORIZED")
    assert ada.json()["data"] == "ada"


async def test_a_schema_of_its_own_is_empty_and_gone_afterwards(postgres_url: str) -> None:
    server = a_server()
    for _ in range(2):
        async with client(server, database=postgres_url, own_schema=True) as http:
            await http.post("/api/notes", json={"text": "x"})
            assert await server.db(Note).count() == 1
    async with Server(postgres_url).lifespan() as plain:
        left = await plain.raw_query("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'maniflex_test%'")
        assert left == []


@pytest.mark.parametrize("database", [":memory:", "sqlite://", None])
async def test_a_schema_of_its_own_needs_postgresql(database: str | None) -> None:
    server = a_server()
    with pytest.raises(ConfigError, match="own_schema needs PostgreSQL"):
        async with client(server, database=database, own_schema=True):
            raise AssertionError("it started")
    async with client(server):  # and nothing is left of the attempt
        assert await server.db(Note).count() == 0


class Naive(FakeClock):
    def now(self) -> datetime:
        return super().now().replace(tzinfo=None)


@pytest.mark.parametrize("clock", [datetime.now, FakeClock, Naive(START), 0, START])
async def test_what_is_no_clock_is_refused_at_entry(database_url: str, clock: Any) -> None:
    server = a_server()
    before = server.now()
    with pytest.raises(ConfigError, match="clock: "):
        async with client(server, database=database_url, clock=clock):
            raise AssertionError("it started")
    with pytest.raises(ConfigError, match="clock: "):
        Server(database_url, clock=clock)
    assert server.now() >= before


def test_the_fake_clock_needs_no_http_library() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None; from maniflex.testing import FakeClock; print(FakeClock())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
