"""Workers killed in the middle of their runs: nothing is lost, nothing stays stuck, nothing runs twice
whose owner lives."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from maniflex import Server
from maniflex.sql.codec import encode_datetime
from tests.kit.crowd import a_submitter, count, crowd
from tests.kit.runs import working

LEASE = 3.0
WORKERS = 4


async def stuck(server: Server) -> int:
    """Runs that nobody renewed for two leases and nobody took back."""
    limit = encode_datetime(datetime.now(UTC) - timedelta(seconds=LEASE))
    return await count(server, f"lease_until < '{limit}'")


async def test_killed_workers_lose_no_run_and_only_theirs_are_started_again(
    database_url: str, tmp_path: Path, long_mode: bool
) -> None:
    runs, kills, pause = (20_000, 60, 1.0) if long_mode else (1_500, 8, 0.6)
    server = a_submitter(database_url)
    chance = random.Random(4)
    most_stuck = 0
    with crowd(database_url, tmp_path) as workers:
        async with working(server) as work:
            for _ in range(WORKERS):
                workers.start(lease=LEASE)
            await work.submit_many("default.tick", [{"seconds": 0.12}] * runs)
            began = time.monotonic()
            while await count(server, "status <> 'succeeded'") and time.monotonic() - began < 600:
                await asyncio.sleep(pause * chance.uniform(0.7, 1.3))
                most_stuck = max(most_stuck, await stuck(server))
                if len(workers.killed) < kills or await count(server, "status = 'pending'"):
                    workers.send(chance.choice(workers.pids), signal.SIGKILL)
                    workers.start(lease=LEASE)
            took = time.monotonic() - began

            unfinished = await count(server, "status <> 'succeeded' OR lease IS NOT NULL")
            [settled] = await server.raw_query(
                "SELECT count(*) AS n, count(DISTINCT workflow_id) AS runs FROM workflow_event"
                " WHERE event_type = 'succeeded'"
            )
    starts = workers.starts()
    again = {id: entries for id, entries in starts.items() if len(entries) > 1}
    unfair = [e for entries in again.values() for e in entries[:-1] if e.pid not in workers.killed]
    print(
        f"\nkill sweep: {runs} runs, {len(workers.killed)} kills in {took:.1f} s; unfinished {unfinished},"
        f" never started {runs - len(starts)}, stuck {most_stuck}, started again {len(again)},"
        f" of those without a kill {len(unfair)}"
    )
    assert (unfinished, len(starts), most_stuck, unfair) == (0, runs, 0, [])
    assert settled == {"n": runs, "runs": runs}
    assert len(workers.killed) >= kills
    assert again
