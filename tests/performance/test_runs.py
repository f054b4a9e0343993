"""What claiming costs: the same however many runs are finished, not due yet or behind a busy group."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from maniflex import Server
from maniflex.background.leases import Held
from maniflex.background.runs.api import Work
from maniflex.background.runs.rows import ClaimCursor, ClaimedRun
from maniflex.background.runs.store import RunStore
from maniflex.background.runs.worker import RunWorker
from maniflex.sql.statement import Dialect, Sql
from tests.kit.runs import minutes, succeeding, working

MOST_TIMES_DEARER = {True: 1.2, False: 2.0}  # by long mode: the short one runs beside others
MOST_TIMES_BEHIND = 2.0  # more pages than the cache holds; reading all that waits would be a hundredfold
ROUNDS = 40
LIMIT = 10
BACKENDS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
)

OTHERS = {
    Dialect.SQLITE: """
        INSERT INTO workflow_run (id, type, status, priority, payload, attempt, max_attempts, run_at,
                                  created_at, updated_at)
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
        SELECT printf('00-%08d', n), 'default.ok', CASE n % 2 WHEN 0 THEN 'succeeded' ELSE 'pending' END, 0,
               '{}', 0, 3, CASE n % 2 WHEN 0 THEN '2020' ELSE '2999' END || '-01-01T00:00:00.000000Z',
               '2020-01-01T00:00:00.000000Z', '2020-01-01T00:00:00.000000Z' FROM n""",
    Dialect.POSTGRES: """
        INSERT INTO workflow_run (id, type, status, priority, payload, attempt, max_attempts, run_at,
                                  created_at, updated_at)
        SELECT '00-' || lpad(n::text, 8, '0'), 'default.ok',
               CASE n % 2 WHEN 0 THEN 'succeeded' ELSE 'pending' END, 0, '{}', 0, 3,
               CASE n % 2 WHEN 0 THEN '2020-01-01'::timestamptz ELSE '2999-01-01' END,
               '2020-01-01', '2020-01-01' FROM generate_series(1, $1::int) n""",
}


@dataclass(frozen=True)
class Bench:
    """Durable work and the queue a started worker would have."""

    server: Server
    work: Work
    queue: RunStore
    worker: RunWorker
    trail: ClaimCursor

    async def claim(self, limit: int = LIMIT) -> list[ClaimedRun]:
        return await self.worker.claim(limit, self.trail)

    async def add_others(self, count: int) -> None:
        """So many finished runs, and as many that are due much later."""
        await self.queue.adapter.execute(Sql(OTHERS[self.queue.adapter.dialect], (count * 2,)))

    async def settle(self) -> None:
        """What the database would do by itself sooner or later."""
        sqlite = self.queue.adapter.dialect is Dialect.SQLITE
        await self.queue.adapter.execute(Sql("ANALYZE" if sqlite else "VACUUM ANALYZE workflow_run", ()))

    async def cost(self) -> float:
        """CPU seconds of one claim: of the database's process, or of ours where it is the same."""
        await self.work.submit_many("default.ok", [{}] * (LIMIT * (ROUNDS + 10)))
        for _ in range(10):
            await self.claim()
        processes = await self.processes()
        before = spent(processes)
        for _ in range(ROUNDS):
            assert len(await self.claim()) == LIMIT
        return (spent(processes) - before) / ROUNDS

    async def processes(self) -> list[int]:
        """Where statements are worked on."""
        if self.queue.adapter.dialect is Dialect.SQLITE:
            return []
        return [row[0] for row in await self.queue.adapter.write(Sql(BACKENDS, ()))]

    async def plan(self, statement: str, **values: object) -> str:
        """How the queue's database goes about a statement, which is really run."""
        sqlite = self.queue.adapter.dialect is Dialect.SQLITE
        sql = self.queue.bind(statement, **values)
        head = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN (ANALYZE, COSTS OFF) "
        return "\n".join(
            str(row[-1]) for row in await self.queue.adapter.write(Sql(head + sql.text, sql.params))
        )


def spent(processes: Sequence[int]) -> float:
    """CPU seconds of these processes, or of ours; those on another machine cannot be asked."""
    if not processes:
        return time.process_time()
    files = [Path(f"/proc/{pid}/schedstat") for pid in processes]
    if not all(file.exists() for file in files):
        pytest.skip("the processes of PostgreSQL cannot be seen from here")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@asynccontextmanager
