"""PostgreSQL falls silent under load, again and again: no request and no run waits for it for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from maniflex import Run, Server
from maniflex.db.postgres import connection, pool
from maniflex.errors import RequestError
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.private_postgres import private_postgres
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

STATEMENT_TIMEOUT = 1.0
LEASE = 3.0
# The deadline of a statement, and what a loaded machine adds to it.
PATIENCE = STATEMENT_TIMEOUT + 10 + LEASE
CALLERS = 4


class Silence:
    """A database that can be told to say nothing, and to go on."""

    def __init__(self, url: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.url = url
        self.begin = begin
        self.end = end


@asynccontextmanager
async def silent_relay(postgres_url: str) -> AsyncIterator[Silence]:
    relay = Relay(postgres_url)
    await relay.listen()
    try:
        yield Silence(relay.url, relay.hush, relay.speak)
    finally:
        relay.speak()
        await relay.cut()


@asynccontextmanager
async def stopped_server(_: str) -> AsyncIterator[Silence]:
    with private_postgres() as postgres:
        await postgres.start()
        try:
            yield Silence(postgres.url, postgres.freeze, postgres.thaw)
        finally:
            postgres.thaw()


class Load:
    """Callers that read, write and submit runs without a pause, and what they were told."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self._server = server
        self._http = http
        self._over = False
        self.answers = 0
        self.refusals = 0
        self.longest = 0.0
        self.kept: list[str] = []
        self.runs: list[str] = []

    async def __call__(self, caller: int) -> None:
        number = 0
        while not self._over:
            number += 1
            began = time.monotonic()
            try:
                await self._one(caller, number)
            except RequestError:
                self.refusals += 1
            self.longest = max(self.longest, time.monotonic() - began)

    async def _one(self, caller: int, number: int) -> None:
        if caller == 0:
            run = await self._server.work.submit("default.note", {"number": number})
            self.runs.append(run.id)
            self.answers += 1
            return
        if caller == 1:
            answer = await self._http.post("/api/notes", json={"text": f"{number}"})
            if answer.status_code == 201:
                self.kept.append(answer.json()["data"]["id"])
        else:
            answer = await self._http.get("/api/notes?limit=5")
        assert answer.status_code in (200, 201, 500, 503, 504), answer.text
        self.answers += answer.status_code < 300
        self.refusals += answer.status_code >= 500

    def end(self) -> None:
        self._over = True

    async def goes_on(self) -> None:
        """Wait until the database answers again."""
        before = self.answers
        await eventually(lambda: self.answers > before + 2 * CALLERS, "answers", 60)


@pytest.mark.parametrize("way", [silent_relay, stopped_server], ids=["proxy", "SIGSTOP"])
async def test_a_database_that_falls_silent_holds_up_nobody_for_ever(
    postgres_url: str,
    long_mode: bool,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[str], AsyncIterator[Silence]],
) -> None:
    monkeypatch.setattr(connection, "ANSWER_GRACE", 1.0)
    monkeypatch.setattr(pool, "DRAIN_WITHIN", 1.0)
    rounds = 20 if long_mode else 2
    async with way(postgres_url) as silence:  # type: ignore[attr-defined]  # a context manager
        server = Server(
            silence.url,
            statement_timeout=STATEMENT_TIMEOUT,
            pool_timeout=timedelta(seconds=3),
            pool_size=4,
            work_lease=LEASE,
            work_poll_interval=0.2,
        )
        server.register(Note)

        @server.work.handler("default.note", max_attempts=50, backoff=lambda _: timedelta(0))
        async def note(run: Run) -> None:
            async with server.transaction():
                await server.db(Note).create(text="by a run")

        async with client(server, database=None, background=True) as http:
            load = Load(server, http)
            callers = [asyncio.create_task(load(caller)) for caller in range(CALLERS)]
            for _ in range(rounds):
                await load.goes_on()
                silence.begin()
                refusals = load.refusals
                # Everybody is told, although the database says nothing.
                await eventually(lambda: load.refusals >= refusals + CALLERS, "refusals", PATIENCE)  # noqa: B023
                silence.end()
            await load.goes_on()
            load.end()
            await asyncio.wait_for(asyncio.gather(*callers), PATIENCE)
            waiting = "SELECT count(*) AS n FROM workflow_run WHERE status <> 'succeeded'"
            await eventually(
                lambda: _is_zero(server, waiting),
                "the last run",
                PATIENCE + 30,
            )
            stored = {row["id"] for row in await server.raw_query("SELECT id FROM notes")}
            [row] = await server.raw_query("SELECT count(*) AS n FROM workflow_run WHERE lease IS NOT NULL")
    print(f"\nanswers {load.answers}, refusals {load.refusals}, longest wait {load.longest:.1f} s")
    assert set(load.kept) <= stored
    assert row["n"] == 0
    assert load.longest <= PATIENCE


async def _is_zero(server: Server, query: str) -> bool:
    [row] = await server.raw_query(query)
    return bool(row["n"] == 0)
