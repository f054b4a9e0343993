"""SQLite under writes, overlapping reads and exports: its log stays short and reads stay fast.

The long run is ten minutes of that load. In between the same load runs with nobody to keep the log short, in
short turns, so that reads are compared on the same machine in the same minutes.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from maniflex import Model, Server, field
from maniflex.db.sqlite import checkpoints
from maniflex.testing import client
from tests.kit.waiting import PATIENCE

WRITES_PER_SECOND = 100
READERS = 8
ROWS = 5_000
BOUND = 16 * 1024 * 1024
TURNS, KEPT_SECONDS, LEFT_SECONDS = 20, 30, 10  # of the long run


class Parcel(Model, export=True):
    code: str = field(filterable=True, sortable=True, index=True)
    place: str = field(filterable=True, index=True)
    note: str


class Load:
    """What reads, exports and writes beside each other came to, over all turns."""

    def __init__(self, http: httpx.AsyncClient, ids: list[str], log: Path) -> None:
        self._http, self._ids, self._log, self._until = http, ids, log, 0.0
        self.longest_log = 0
        self.writes = self.exports = 0
        self.reads: list[float] = []  # how long each took

    async def run(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        readers = (self._read(number) for number in range(READERS))
        await asyncio.gather(self._write(), self._export(), self._export(), *readers)

    async def _write(self) -> None:
        began, earlier = time.monotonic(), self.writes
        while (now := time.monotonic()) < self._until:
            record = self._ids[self.writes * 7919 % len(self._ids)]
            body = {"place": f"shelf {self.writes}", "note": "x" * 500}
            assert (await self._http.patch(f"/api/parcels/{record}", json=body)).status_code == 200
            self.writes += 1
            self.longest_log = max(self.longest_log, os.stat(self._log).st_size)
            await asyncio.sleep(max(0.0, began + (self.writes - earlier) / WRITES_PER_SECOND - now))

    async def _read(self, number: int) -> None:
        while (began := time.monotonic()) < self._until:
            answer = await self._http.get(f"/api/parcels?sort=code&limit=20&page={number + 1}")
            assert answer.status_code == 200
            self.reads.append(time.monotonic() - began)
            await asyncio.sleep(0.02)

    async def _export(self) -> None:
        while time.monotonic() < self._until:
            answer = await self._http.get("/api/parcels/export?format=jsonl", timeout=PATIENCE)
            assert answer.status_code == 200
            self.exports += 1

    def p99(self) -> float:
        """How long all reads but one in a hundred took at most."""
        return sorted(self.reads)[int(len(self.reads) * 0.99)]

    def __str__(self) -> str:
        return (
            f"{self.writes} writes, {len(self.reads)} reads, {self.exports} exports;"
            f" log {self.longest_log:,} bytes; p99 of reads {self.p99() * 1000:.0f} ms"
        )


def empty_log(path: Path) -> None:
    """Let the next turn begin with an empty log."""
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def test_the_log_stays_short_under_writes_reads_and_exports(tmp_path: Path, long_mode: bool) -> None:
    server = Server()
    server.register(Parcel)
    path = tmp_path / "app.db"
    async with client(server, database=f"sqlite:///{path}") as http:
        records = [{"code": f"{n:06}", "place": "hall", "note": "x" * 500} for n in range(ROWS)]
        async with server.transaction() as tx:
            for record in records:
                await server.db(Parcel, tx=tx).create(**record)
        ids = [row["id"] for row in await server.raw_query("SELECT id FROM parcels")]
        kept, left = (Load(http, ids, tmp_path / "app.db-wal") for _ in range(2))
        if not long_mode:
            await kept.run(8)
        for _ in range(TURNS if long_mode else 0):
            await kept.run(KEPT_SECONDS)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoints, "LONG_BYTES", 1 << 60)  # no log is too long
                await left.run(LEFT_SECONDS)
            empty_log(path)
    print(f"\nkept short: {kept}")
    assert kept.longest_log < BOUND
    if long_mode:
        print(f"left alone: {left}")
        assert kept.p99() < 1.2 * left.p99()
