"""Many writers on one SQLite file: all are served, nothing is lost, nobody hears of a lock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from maniflex.testing import client
from tests.kit.processes import IMPORTS, Served, run_program, serve_process
from tests.kit.shop import shop
from tests.kit.sockets import connected

WRITERS = 50
EACH = 40
EVERYTHING = {(writer, number) for writer in range(WRITERS) for number in range(EACH)}

APP = """
from maniflex import Config
from tests.kit.shop import shop

server = shop(config=Config.from_env())
"""

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

Post = Callable[[dict[str, int]], Awaitable[tuple[int, Any]]]


async def forty_entries(writer: int, post: Post) -> list[tuple[int, Any]]:
    return [await post({"writer": writer, "number": number}) for number in range(EACH)]


async def over_a_line(writer: int, served: Served) -> list[tuple[int, Any]]:
    async with connected(served.port) as own:
        return await forty_entries(writer, lambda entry: own.ask("POST", "/api/entries", entry))


async def all_acknowledged(*written: Awaitable[list[tuple[int, Any]]]) -> None:
    """Every answer of every writer is a 201, and no two are the same."""
    answers = [answer for answers in await asyncio.gather(*written) for answer in answers]
    assert Counter(status for status, _ in answers) == {201: WRITERS * EACH}, [
        body for status, body in answers if status != 201
    ][:3]
    assert len({body["data"]["id"] for _, body in answers}) == WRITERS * EACH


def one_more_server(directory: Path, database: Path) -> AbstractContextManager[Served]:
    directory.mkdir(exist_ok=True)
    (directory / "app.py").write_text(APP)
    return serve_process(directory, PYTHONPATH=IMPORTS, DB_WRITE_URL=f"sqlite:///{database}")


def all_stored(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT writer, number FROM entries").fetchall()
    return len(rows) == len(EVERYTHING) and set(rows) == EVERYTHING


async def test_fifty_writers_in_one_process_all_land(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with client(shop(), database=f"sqlite:///{path}") as http:

        async def post(entry: dict[str, int]) -> tuple[int, Any]:
            answer = await http.post("/api/entries", json=entry)
            return answer.status_code, answer.json()

        await all_acknowledged(*(forty_entries(writer, post) for writer in range(WRITERS)))

    assert all_stored(path)


async def test_fifty_writers_of_a_serving_process_all_land(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with one_more_server(tmp_path, path) as served:
        await all_acknowledged(*(over_a_line(writer, served) for writer in range(WRITERS)))
        assert "locked" not in served.output

    assert all_stored(path)


async def test_two_serving_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with one_more_server(tmp_path / "a", path) as first, one_more_server(tmp_path / "b", path) as second:
        both = (first, second)
        await all_acknowledged(*(over_a_line(writer, both[writer % 2]) for writer in range(WRITERS)))
        for served in both:
            async with connected(served.port) as own:
                _, page = await own.ask("GET", "/api/entries")
                assert page["meta"]["total"] == WRITERS * EACH

    assert all_stored(path)


async def test_another_program_that_writes_to_the_file_without_pause_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with one_more_server(tmp_path, path) as served, run_program(OUTSIDER, path) as outsider:
        assert outsider.hear() == "ready"
        await all_acknowledged(*(over_a_line(writer, served) for writer in range(WRITERS)))
        outsider.say("stop")
        made = outsider.hear()

    assert all_stored(path)
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT n) FROM outside").fetchone()
    assert found == (int(made), int(made))
    assert int(made) > 0
