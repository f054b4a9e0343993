"""Behind PgBouncer in transaction mode: the suites of adapter and durable work, and restarts of both."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.errors import ConfigError
from maniflex.testing import client
from maniflex.testing.conformance import AdapterConformance
from tests.kit.acknowledged_load import AcknowledgedLoad
from tests.kit.network_tools import ToolProcess, pgbouncer
from tests.kit.postgres import POOLER, PostgresPool
from tests.kit.private_postgres import private_postgres
from tests.kit.processes import ROOT

# They look at sessions, need notifications or connect past the adapter.
BESIDE_THE_POINT = (
    "not plan and not notif and not listen and not hears and not polling and not terminat and not cuts"
    " and not hint and not session"
)
SHORT = {
    "runs": ["test_runs_claims.py"],
    "outbox": ["test_outbox.py"],
    "schedules": ["test_schedules.py"],
    "jobs": ["jobs/test_sql_queue.py"],
    "events": ["../events/test_feed.py", "../events/test_publishing.py"],
}
LONG = {
    "runs": ["test_runs_*.py", "test_worker.py", "test_steps.py", "test_saga*.py", "test_groups.py"],
    "outbox": ["test_outbox*.py"],
    "schedules": ["test_schedule*.py"],
    "jobs": ["jobs/test_jobs.py", "jobs/test_sql_queue.py", "jobs/test_status.py", "jobs/test_retention.py"],
    "events": [
        *("../events/test_feed.py", "../events/test_publishing.py", "../events/test_groups.py"),
        *("../events/test_run_ends.py", "../events/test_webhooks.py", "../events/test_scope_digests.py"),
    ],
}


@pytest.fixture(scope="module")
def pooler(postgres_pool: PostgresPool) -> Iterator[ToolProcess]:
    """PgBouncer before the server that all tests share."""
    with pgbouncer(os.environ["MANIFLEX_TEST_POSTGRES"]) as process:
        yield process


@pytest.fixture
def pooled_url(pooler: ToolProcess, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    direct = re.sub(r"(@[^:/]+):\d+", rf"\1:{pooler.port}", postgres_url)
    return f"{direct}?pgbouncer=true"


class TestAdapter(AdapterConformance):
    hears = False

    @pytest.fixture
    async def adapter(self, pooled_url: str) -> AsyncIterator[PostgresAdapter]:
        adapter = PostgresAdapter(pooled_url)
        await adapter.open()
        yield adapter
        await adapter.close()


@pytest.mark.parametrize("suite", list(SHORT))
def test_the_suite_of_durable_work_passes(pooler: ToolProcess, suite: str, long_mode: bool) -> None:
    patterns = (LONG if long_mode else SHORT)[suite]
    files = [path for pattern in patterns for path in sorted((ROOT / "tests" / "background").glob(pattern))]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", f"postgres and {BESIDE_THE_POINT}", *files],
        cwd=ROOT,
        env={**os.environ, POOLER: f"127.0.0.1:{pooler.port}"},
        capture_output=True,
        text=True,
    )
    print(f"\n{suite}: {run.stdout.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout[-5_000:]


async def test_a_pooler_that_nobody_told_us_of_is_named(pooled_url: str) -> None:
    adapter = PostgresAdapter(pooled_url.partition("?")[0])

    with pytest.raises(ConfigError, match=r"set pooler=True, or \?pgbouncer=true in the address"):
        await adapter.open()


async def test_restarts_of_pooler_and_server_lose_and_double_nothing(long_mode: bool) -> None:
    lasting, pause, per_second = (20 * 60.0, 20.0, 20) if long_mode else (5.0, 2.0, 10)
    with private_postgres() as postgres:
        await postgres.start()
        with pgbouncer(postgres.url) as pooler:
            load = AcknowledgedLoad(
                postgres.url.replace(f":{postgres.port}", f":{pooler.port}") + "?pgbouncer=true"
            )
            async with client(load.server, database=None, background=True) as http:
                loading = asyncio.create_task(load.run(http, per_second))
                until, restarts = time.monotonic() + lasting, 0
                while time.monotonic() < until:
                    await asyncio.sleep(pause)  # between two restarts
                    restarts += 1
                    await (postgres.restart() if restarts % 2 else asyncio.to_thread(pooler.restart))
                await load.until_written(10)
                load.end()
                await asyncio.wait_for(loading, 60)
                summary = await load.check()
    print(f"\n{restarts} restarts: {summary}")
