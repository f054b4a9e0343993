"""An export costs the same memory however large it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx
import pytest

from maniflex import Model, Server
from tests.kit.processes import serve_process

APP = """
from maniflex import Config, Model, Server, field

class Reading(Model, export=True, max_export_rows=2_000_000):
    sensor: str = field(filterable=True)
    place: str
    note: str
    value: float
    count: int
    valid: bool
    unit: str

server = Server(Config.from_env())
server.register(Reading)
"""
COLUMNS = 10
ALLOWED_MB = 64

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


class Reading(Model):
    sensor: str
    place: str
    note: str
    value: float
    count: int
    valid: bool
    unit: str


async def fill(database: str, rows: int) -> None:
    server = Server(database)
    server.register(Reading)
    if database.startswith("postgres"):
        numbers = f"SELECT i FROM generate_series(1, {rows}) AS i"
        now, flag = "now()", "i % 2 = 0"
    else:
        counted = f"SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}"
        numbers = f"WITH RECURSIVE n(i) AS ({counted}) SELECT i FROM n"
        now, flag = "'2026-01-01T00:00:00.123456Z'", "i % 2"
    columns = "id, sensor, place, note, value, count, valid, unit, created_at, updated_at"
    values = (
        f"CAST(i AS text), 'sensor-' || i, 'Gate, north', 'all quiet', i / 8.0, i, {flag}, 'mm', {now}, {now}"
    )
    async with server.lifespan():
        await server.raw_exec(f"INSERT INTO readings ({columns}) SELECT {values} FROM ({numbers}) AS numbers")


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def download(url: str, pid: int) -> tuple[int, float]:
    """How many lines came, and the most memory the server had while they did."""
    seen, most, chunks = 0, 0.0, 0
    async with httpx.AsyncClient(timeout=None) as http, http.stream("GET", url) as response:
        assert response.status_code == 200
        async for chunk in response.aiter_raw():
            seen += chunk.count(b"\n")
            chunks += 1
            if chunks % 50 == 0:
                most = max(most, resident_mb(pid))
    return seen, max(most, resident_mb(pid))


async def measure(database: str, directory: Path, rows: int) -> tuple[int, float]:
    await fill(database, rows)
    (directory / "app.py").write_text(APP)
    with serve_process(directory, DB_WRITE_URL=database) as served:
        url = f"{served.url}/api/readings/export"
        async with httpx.AsyncClient() as http:  # everything is loaded once before it counts
            header = (await http.get(f"{url}?filter=sensor:eq:sensor-1")).text.splitlines()[0]
            assert len(header.split(",")) == COLUMNS
        before = resident_mb(served.process.pid)
        lines, most = await download(url, served.process.pid)
    return lines, most - before


async def test_a_large_export_does_not_grow_the_server(database_url: str, tmp_path: Path) -> None:
    lines, growth = await measure(database_url, tmp_path, 100_000)
    assert lines == 100_001
    assert growth < ALLOWED_MB / 2


@pytest.mark.long
async def test_a_million_rows_do_not_grow_the_server(database_url: str, tmp_path: Path) -> None:
    lines, growth = await measure(database_url, tmp_path, 1_000_000)
    assert lines == 1_000_001
    assert growth < ALLOWED_MB, growth
