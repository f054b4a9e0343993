"""Many writers on one SQLite file: all are served, nothing is lost, nobody hears of a lock."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from maniflex.testing import client
from tests.concurrency.app import shop
from tests.processes import Served, serving

ROOT = Path(__file__).parents[2]
APP = """
from maniflex import Config
from tests.concurrency.app import shop

server = shop(config=Config.from_env())
"""
WRITERS = 50
EACH = 40

# Another program on the same file: one small transaction after the other, until its input ends.
OUTSIDER = """
import select, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
connection.execute("CREATE TABLE IF NOT EXISTS outside (n INTEGER)")
print("ready", flush=True)
made = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO outside VALUES (?)", (made,))
    connection.execute("COMMIT")
    made += 1
print(made)
"""


async def crowd(http: httpx.AsyncClient, writers: range = range(WRITERS)) -> None:
    """Writers at once, each with forty entries; every answer is a 201 and no two are the same."""

    async def write(writer: int) -> list[httpx.Response]:
        return [
            await http.post("/api/entries", json={"writer": writer, "number": number}) for number in range(EACH)
        ]

    answers = [a for written in await asyncio.gather(*map(write, writers)) for a in written]
    refused = [a.text for a in answers if a.status_code != 201]
    assert not refused, Counter(refused)
    assert len({a.json()["data"]["id"] for a in answers}) == len(writers) * EACH


def connected(served: Served) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=WRITERS)
    return httpx.AsyncClient(base_url=served.url, limits=limits, timeout=60)


def stored(path: Path) -> set[tuple[int, int]]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT writer, number FROM entries").fetchall()
    finally:
        connection.close()
    assert len(rows) == WRITERS * EACH
    return set(rows)


EVERYTHING = {(writer, number) for writer in range(WRITERS) for number in range(EACH)}


async def test_fifty_writers_in_one_process_all_land(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with client(shop(), database=f"sqlite:///{path}") as http:
        await crowd(http)

    assert stored(path) == EVERYTHING


def one_more_server(directory: Path, database: Path) -> AbstractContextManager[Served]:
    directory.mkdir(exist_ok=True)
    (directory / "app.py").write_text(APP)
    return serving(directory, PYTHONPATH=str(ROOT), DB_WRITE_URL=f"sqlite:///{database}")


async def test_fifty_writers_of_a_serving_process_all_land(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with one_more_server(tmp_path, path) as served:
        async with connected(served) as http:
            await crowd(http)
        assert "locked" not in served.output

    assert stored(path) == EVERYTHING


async def test_two_serving_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with one_more_server(tmp_path / "a", path) as first, one_more_server(tmp_path / "b", path) as second:
        async with connected(first) as one, connected(second) as other:
            half = range(WRITERS // 2)
            await asyncio.gather(crowd(one, half), crowd(other, range(WRITERS // 2, WRITERS)))
            assert {(await http.get("/api/entries")).json()["meta"]["total"] for http in (one, other)} == {
                WRITERS * EACH
            }

    assert stored(path) == EVERYTHING


async def test_another_program_that_writes_to_the_file_delays_but_refuses_nobody(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with client(shop(), database=f"sqlite:///{path}") as http:
        outsider = subprocess.Popen(
            [sys.executable, "-c", OUTSIDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert outsider.stdout is not None
            assert outsider.stdout.readline() == "ready\n"
            await crowd(http)
            made, _ = outsider.communicate("stop\n", timeout=60)
        finally:
            outsider.kill()
            outsider.wait()

        assert int(made) > 0
        rows = sqlite3.connect(path).execute("SELECT count(*), count(DISTINCT n) FROM outside").fetchone()
        assert rows == (int(made), int(made))

    assert stored(path) == EVERYTHING
