"""PostgreSQL crashes under runs with steps: what a step has done is remembered, and no step is done twice."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from maniflex import Server
from tests.kit.crowd import a_submitter, count, crowd
from tests.kit.private_postgres import private_postgres
from tests.kit.runs import working
from tests.kit.waiting import eventually

WORKERS = 3
STEPS = 5


async def done(server: Server) -> int:
    return await count(server, "status = 'succeeded'")


async def test_no_step_is_done_twice_while_the_database_crashes_again_and_again(
    tmp_path: Path, long_mode: bool
) -> None:
    runs, crashes = (4_000, 20) if long_mode else (240, 2)
    with private_postgres() as postgres:
        await postgres.start()
        server = a_submitter(postgres.url)
        with crowd(postgres.url, tmp_path) as workers:
            async with working(server) as work:
                await work.submit_many("default.steps", [{"steps": STEPS}] * runs)
                pids = [workers.start(lease=20, concurrency=4) for _ in range(WORKERS)]
                for crash in range(crashes):
                    # In the middle of things, however fast this machine is.
                    so_far = runs * (crash + 1) // (crashes + 1)
                    await eventually(partial(_reached, server, so_far), "the next crash", 600)
                    await postgres.crash()
                await eventually(lambda: _reached(server, runs), "the last run", 600)
                unfinished = await count(server, "status <> 'succeeded' OR lease IS NOT NULL")
                assert all(workers.is_alive(pid) for pid in pids)
        times = Counter((entry.run_id, entry.kind) for entry in workers.entries())
    again = {step: number for step, number in times.items() if number > 1}
    print(
        f"\n{crashes} crashes, {runs} runs, {len(times)} steps, {unfinished} unfinished, {len(again)} doubled"
    )
    assert (unfinished, len(times), again) == (0, runs * STEPS, {})


async def _reached(server: Server, number: int) -> bool:
    return await done(server) >= number
