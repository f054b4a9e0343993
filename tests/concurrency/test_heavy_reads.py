"""Many heavy reads at once: they queue and are refused in time, and a read by id does not wait for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx

from maniflex import Context, Model, Server
from maniflex.testing import client

HEAVY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT count(*) AS c FROM n"
)


class Item(Model):
    name: str


async def test_reads_by_id_are_answered_while_heavy_reads_queue(database_url: str, long_mode: bool) -> None:
    count = 3_000_000 if long_mode else 600_000
    server = Server(pool_size=4, sqlite_readers=3, pool_timeout=1.0)
    server.register(Item)

    @server.action("GET", "/heavy")
    async def heavy(ctx: Context) -> Any:
        async with asyncio.timeout(60):
            # The text of one caller in ten differs, as filters do.
            return await server.raw_query(HEAVY + f" WHERE {ctx.query_param('n')[-1:]} < 10", count)

    async with client(server, database=database_url) as http:
        item = (await http.post("/api/items", json={"name": "tea"})).json()["data"]
        path = f"/api/items/{item['id']}"
        for _ in range(3):
            assert (await http.get(path)).status_code == 200
        # On PostgreSQL raw_query is a transaction, on SQLite a read: both are what a heavy filter is made of.
        heavy_reads = asyncio.gather(*(http.get(f"/api/heavy?n={n}") for n in range(40)))
        longest, reads = 0.0, 0
        while not heavy_reads.done():
            began = time.monotonic()
            answer: httpx.Response = await http.get(path)
            longest, reads = max(longest, time.monotonic() - began), reads + 1
            assert answer.json()["data"] == item
        statuses = Counter(answer.status_code for answer in await heavy_reads)
        refused = [a for a in await heavy_reads if a.status_code == 503]
    print(f"\n{reads} reads by id, the longest {longest:.2f} s; heavy reads: {dict(statuses)}")
    assert set(statuses) <= {200, 503, 504}
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    # A second at a quiet machine; here a fraction of what the line of heavy reads takes.
    assert longest < 5
    assert reads >= 5
