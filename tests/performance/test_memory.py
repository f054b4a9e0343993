"""What clients ask for at once does not decide how much memory a server has, nor who else is answered."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import httpx
import pytest

from maniflex import Model, Server
from tests.kit.processes import serve_process

APP = """
from typing import Any

from maniflex import Config, Context, Model, Server, field

class Scroll(Model):
    name: str = field(filterable=True)
    text: str = field(default="", filterable=True)

class Note(Model):
    data: list[Any] = field(default_factory=list)

server = Server(Config.from_env())
server.register(Scroll, Note)

@server.action("POST", "/take", request=dict[str, Any])
async def take(ctx: Context) -> int:
    return len(ctx.body)
"""
ALLOWED_MB = 200
MEGABYTE = 1_000_000
PATIENCE = 5.0  # seconds for a read by id, on whatever machine this is; a quiet one needs a tenth of one

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


class Scroll(Model):
    name: str
    text: str = ""


async def _fill(database: str, rows: int) -> str:
    """Rows of 1 MB each; the id of one of them."""
    server = Server(database)
    server.register(Scroll)
    async with server.lifespan():
        for i in range(rows):
            await server.db(Scroll).create(name=f"scroll {i}", text=f"{i} " * (MEGABYTE // 5))
        small = await server.db(Scroll).create(name="small")
    return small.id


def _peak_mb(pid: int) -> float:
    """The most memory the process has had since `_forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _bodies() -> list[bytes]:
    """Three kinds of 4 MB: text, as many values as allowed, more than allowed."""
    room = 4 * 1024 * 1024 - 4096
    values = ",".join(['"' + "v" * 36 + '"'] * 99_000)
    return [
        json.dumps({"data": ["t" * room]}).encode(),
        f'{{"data":[{values}]}}'.encode(),
        b'{"data":[' + b"1," * (room // 2) + b"1]}",
    ]


async def _reads(http: httpx.AsyncClient, path: str, done: asyncio.Event) -> float:
    """Read one record over and over; the longest it took."""
    worst = 0.0
    while not done.is_set():
        begun = time.monotonic()
        answer = await http.get(path)
        worst = max(worst, time.monotonic() - begun)
        assert answer.status_code == 200, answer.text[:300]
    return worst


async def _crowd(url: str, path: str, lists: int, filters: int, bodies: int) -> tuple[float, dict[int, int]]:
    """All of it at once; the longest read by id, and how often each status was answered."""
    done = asyncio.Event()
    limits = httpx.Limits(max_connections=None)
    kinds = _bodies()
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as crowd,
        httpx.AsyncClient(base_url=url, timeout=120) as reader,
    ):
        reading = asyncio.create_task(_reads(reader, path, done))
        headers = {"content-type": "application/json"}
        answers = await asyncio.gather(
            *(crowd.get("/api/scrolls?limit=200") for _ in range(lists)),
            *(crowd.get(f"/api/scrolls?filter=text:contains:nobody{i}") for i in range(filters)),
            *(
                crowd.post(("/api/notes", "/api/take")[i % 2], content=kinds[i % 3], headers=headers)
                for i in range(bodies)
            ),
        )
        done.set()
        worst = await reading
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
    return worst, counts


async def _measure(
    database: str, directory: Path, rows: int, lists: int, filters: int, bodies: int
) -> tuple[float, float, dict[int, int]]:
    record = await _fill(database, rows)
    (directory / "app.py").write_text(APP)
    with serve_process(directory, DB_WRITE_URL=database) as served:
        pid = served.process.pid
        await _crowd(
            served.url, f"/api/scrolls/{record}", 1, 1, 3
        )  # everything is loaded once before it counts
        _forget_peak(pid)
        before = _peak_mb(pid)
        worst, counts = await _crowd(served.url, f"/api/scrolls/{record}", lists, filters, bodies)
        return _peak_mb(pid) - before, worst, counts


def _refusals_are_meant(counts: dict[int, int], lists: int) -> None:
    # Each list is more than an answer may be, or waited in vain behind the filters.
    assert counts.get(400, 0) + counts.get(503, 0) >= lists, counts
    assert counts.get(400), counts
    assert counts.get(413), counts
    assert counts.get(201), counts
    assert set(counts) <= {200, 201, 400, 413, 503, 504}, counts


async def test_large_lists_and_bodies_at_once_do_not_grow_the_server(
    database_url: str, tmp_path: Path
) -> None:
    growth, worst, counts = await _measure(database_url, tmp_path, rows=60, lists=4, filters=4, bodies=4)

    print(f"\n+{growth:.0f} MB, the longest read by id {worst:.2f} s, answers {counts}")
    _refusals_are_meant(counts, 4)
    assert growth < ALLOWED_MB
    assert worst < PATIENCE


@pytest.mark.long
async def test_a_crowd_of_heavy_requests_does_not_grow_the_server(database_url: str, tmp_path: Path) -> None:
    growth, worst, counts = await _measure(database_url, tmp_path, rows=200, lists=8, filters=40, bodies=20)

    _refusals_are_meant(counts, 8)
    print(f"\n+{growth:.0f} MB, the longest read by id {worst:.2f} s, answers {counts}")
    assert growth < ALLOWED_MB
    assert worst < 1.0
