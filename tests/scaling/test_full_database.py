"""More processes than the database has connections for: requests wait, and every process gets its part."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx
import pytest

from maniflex import Context, Server
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.errors import Unavailable
from maniflex.sql.statement import Sql
from maniflex.testing import client
from tests.kit.postgres import execute
from tests.kit.private_postgres import PrivatePostgres, private_postgres
from tests.kit.processes import MANIFLEX, free_port, start_process
from tests.kit.waiting import eventually

APP = """
import os

from maniflex import Context, Server

server = Server(os.environ["DATABASE"], background=False, access_log=False, pool_size=10)

@server.action("GET", "/work")
async def work(ctx: Context) -> str:
    await ctx.raw_query("SELECT 1 AS done FROM pg_sleep(0.05)")
    return "done"
"""


def a_server(url: str, **settings: object) -> Server:
    server = Server(url, background=False, **settings)  # type: ignore[arg-type]  # checked by Config

    @server.action("GET", "/work")
    async def work(ctx: Context) -> str:
        await ctx.raw_query("SELECT 1 AS done FROM pg_sleep(0.02)")
        return "done"

    return server


class Callers:
    """Callers of one process, each of which asks again as soon as it is answered."""

    def __init__(self, http: httpx.AsyncClient, count: int) -> None:
        self._http = http
        self._count = count
        self.answers: Counter[int] = Counter()
        self.longest = 0.0

    async def run(self, until: float) -> None:
        await asyncio.gather(*(self._ask(until) for _ in range(self._count)))

    async def _ask(self, until: float) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            answer = await self._http.get("/api/work")
            self.longest = max(self.longest, time.monotonic() - began)
            self.answers[answer.status_code] += 1


def report(callers: list[Callers]) -> tuple[Counter[int], float]:
    total: Counter[int] = sum((one.answers for one in callers), Counter())
    longest = max(one.longest for one in callers)
    least = min(one.answers[200] for one in callers)
    print(f"\n{len(callers)} processes: {dict(total)}, longest {longest:.1f} s, least of a process {least}")
    return total, longest


async def test_processes_that_want_more_connections_than_there_are_share_them() -> None:
    with private_postgres(max_connections=12, superuser_reserved_connections=0) as postgres:
        await postgres.start()
        async with AsyncExitStack() as stack:
            callers = []
            for _ in range(5):  # each wants ten
                http = await stack.enter_async_context(client(a_server(postgres.url), database=None))
                callers.append(Callers(http, 6))
            until = time.monotonic() + 4
            await asyncio.gather(*(one.run(until) for one in callers))
    total, longest = report(callers)
    assert set(total) == {200}
    assert longest < 10  # pool_timeout
    fair = total[200] / len(callers)
    assert all(one.answers[200] > fair / 4 for one in callers)


async def occupy(postgres: PrivatePostgres, stack: AsyncExitStack, count: int) -> None:
    """Take so many connections away."""
    for _ in range(count):
        adapter = PostgresAdapter(postgres.url, pool_size=1)
        await adapter.open()
        stack.push_async_callback(adapter.close)


async def test_a_process_without_any_connection_waits_for_one(caplog: pytest.LogCaptureFixture) -> None:
    with private_postgres(max_connections=5, superuser_reserved_connections=0) as postgres:
        await postgres.start()
        async with AsyncExitStack() as others:
            await occupy(postgres, others, 5)
            adapter = PostgresAdapter(postgres.url, pool_size=3)
            opening = asyncio.create_task(adapter.open())
            with caplog.at_level(logging.WARNING, "maniflex.db"):
                await eventually(lambda: "no connection left" in caplog.text, "the pool waits")
            assert not opening.done()
            await others.aclose()
            await opening
            try:
                assert len(await adapter.fetch(Sql("SELECT 1"))) == 1
            finally:
                await adapter.close()


async def test_a_wait_ends_with_pool_timeout() -> None:
    with private_postgres(max_connections=5, superuser_reserved_connections=0) as postgres:
        await postgres.start()
        async with AsyncExitStack() as others:
            await occupy(postgres, others, 5)
            server = a_server(postgres.url, pool_timeout=1)
            began = time.monotonic()
            with pytest.raises(Unavailable):
                async with client(server, database=None):
                    pass
            assert 0.9 < time.monotonic() - began < 8


# Seven, one for quick reads; and one to listen, two for the leases and two for the queue.
@pytest.mark.parametrize(("background", "size"), [(True, 13), (False, 8)])
async def test_the_start_says_how_many_processes_fit(
    postgres_url: str, caplog: pytest.LogCaptureFixture, background: bool, size: int
) -> None:
    server = Server(postgres_url, pool_size=7)

    @server.work.handler("default.nothing")
    async def nothing(run: object) -> None: ...

    with caplog.at_level(logging.INFO, "maniflex"):
        async with client(server, database=None, background=background):
            pass
    [line] = [message for message in caplog.messages if "connections of each process" in message]
    assert f"up to {size} connections of each process" in line
    assert "processes" in line.partition("enough for")[2]


@pytest.mark.long
async def test_sixteen_processes_at_twice_the_load_that_sixty_connections_bear(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with ExitStack() as processes, private_postgres(max_connections=60) as postgres:
        await postgres.start()
        await execute(
            postgres.url, "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT CREATE ON SCHEMA public TO app"
        )
        url = postgres.url.replace(postgres.url.partition("@")[0], "postgresql://app:app")
        served = []
        for _ in range(16):
            port = free_port()
            command: list[str | Path] = [MANIFLEX, "run", "app:server", "--port", str(port)]
            served.append(processes.enter_context(start_process(command, port, cwd=tmp_path, DATABASE=url)))
        for one in served:
            await asyncio.to_thread(one.until_up)
        async with AsyncExitStack() as stack:
            callers = []
            for one in served:
                http = httpx.AsyncClient(base_url=one.url, timeout=60)
                callers.append(Callers(await stack.enter_async_context(http), 8))
            until = time.monotonic() + 60
            await asyncio.gather(*(one.run(until) for one in callers))
    total, longest = report(callers)
    assert set(total) == {200}
    assert longest < 10
