"""Slow requests and statements are logged with their shape, once, and never with a value."""

from __future__ import annotations

import asyncio
import logging

import pytest

from maniflex import Context, Model, Server, field
from maniflex._logging import MOST_SHAPES, PAUSE, SlowLog
from maniflex.db.statements import MOST_LETTERS, shape_of
from maniflex.testing import client
from tests.kit.http import created

AFTER = 0.05  # seconds


class Note(Model):
    text: str = field(filterable=True)


def slow_lines(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(f"slow {what}")]


async def test_a_slow_request_is_logged_once_by_its_route(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(slow_after=AFTER)

    @server.action("GET", "/wait/{seconds}")
    async def wait(ctx: Context) -> None:
        await asyncio.sleep(float(ctx.url_param("seconds")))  # the time itself is what is judged

    async with client(server, database=database_url) as http:
        await http.get("/api/wait/0.0?secret=hunter2")
        assert slow_lines(caplog, "request") == []
        for _ in range(3):
            await http.get("/api/wait/0.06?secret=hunter2", headers={"x-request-id": "r-1"})

    [line] = slow_lines(caplog, "request")
    assert line.endswith(" s: GET /api/wait/{seconds}")
    assert "hunter2" not in caplog.text


async def test_a_slow_statement_is_logged_by_its_shape(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(slow_after=1e-6)  # all are
    server.register(Note)
    async with client(server, database=database_url) as http:
        note = await created(http, "/api/notes", text="hunter2")
        caplog.clear()
        for _ in range(3):
            await http.get(f"/api/notes?filter=text:eq:hunter2&filter=id:eq:{note['id']}")
        async with server.transaction():
            await server.raw_query("SELECT 'hunter2', 4711, text FROM notes WHERE id = '4712'")

    lines = slow_lines(caplog, "statement")
    assert len(lines) == len(set(lines))
    assert any('"notes"' in line or "FROM notes" in line for line in lines)
    assert any("SELECT ?, ?, text FROM notes WHERE id = ?" in line for line in lines)
    for value in ("hunter2", "4711", "4712", note["id"]):
        assert value not in caplog.text


async def test_nothing_is_logged_when_it_is_switched_off(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(slow_after=0)
    server.register(Note)
    async with client(server, database=database_url) as http:
        await http.get("/api/notes")

    assert "slow" not in caplog.text


def test_a_kind_is_said_again_after_a_pause_with_how_often_it_was(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    slow = SlowLog(logging.getLogger("maniflex"), lambda: now)
    for now in (0.0, 1.0, 2.0, PAUSE, PAUSE + 1):  # noqa: B007  # the clock of the log
        slow.note("slow request", "GET /api/notes", 1.5)
    for number in range(2 * MOST_SHAPES):
        slow.note("slow request", f"GET /{number}", 1.5)

    assert [record.getMessage() for record in caplog.records[:2]] == [
        "slow request: 1.500 s: GET /api/notes",
        "slow request: 1.500 s (and 2 more since the last such line): GET /api/notes",
    ]
    assert len(slow._shapes) == MOST_SHAPES


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("SELECT  a,\n b FROM t WHERE x = $1", "SELECT a, b FROM t WHERE x = $1"),
        ("SELECT 'it''s', -1.5e3 FROM t2 WHERE a1 = 7", "SELECT ?, ? FROM t2 WHERE a1 = ?"),
        ("SELECT $tag$secret$tag$, ?1, :p2", "SELECT ?, ?1, :p2"),
        ("SELECT " + "a" * MOST_LETTERS, "SELECT " + "a" * (MOST_LETTERS - 7) + "…"),
    ],
)
def test_a_shape_has_no_values(text: str, shape: str) -> None:
    assert shape_of(text) == shape
