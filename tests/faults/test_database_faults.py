"""A database that fails while the server runs: the caller learns little, the server goes on."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from maniflex import Context, Model
from maniflex.testing import client
from tests.kit.notes import Note, note_server
from tests.kit.postgres import terminate

REVEALING = ("sqlite", "postgres", "asyncpg", "full", "disk", "terminat", "administrator", "notes", "SELECT")


def assert_says_little(refused: httpx.Response) -> None:
    assert refused.status_code in (500, 503)
    error = refused.json()["error"]
    assert error["code"] in ("UNAVAILABLE", "DATABASE_ERROR", "TX_BEGIN_ERROR", "TX_COMMIT_ERROR")
    for word in REVEALING:
        assert word not in refused.text, refused.text


async def test_a_full_disk_refuses_writes_keeps_reads_and_is_forgotten_when_there_is_room(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = note_server()
    async with client(server, database=sqlite_url) as http:
        kept = (await http.post("/api/notes", json={"text": "kept"})).json()["data"]
        [[pages]] = [tuple(row.values()) for row in await server.raw_query("PRAGMA page_count")]
        await server.raw_exec(f"PRAGMA max_page_count = {pages}")

        too_much = {"text": "x" * 100_000}
        for answer in await asyncio.gather(*(http.post("/api/notes", json=too_much) for _ in range(5))):
            assert_says_little(answer)
        assert_says_little(await http.patch(f"/api/notes/{kept['id']}", json=too_much))
        assert (await http.get(f"/api/notes/{kept['id']}")).json()["data"] == kept
        assert (await http.get("/api/notes")).json()["meta"]["total"] == 1

        await server.raw_exec("PRAGMA max_page_count = 1000000")
        assert (await http.post("/api/notes", json=too_much)).status_code == 201
    assert "full" in caplog.text  # whoever reads the log learns why


async def test_an_outage_is_one_line_a_second_with_its_cause_and_without_a_traceback(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = note_server()
    now = 100.0
    async with client(server, database=sqlite_url) as http:
        server._seal().runtime.outages._clock = lambda: now
        await server.raw_exec("PRAGMA max_page_count = 1")
        caplog.clear()
        too_much = {"text": "x" * 100_000}
        for _ in range(50):
            assert_says_little(await http.post("/api/notes", json=too_much))
        now += 1
        assert_says_little(await http.post("/api/notes", json=too_much))
    first, second = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "full" in first.getMessage()
    assert "(and 49 more since" in second.getMessage()
    assert not first.exc_info
    assert not second.exc_info


async def test_a_full_disk_inside_a_transaction_rolls_all_of_it_back(sqlite_url: str) -> None:
    server = note_server()

    @server.action("POST", "/both")
    async def both(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Note).create(text="small")
            await ctx.db(Note).create(text="x" * 1_000_000)

    async with client(server, database=sqlite_url) as http:
        [[pages]] = [tuple(row.values()) for row in await server.raw_query("PRAGMA page_count")]
        await server.raw_exec(f"PRAGMA max_page_count = {pages + 20}")
        assert_says_little(await http.post("/api/both"))
        assert (await http.get("/api/notes")).json()["meta"]["total"] == 0
        assert (await http.post("/api/notes", json={"text": "small"})).status_code == 201


async def test_terminated_backends_are_replaced_and_no_request_stays_refused(postgres_url: str) -> None:
    server = note_server(pool_size=4)
    async with client(server, database=postgres_url) as http:
        for round_ in range(5):
            made = await asyncio.gather(*(http.post("/api/notes", json={"text": "x"}) for _ in range(8)))
            assert {answer.status_code for answer in made} == {201}
            assert await terminate(postgres_url) >= 1

            first = await asyncio.gather(*(http.get("/api/notes") for _ in range(8)))
            for refused in (answer for answer in first if answer.status_code != 200):
                assert_says_little(refused)
            after = await asyncio.gather(*(http.get("/api/notes") for _ in range(8)))
            assert {answer.json()["meta"]["total"] for answer in after} == {8 * (round_ + 1)}


async def test_a_backend_terminated_under_a_transaction_loses_the_transaction_and_nothing_else(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = note_server()

    @server.action("POST", "/unlucky")
    async def unlucky(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Note).create(text="lost")
            await terminate(postgres_url)
            await ctx.db(Note).create(text="lost too")

    async with client(server, database=postgres_url) as http:
        assert_says_little(await http.post("/api/unlucky"))
        assert (await http.post("/api/notes", json={"text": "next"})).status_code == 201
        listed = (await http.get("/api/notes")).json()["data"]
        assert [note["text"] for note in listed] == ["next"]
    assert [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_table_that_vanishes_is_a_500_without_its_name_and_the_rest_works(database_url: str) -> None:
    class Other(Model):
        text: str

    server = note_server()
    server.register(Other)
    async with client(server, database=database_url) as http:
        await server.raw_exec("DROP TABLE notes")
        for refused in (await http.get("/api/notes"), await http.post("/api/notes", json={"text": "x"})):
            assert_says_little(refused)
        assert (await http.post("/api/others", json={"text": "x"})).status_code == 201


async def test_a_server_whose_database_cannot_be_reached_does_not_start() -> None:
    server = note_server(database="postgresql://app:hunter2@127.0.0.1:1/none")

    with pytest.raises(Exception, match="cannot be reached") as refused:
        await server.start()

    assert "hunter2" not in repr(refused.value)