async def a_bench(url: str) -> AsyncIterator[Bench]:
    server = Server(url, work_events=False, statement_timeout=300)
    succeeding(server)
    async with working(server) as work:
        worker = work.worker()
        async with work.engine.store.steady() as store:
            worker.claimer.store = store
            yield Bench(server, work, store, worker, ClaimCursor())


async def test_finished_and_future_runs_make_no_claim_dearer(
    database_url: str, long_mode: bool, record_property: Callable[[str, object], None]
) -> None:
    async with a_bench(database_url) as bench:
        empty = min([await bench.cost() for _ in range(3)])
        await bench.add_others(1_000_000 if long_mode else 50_000)
        await bench.settle()
        full = await cost_within(bench, empty * MOST_TIMES_DEARER[long_mode])

    record_property("claim", f"{empty * 1e3:.3f} ms of CPU empty, {full * 1e3:.3f} ms behind the others")
    assert full <= empty * MOST_TIMES_DEARER[long_mode]


async def cost_within(bench: Bench, bound: float) -> float:
    """The cost of a claim; measured again if it is too high, because others share the machine."""
    cost = await bench.cost()
    for _ in range(3):
        if cost <= bound:
            break
        cost = min(cost, await bench.cost())
    return cost


async def test_what_waits_behind_a_busy_group_makes_no_claim_dearer(
    database_url: str, long_mode: bool, record_property: Callable[[str, object], None]
) -> None:
    async with a_bench(database_url) as bench:
        await bench.work.submit_many("default.ok", [{}] * 1_000, group_key="busy")
        [busy] = await bench.claim(LIMIT)
        assert busy.group_key == "busy"
        few = min([await bench.cost() for _ in range(3)])
        for _ in range(40 if long_mode else 4):
            await bench.work.submit_many("default.ok", [{}] * 5_000, group_key="busy")
        many = await cost_within(bench, few * MOST_TIMES_BEHIND)

    record_property("claim", f"{few * 1e3:.3f} ms of CPU behind a thousand, {many * 1e3:.3f} ms behind many")
    assert many <= few * MOST_TIMES_BEHIND


@pytest.mark.parametrize("analysed", [True, False])
async def test_a_worker_never_reads_the_whole_table(database_url: str, analysed: bool) -> None:
    async with a_bench(database_url) as bench:
        await bench.add_others(2_000)
        if analysed:  # at a moment when nothing is due
            await bench.settle()
        await bench.work.submit_many("default.ok", [{}] * 300)
        await bench.work.submit_many("default.ok", [{}] * 300, group_key="g")
        held = [run.held for run in await bench.claim(100)]
        plans = [await bench.plan(name, **values) for name, values in asked(bench, held).items()]

    for plan in plans:
        assert "Seq Scan on workflow_run" not in plan
        assert "SCAN workflow_run" not in plan
        assert "SCAN r\n" not in plan
        assert "SCAN c\n" not in plan


def asked(bench: Bench, held: Sequence[Held]) -> dict[str, dict[str, object]]:
    """What a worker says all day, with values."""
    now = bench.work.clock.now()
    later, name = now + minutes(1), "somebody"
    log: dict[str, object] = {"logged": False, "event": "0" * 24, "tail": 1}
    ids, leases, results = zip(*((h.id, h.lease, None) for h in held), strict=True)
    succeeded: dict[str, object] = {
        "ids": ids, "leases": leases, "results": results, "now": now,
        "rows": msgspec.json.encode(list(zip(ids, leases, results, strict=True))).decode(), **log,
    }  # fmt: skip
    sqlite = bench.queue.adapter.dialect is Dialect.SQLITE
    return {
        "claim": {
            "limit": LIMIT, "owner": name, "lease": name, "now": now, "until": later, "untils": "{}",
            "lows": ["default."], "highs": ["default/"], "ranges": '[["default.", "default/"]]',
            "types": (), "priorities": (), "run_ats": (), "last_ids": (), **log,
        },
        **({} if sqlite else {"succeed_unlocked": succeeded}),
        "succeed": succeeded,
        "expired": {"now": later},
        "reap": {
            "now": later, "forsaken": now, "limit": 500,
            "known": "[]" if sqlite else [], **log,
        },
    }  # fmt: skip
