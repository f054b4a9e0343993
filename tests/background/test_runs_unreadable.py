"""SQLite takes anything for a text: one run that cannot be read fails by itself and holds up no other."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Run, Server
from maniflex._json import Unreadable, decode_stored
from maniflex.background.jobs import Job
from maniflex.background.outbox.handlers import MessageHandler
from maniflex.background.outbox.handlers import UnreadablePayload as NotReadable
from tests.kit.runs import no_pause, status, succeeding, working

BROKEN = ["x'ff00fe'", "CAST(x'7b22ff227d' AS TEXT)", "CAST('{' AS BLOB)"]


async def spoil(server: Server, id: str, value: str) -> None:
    await server.raw_exec(f"UPDATE workflow_run SET payload = {value} WHERE id = '{id}'")


async def about(server: Server, id: str) -> dict[str, Any]:
    [row] = await server.raw_query(
        f"SELECT status, attempt, last_error, lease FROM workflow_run WHERE id = '{id}'"
    )
    return row


@pytest.mark.parametrize("value", BROKEN)
async def test_a_payload_that_cannot_be_read_fails_its_run_alone(sqlite_url: str, value: str) -> None:
    server = Server(sqlite_url)
    seen = succeeding(server)
    async with working(server) as work:
        runs = await work.submit_many("default.ok", range(5))
        await spoil(server, runs[2].id, value)
        assert await work.worker().drain() == 5
        bad = await about(server, runs[2].id)
        assert (bad["status"], bad["attempt"], bad["lease"]) == ("failed", 1, None)
        assert "the payload does not fit" in bad["last_error"]
        assert [await status(work, run.id) for run in runs if run is not runs[2]] == ["succeeded"] * 4
    assert sorted(run.payload for run in seen) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ("x'ff00fe'", "\\xff\\0\\xfe"),
        ("CAST(x'22ff22' AS TEXT)", '"\\xff"'),
        ("'{bad'", "{bad"),
        ("CAST('{' AS BLOB)", "{"),
    ],
)
@pytest.mark.parametrize("handled", [True, False], ids=["handled", "unhandled"])
async def test_a_failed_run_can_be_read_and_managed_whatever_its_payload_was(
    sqlite_url: str, value: str, raw: str, handled: bool
) -> None:
    server = Server(sqlite_url)
    seen = succeeding(server, "default.ok" if handled else "default.other")
    async with working(server) as work:
        run = await work.submit("default.ok")
        await spoil(server, run.id, value)
        await work.worker("default.").drain()
        done = await work.get(run.id)
        assert (done.status, done.payload) == ("failed", {"$unreadable": raw})
        assert [one.id for one in await work.list()] == [run.id]
        assert (await work.retry(run.id)).status == "pending"
        await work.worker("default.").drain()
        assert (await status(work, run.id), seen) == ("failed", [])  # not called with another payload
        await work.delete(run.id)


async def test_bytes_that_are_json_are_a_payload_like_any_other(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    seen = succeeding(server)
    async with working(server) as work:
        run = await work.submit("default.ok")
        await spoil(server, run.id, """CAST('{"n": 1}' AS BLOB)""")
        await work.worker().drain()
        assert (await status(work, run.id), seen[0].payload) == ("succeeded", {"n": 1})


async def test_a_payload_that_cannot_be_read_has_a_dead_letter_without_it(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    letters: list[Any] = []

    @server.work.handler("default.bad", dead_letter="default.dead", backoff=no_pause)
    async def bad(run: Run) -> None: ...

    @server.work.handler("default.dead")
    async def dead(run: Run) -> None:
        letters.append(run.payload)

    async with working(server) as work:
        run = await work.submit("default.bad")
        await spoil(server, run.id, BROKEN[0])
        await work.worker().drain()
    [letter] = letters
    assert (letter["run_id"], letter["payload"].keys()) == (run.id, {"$unreadable"})


@pytest.mark.parametrize("value", BROKEN)
async def test_a_job_that_cannot_be_read_fails_alone(sqlite_url: str, value: str) -> None:
    server = Server(sqlite_url)
    seen: list[Any] = []

    @server.jobs.handler("mail")
    async def handle(job: Job) -> None:
        seen.append(job.payload)

    async with working(server) as work:
        ids = [await server.jobs.enqueue(Job("mail", n)) for n in range(3)]
        await spoil(server, ids[0], value)
        await work.worker().drain()
        done = await work.get(ids[0])
        assert done.status == "failed"
        assert "$unreadable" in done.payload  # type: ignore[operator]
    assert sorted(seen) == [1, 2]


HALF = r'{"a": "\ud800"}'
WHY = "a text in it is not valid Unicode: half of a character (a surrogate) stands alone"


@pytest.mark.parametrize("declared", [None, dict[str, str]], ids=["any", "typed"])
async def test_half_a_character_in_a_payload_is_called_that(server: Server, declared: Any) -> None:
    @server.work.handler("default.half", payload=declared)
    async def handle(run: Run) -> None: ...

    async with working(server) as work:
        run = await work.submit("default.half", {"a": "b"})
        await spoil(server, run.id, f"'{HALF}'")
        await work.worker().drain()
        bad = await about(server, run.id)
    assert (bad["status"], bad["last_error"]) == ("failed", f"the payload does not fit: {WHY}")


@pytest.mark.parametrize("stored", [HALF, r'"\udc00"', r'["\ud800", "and much more of it"]'])
def test_half_a_character_in_a_stored_value_is_called_that(stored: str) -> None:
    assert decode_stored(stored) == Unreadable(WHY)
    assert decode_stored(stored.encode()) == Unreadable(WHY)
    with pytest.raises(NotReadable, match="the payload is not JSON: a text in it is not valid Unicode"):
        MessageHandler.of("a.b", print).read(stored)


@pytest.mark.parametrize("stored", ["{", r'{"a": "\ud83d\ude00', r'{"a": "\ud800'])
def test_a_stored_value_that_ends_too_early_is_called_that(stored: str) -> None:
    assert decode_stored(stored) == Unreadable("Input data was truncated")
