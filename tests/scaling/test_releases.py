"""Processes are replaced under load: no request fails, behind a balancer and with several workers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.network_tools import haproxy, with_changes
from tests.kit.processes import MANIFLEX, Served, accepts, free_port, serve_process, start_process
from tests.kit.waiting import eventually

APP = """
import os

from maniflex import Config, Context, Model, Server, field

class Note(Model):
    text: str = field(filterable=True)

server = Server(Config.from_env(database=os.environ["DATABASE"], background=False, access_log=False))
server.register(Note)

@server.action("GET", "/pid")
async def pid(ctx: Context) -> int:
    await ctx.db(Note).count()
    return os.getpid()
"""
CALLERS = 8


class Load:
    """Callers that keep their connections, as clients do, until so many requests were answered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = False
        self.answers: Counter[str] = Counter()
        self.pids: set[int] = set()

    async def run(self) -> None:
        await asyncio.gather(*(self._ask() for _ in range(CALLERS)))

    async def _ask(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
            while not self._over:
                try:
                    answer = await http.get("/api/pid")
                except httpx.TransportError as error:
                    self.answers[repr(error)] += 1
                else:
                    self.answers[str(answer.status_code)] += 1
                    if answer.status_code == 200:
                        self.pids.add(answer.json()["data"])
                await asyncio.sleep(0.02)  # the pace of the load

    async def until_answered(self, count: int) -> None:
        before = self.answers["200"]
        await eventually(lambda: self.answers["200"] >= before + count, "answers", 300)

    def end(self) -> None:
        self._over = True


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


async def test_a_process_told_to_stop_serves_on_for_the_drain_delay(app: Path) -> None:
    with serve_process(app, DATABASE="sqlite:///app.db", DRAIN_DELAY="2s") as served:
        async with httpx.AsyncClient(base_url=served.url) as http:
            assert (await http.get("/api/pid")).headers.get("connection") != "close"
            served.send(signal.SIGTERM)
            began = time.monotonic()
            await eventually(lambda: _is_unready(http), "503 of /ready")
            answer = await http.get("/api/pid")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert accepts(served.port)
        assert await asyncio.to_thread(served.ended) == 0
        assert time.monotonic() - began >= 1.9


async def _is_unready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/ready")).status_code == 503


async def test_a_second_signal_ends_the_drain_delay(app: Path) -> None:
    with serve_process(app, DATABASE="sqlite:///app.db", DRAIN_DELAY="60s") as served:
        served.send(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=served.url) as http:
            await eventually(lambda: _is_unready(http), "503 of /ready")
        served.send(signal.SIGTERM)
        assert await asyncio.to_thread(served.ended) == 0


def start(stack: ExitStack, app: Path, port: int, *options: str, **environment: str) -> Served:
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--port", str(port), *options]
    return stack.enter_context(start_process(command, port, cwd=app, **environment))


HELD = """
import os
import time
from pathlib import Path

if Path("hold").exists():
    Path("held").touch()
    while Path("hold").exists():
        time.sleep(0.05)
Path(f"begun-{os.getpid()}").touch()
"""


async def test_processes_stop_although_they_are_being_replaced(app: Path, sqlite_url: str) -> None:
    (app / "app.py").write_text(HELD + APP)
    with serve_process(app, "--workers", "2", DATABASE=sqlite_url) as served:
        await eventually(lambda: len([*app.glob("begun-*")]) == 3, "the parent and both processes")
        (app / "hold").touch()
        served.send(signal.SIGHUP)
        await eventually((app / "held").exists, "a new process starts, and takes its time")
        served.send(signal.SIGTERM)
        try:
            assert await asyncio.to_thread(served.ended) == 0
        finally:
            (app / "hold").unlink()


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=pytest.mark.long)])
async def test_a_rolling_restart_behind_haproxy_fails_no_request(
    app: Path, postgres_url: str, options: tuple[str, ...], long_mode: bool
) -> None:
    environment = {"DATABASE": postgres_url, "DRAIN_DELAY": "3s", "DB_POOL_SIZE": "4"}
    ports = [free_port() for _ in range(3)]
    front = free_port()
    changes = {":8000": f":{front}"} | {f":800{n}": f":{port}" for n, port in enumerate(ports, 1)}
    with ExitStack() as stack, haproxy(with_changes("haproxy.cfg", changes), front):
        processes = [start(stack, app, port, *options, **environment) for port in ports]
        for served in processes:
            await asyncio.to_thread(served.until_up)
        load = Load(f"http://127.0.0.1:{front}")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{front}") as http:
            await eventually(lambda: _is_answered(http), "HAProxy has servers")
        loading = asyncio.create_task(load.run())
        await load.until_answered(100)
        for served, port in zip(processes[: 3 if long_mode else 1], ports, strict=False):
            served.send(signal.SIGTERM)
            assert await asyncio.to_thread(served.ended) == 0
            new = start(stack, app, port, *options, **environment)
            await asyncio.to_thread(new.until_up)
            await load.until_answered(1_700 if long_mode else 100)
        load.end()
        await loading
    print(f"\n{dict(load.answers)} of {len(load.pids)} processes")
    assert set(load.answers) == {"200"}


async def _is_answered(http: httpx.AsyncClient) -> bool:
    return (await http.get("/api/pid")).status_code == 200


async def test_workers_are_replaced_on_sighup_and_no_request_fails(
    app: Path, postgres_url: str, long_mode: bool
) -> None:
    workers = 4 if long_mode else 2
    with serve_process(
        app, "--workers", str(workers), DATABASE=postgres_url, DRAIN_DELAY="500ms", DB_POOL_SIZE="4"
    ) as served:
        load = Load(served.url)
        loading = asyncio.create_task(load.run())
        await load.until_answered(200)
        before = set(load.pids)
        served.send(signal.SIGHUP)
        await eventually(lambda: len(load.pids - before) >= workers, "new processes answer", 120)
        await load.until_answered(5_000 - sum(load.answers.values()) if long_mode else 100)
        load.end()
        await loading
        served.send(signal.SIGTERM)
        assert await asyncio.to_thread(served.ended) == 0
    print(f"\n{dict(load.answers)} of {len(load.pids)} processes")
    assert set(load.answers) == {"200"}
