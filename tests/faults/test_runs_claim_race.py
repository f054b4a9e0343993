"""Many greedy claimers: no run is ever claimed twice, and none is left."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.kit.crowd import a_submitter, count, crowd
from tests.kit.runs import working


async def test_no_run_is_claimed_twice(database_url: str, tmp_path: Path, long_mode: bool) -> None:
    runs = 20_000 if long_mode else 2_000
    claimers = 4 if database_url.startswith("sqlite") else 16
    server = a_submitter(database_url)
    with crowd(database_url, tmp_path) as workers:
        async with working(server) as work:
            for priority in range(4):
                await work.submit_many("default.tick", range(runs // 8), priority=priority)
                await work.submit_many("default.pause", range(runs // 8), priority=priority)
            began = time.monotonic()
            for _ in range(claimers):
                workers.start(only_claim=True, lease=3600)
            for pid in list(workers.pids):
                workers.until_gone(pid)
                workers.pids.remove(pid)
            took = time.monotonic() - began
            leased = await count(server, "status = 'leased' AND attempt = 1")
    claims = Counter(entry.run_id for entry in workers.entries("claim"))
    doubles = sum(number - 1 for number in claims.values())
    takers = {entry.pid for entry in workers.entries("claim")}
    print(
        f"\nclaim race: {claimers} claimers, {runs} runs in {took:.1f} s, doubles {doubles},"
        f" {len(takers)} took some"
    )
    assert (doubles, len(claims), leased) == (0, runs, runs)
    assert len(takers) > 1
