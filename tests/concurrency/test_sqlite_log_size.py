"""SQLite under writes, overlapping reads and exports: its log stays short and reads stay fast.

Another program reads the file without a gap. A write comes when every reader has had an answer since the
write before, so that a fast machine writes hardly more between two looks at the log than a slow one. The
long run is some minutes of that load. In between the same load runs with nobody to keep the log short, in
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
from tests.kit.overlapping_reads import overlapping_reads
from tests.kit.waiting import PATIENCE

READERS = 8
ROWS = 5_000
BOUND = 16 * 1024 * 1024
NOTE = "x" * 45_000  # of a record that was written, on pages of its own
CHANGED = 50  # records, behind those on the pages that are read
WRITES = 600  # if nobody kept it short, they would take the log past the bound
TURNS, KEPT_WRITES, LEFT_WRITES = 20, 1_500, 500  # of the long run


class Parcel(Model, export=True):
    code: str = field(filterable=True, sortable=True, index=True)
    place: str = field(filterable=True, index=True)
    note: str


class Load:
    """What reads, exports and writes beside each other came to, over all turns."""

    def __init__(self, http: httpx.AsyncClient, ids: list[str], path: Path) -> None:
        self._http, self._ids, self._path = http, ids, path
        self._answers = [asyncio.Event() for _ in range(READERS)]  # since the last write
        self._has_ended = False
        self.longest_log = 0
        self.writes = self.exports = 0
        self.reads: list[float] = []  # how long each took

    async def run(self, writes: int) -> None:
        self._has_ended = False
        with overlapping_reads(self._path, "parcels"):
            async with asyncio.TaskGroup() as group:
                for number in range(READERS):
                    group.create_task(self._read(number))
                for _ in range(2):
                    group.create_task(self._export())
                await self._write(writes)
                self._has_ended = True

    async def _write(self, writes: int) -> None:
        for _ in range(writes):
            for answer in self._answers:
                await answer.wait()
                answer.clear()
            record = self._ids[-1 - self.writes % CHANGED]
            body = {"place": f"shelf {self.writes}", "note": NOTE}
            assert (await self._http.patch(f"/api/parcels/{record}", json=body)).status_code == 200
            self.writes += 1
            self.longest_log = max(self.longest_log, os.stat(f"{self._path}-wal").st_size)

    async def _read(self, number: int) -> None:
        while not self._has_ended:
            began = time.monotonic()
            answer = await self._http.get(f"/api/parcels?sort=code&limit=20&page={number + 1}")
            assert answer.status_code == 200
            self.reads.append(time.monotonic() - began)
            self._answers[number].set()

    async def _export(self) -> None:
        while not self._has_ended:
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
        kept, left = (Load(http, ids, path) for _ in range(2))
        if not long_mode:
            await kept.run(WRITES)
        for _ in range(TURNS if long_mode else 0):
            await kept.run(KEPT_WRITES)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoints, "LONG_BYTES", 1 << 60)  # no log is too long
                await left.run(LEFT_WRITES)
            empty_log(path)
    print(f"\nkept short: {kept}")
    assert kept.longest_log < BOUND
    if long_mode:
        print(f"left alone: {left}")
        assert kept.p99() < 1.2 * left.p99()
