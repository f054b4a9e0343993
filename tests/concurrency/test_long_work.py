"""Work that takes long, is given up or never ends must not take the rest of the server with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import httpx
import pytest

from maniflex.testing import client
from tests.kit.shop import Signals, shop

READS = 50


@pytest.fixture
async def signals() -> Signals:
    return Signals()


async def reads_succeed(http: httpx.AsyncClient, path: str = "/api/items") -> None:
    answers = await asyncio.gather(*(http.get(path) for _ in range(READS)))
    assert {a.status_code for a in answers} == {200}


async def given_up(*tasks: asyncio.Task[httpx.Response]) -> None:
    """Cancel requests that are still running."""
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_slow_query_holds_up_no_other_reads(database_url: str, signals: Signals) -> None:
    async with client(shop(signals), database=database_url) as http:
        await http.post("/api/items", json={"name": "tea"})
        slow = asyncio.create_task(http.get("/api/slow"))
        await signals.reached.wait()

        await reads_succeed(http)

        await given_up(slow)
        await reads_succeed(http)


async def test_as_many_slow_queries_as_there_are_readers_still_let_writes_through(
    sqlite_url: str, signals: Signals
) -> None:
    async with client(shop(signals, sqlite_readers=2), database=sqlite_url) as http:
        slow = [asyncio.create_task(http.get("/api/slow")) for _ in range(2)]
        await signals.reached.wait()

        written = await asyncio.gather(*(http.post("/api/entries", json={"writer": n}) for n in range(20)))

        assert {a.status_code for a in written} == {201}
        await given_up(*slow)
        await reads_succeed(http)


async def test_requests_that_are_given_up_leave_every_connection_usable(database_url: str) -> None:
    server = shop(pool_size=2, read_pool_size=2, sqlite_readers=2)
    async with client(server, database=database_url) as http:
        item = (await http.post("/api/items", json={"name": "tea"})).json()["data"]
        path, random = f"/api/items/{item['id']}", Random(4)

        def request(n: int) -> asyncio.Task[httpx.Response]:
            method, where, body = (
                ("GET", path, None),
                ("POST", "/api/entries", {"writer": n}),
                ("POST", f"{path}/restock", None),
                ("GET", "/api/items?limit=5", None),
                ("PATCH", path, {"name": "x"}),
            )[n % 5]
            headers = {"if-match": "*"}
            return asyncio.create_task(http.request(method, where, json=body, headers=headers))

        abandoned = 0
        for start in range(0, 400, 10):
            tasks = [request(start + n) for n in range(10)]
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)  # a few turns of the event loop: somewhere in the middle
            for task in tasks:
                task.cancel()
            abandoned += sum(
                isinstance(outcome, asyncio.CancelledError)
                for outcome in await asyncio.gather(*tasks, return_exceptions=True)
            )
        assert abandoned >= 200

        await reads_succeed(http)
        before = (await http.get(path)).json()["data"]["stock"]
        answers = await asyncio.gather(*(http.post(f"{path}/restock") for _ in range(READS)))
        assert {a.status_code for a in answers} == {200}
        assert (await http.get(path)).json()["data"]["stock"] == before + READS


async def test_requests_that_run_into_the_deadline_leave_every_connection_usable(database_url: str) -> None:
    settings: dict[str, Any] = {"query_timeout": timedelta(milliseconds=100)}
    server = shop(pool_size=2, read_pool_size=2, sqlite_readers=2, **settings)
    async with client(server, database=database_url) as http:
        late = await asyncio.gather(*(http.get("/api/slow") for _ in range(20)))

        assert Counter((a.status_code, a.json()["error"]["code"]) for a in late) == {(504, "TIMEOUT"): 20}
        for _ in range(READS):
            assert (await http.get("/api/items")).status_code == 200


async def test_while_a_sqlite_transaction_is_open_readers_go_on_and_writers_are_told(
    sqlite_url: str, signals: Signals
) -> None:
    server = shop(signals, lock_timeout=timedelta(milliseconds=200))
    async with client(server, database=sqlite_url) as http:
        holder = asyncio.create_task(http.post("/api/hold"))
        await signals.reached.wait()

        await reads_succeed(http)
        assert (await http.get("/api/entries")).json()["meta"]["total"] == 0  # not committed, not seen
        refused = await asyncio.gather(*(http.post("/api/entries", json={"writer": n}) for n in range(5)))
        assert {(a.status_code, a.json()["error"]["code"]) for a in refused} == {(504, "TIMEOUT")}
        assert all(a.json()["error"]["retryable"] for a in refused)

        signals.release.set()
        assert (await holder).status_code == 200
        again = await asyncio.gather(*(http.post("/api/entries", json={"writer": n}) for n in range(5)))
        assert {a.status_code for a in again} == {201}
        assert (await http.get("/api/entries")).json()["meta"]["total"] == 6


async def test_a_writer_that_waits_for_a_transaction_is_served_when_it_ends(
    database_url: str, signals: Signals
) -> None:
    async with client(shop(signals), database=database_url) as http:
        holder = asyncio.create_task(http.post("/api/hold"))
        await signals.reached.wait()
        writers = [asyncio.create_task(http.post("/api/entries", json={"writer": n})) for n in range(5)]
        await reads_succeed(http)

        signals.release.set()

        assert (await holder).status_code == 200
        assert {a.status_code for a in await asyncio.gather(*writers)} == {201}
