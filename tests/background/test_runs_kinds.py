"""However many types nobody handles, a claim looks at few of them, and finds what is handled here."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from maniflex import Server
from maniflex.background.runs.api import Work
from maniflex.testing.clock import FakeClock
from tests.kit.runs import succeeding, working


async def unhandled(server: Server, first: int, number: int, clock: FakeClock, later: timedelta) -> None:
    """One run each of so many types that nobody handles, all before `default.ok` in their order."""
    at = (clock.now() + later).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    last = first + number - 1
    numbers = f"WITH RECURSIVE c (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last})"
    moment = f"'{at}'" if server.config.database.startswith("sqlite") else f"CAST('{at}' AS timestamptz)"
    await server.raw_exec(
        "INSERT INTO workflow_run (id, type, status, priority, payload, attempt, max_attempts, run_at,"
        f" created_at, updated_at) {numbers}"
        f" SELECT 'other-' || n, 'default.a' || n, 'pending', 0, '{{}}', 0, 3, {moment}, {moment}, {moment}"
        " FROM c"
    )


@pytest.mark.parametrize("prefixes", [(), ("default.",)])
async def test_what_is_handled_is_found_among_any_number_of_other_types(
    server: Server, clock: FakeClock, prefixes: tuple[str, ...]
) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        await unhandled(server, 0, 250, clock, timedelta(hours=1))
        await work.submit("default.ok")
        assert await work.worker(prefixes).drain() == 1
        assert len(seen) == 1
        clock.advance(timedelta(hours=2))
        assert await work.worker(prefixes, 20).drain() == 250
        assert {run.last_error for run in await work.list(status="failed", limit=250)} == {
            "no_handler_registered"
        }


async def quickest_claim(work: Work) -> float:
    worker, times = work.worker(), []
    for _ in range(20):
        await work.submit("default.ok")
        began = time.perf_counter()
        assert len(await worker.claim(1)) == 1
        times.append(time.perf_counter() - began)
    return min(times)


async def test_types_nobody_handles_do_not_make_a_claim_dearer(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        await unhandled(server, 0, 200, clock, timedelta(hours=1))
        few = await quickest_claim(work)
        await unhandled(server, 200, 8_000, clock, timedelta(hours=1))
        many = await quickest_claim(work)
    assert many < 8 * few
