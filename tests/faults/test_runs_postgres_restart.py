"""PostgreSQL restarted under load: every submitted run finishes and the workers go on by themselves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from maniflex import Server
from maniflex.errors import RequestError
from tests.kit.crowd import a_submitter, count, crowd
from tests.kit.private_postgres import private_postgres
from tests.kit.runs import working
from tests.kit.waiting import eventually

WORKERS = 3


async def all_done(server: Server) -> bool:
    return await count(server, "status <> 'succeeded'") == 0


async def test_every_run_finishes_while_the_database_is_restarted_again_and_again(
    tmp_path: Path, long_mode: bool
) -> None:
    lasting, pause = (60.0, 3.0) if long_mode else (5.0, 2.0)
    submitted: list[str] = []
    refused = restarts = 0
    with private_postgres() as postgres:
        await postgres.start()
        server = a_submitter(postgres.url)
        with crowd(postgres.url, tmp_path) as workers:
            async with working(server) as work:
                pids = [workers.start(lease=5) for _ in range(WORKERS)]
                done = asyncio.Event()

                async def load() -> None:
                    nonlocal refused
                    number = 0
                    while not done.is_set():
                        try:
                            run = await work.submit(
                                "default.tick", {"seconds": 0.05}, idempotency_key=f"run-{number}"
                            )
                        except RequestError:  # the same key again: it may have been stored
                            refused += 1
                            await asyncio.sleep(0.05)  # a client that comes again
                        else:
                            submitted.append(run.id)
                            number += 1
                            await asyncio.sleep(0.01)  # so many submits a second, not a flood

                loading = asyncio.create_task(load())
                began = time.monotonic()
                while time.monotonic() - began < lasting:
                    await asyncio.sleep(pause)
                    await postgres.restart()
                    restarts += 1
                after = len(submitted)
                await eventually(lambda: len(submitted) > after + 10, "submits after the last restart")
                done.set()
                await loading
                await eventually(lambda: all_done(server), "the last run", 60)
                unfinished = await count(server, "status <> 'succeeded' OR lease IS NOT NULL")
                stored = await count(server, "true")
                assert all(workers.is_alive(pid) for pid in pids)
    starts = workers.starts()
    again = sum(len(entries) > 1 for entries in starts.values())
    print(
        f"\nrestarts: {restarts}, submitted {len(submitted)}, refused submits {refused},"
        f" unfinished {unfinished}, started again {again}"
    )
    assert (unfinished, stored, len(starts)) == (0, len(submitted), len(submitted))
    assert restarts >= 2
    assert len(set(submitted)) == len(submitted)
