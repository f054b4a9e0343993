"""What operators read: few lines about an outage, and where it is; no needless statements at a start."""

from __future__ import annotations

import logging

import httpx
import pytest

from maniflex import Run, Server
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.private_postgres import private_postgres
from tests.kit.waiting import eventually


def a_server(database: str | PostgresAdapter) -> Server:
    server = Server(database, work_poll_interval=0.2, slow_after=0)
    server.register(Note)

    @server.work.handler("default.nothing")
    async def nothing(run: Run) -> None: ...

    server.schedules.add("often", cron="* * * * *", run="default.nothing")
    server.outbox.handler("told")(nothing)
    return server


async def test_an_outage_is_a_few_lines_without_tracebacks_that_say_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with private_postgres() as postgres:
        await postgres.start()
        server = a_server(postgres.url)
        with caplog.at_level(logging.INFO):
            async with client(server, database=None, background=True) as http:
                assert (await http.get("/api/notes")).status_code == 200
                await postgres.stop()
                caplog.clear()
                answers = [(await http.get("/api/notes")).status_code for _ in range(40)]
                answers.append((await http.get("/ready")).status_code)
                lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
                await postgres.start()
                await eventually(lambda: _is_back(http), "the database is back")
    assert set(answers) == {503}
    assert [record.getMessage() for record in lines if record.exc_info] == []
    assert len(lines) < 20
    assert any(f"127.0.0.1:{postgres.port}" in record.getMessage() for record in lines)


async def _is_back(http: httpx.AsyncClient) -> bool:
    return bool((await http.get("/api/notes")).status_code == 200)


class SeenStatements:
    """An observer that keeps the texts of all statements."""

    after = 0.0

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None) -> None:
        self.texts.append(text)


async def test_a_second_start_drops_and_makes_no_index(postgres_url: str) -> None:
    async with client(a_server(postgres_url), database=None):
        pass
    statements = SeenStatements()
    adapter = PostgresAdapter(postgres_url)
    adapter.observe_statements(statements)
    async with client(a_server(adapter), database=None):
        pass
    assert statements.texts
    assert [text for text in statements.texts if "INDEX" in text.upper() and "pg_" not in text] == []
