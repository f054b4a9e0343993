"""SQLite under writes, overlapping reads and exports: its log stays short and reads stay fast."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import httpx

from maniflex import Model, Server, field
from maniflex.testing import client
from tests.kit.waiting import PATIENCE

WRITES_PER_SECOND = 100
READERS = 8
ROWS = 5_000
BOUND = 16 * 1024 * 1024


class Parcel(Model, export=True):
    code: str = field(filterable=True, sortable=True, index=True)
    place: str = field(filterable=True, index=True)
    note: str


class Load:
    """What reads, exports and writes beside each other came to."""

    def __init__(self, http: httpx.AsyncClient, ids: list[str], log: Path, until: float) -> None:
        self._http, self._ids, self._log, self._until = http, ids, log, until
        self.longest_log = 0
        self.writes = self.exports = 0
        self.reads: list[tuple[float, float]] = []  # when it began, how long it took

    async def run(self) -> None:
        readers = (self._read(number) for number in range(READERS))
        await asyncio.gather(self._write(), self._export(), self._export(), *readers)

    async def _write(self) -> None:
        began = time.monotonic()
        while (now := time.monotonic()) < self._until:
            record = self._ids[self.writes * 7919 % len(self._ids)]
            body = {"place": f"shelf {self.writes}", "note": "x" * 500}
            assert (await self._http.patch(f"/api/parcels/{record}", json=body)).status_code == 200
            self.writes += 1
            self.longest_log = max(self.longest_log, os.stat(self._log).st_size)
            await asyncio.sleep(max(0.0, began + self.writes / WRITES_PER_SECOND - now))

    async def _read(self, number: int) -> None:
        while (began := time.monotonic()) < self._until:
            answer = await self._http.get(f"/api/parcels?sort=code&limit=20&page={number + 1}")
            assert answer.status_code == 200
            self.reads.append((began, time.monotonic() - began))
            await asyncio.sleep(0.02)

    async def _export(self) -> None:
        while time.monotonic() < self._until:
            answer = await self._http.get("/api/parcels/export?format=jsonl", timeout=PATIENCE)
            assert answer.status_code == 200
            self.exports += 1

    def p99(self, *, last: bool) -> float:
        """Of the reads of the first or the last quarter, how long all but one in a hundred took at most."""
        reads = sorted(self.reads)
        quarter = reads[-len(reads) // 4 :] if last else reads[: len(reads) // 4]
        return sorted(took for _, took in quarter)[int(len(quarter) * 0.99)]


async def test_the_log_stays_short_under_writes_reads_and_exports(tmp_path: Path, long_mode: bool) -> None:
    server = Server()
    server.register(Parcel)
    async with client(server, database=f"sqlite:///{tmp_path}/app.db") as http:
        records = [{"code": f"{n:06}", "place": "hall", "note": "x" * 500} for n in range(ROWS)]
        async with server.transaction() as tx:
            for record in records:
                await server.db(Parcel, tx=tx).create(**record)
        ids = [row["id"] for row in await server.raw_query("SELECT id FROM parcels")]
        load = Load(http, ids, tmp_path / "app.db-wal", time.monotonic() + (600 if long_mode else 8))
        await load.run()
    print(
        f"\n{load.writes} writes, {len(load.reads)} reads, {load.exports} exports;"
        f" log {load.longest_log:,} bytes;"
        f" p99 of reads {load.p99(last=False) * 1000:.0f} ms, then {load.p99(last=True) * 1000:.0f} ms"
    )
    assert load.longest_log < BOUND
    if long_mode:
        assert load.p99(last=True) < 1.2 * load.p99(last=False)
