"""Claims on partitions: as dear with many as with few, and no run that is due is passed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from maniflex import Server
from maniflex._ids import first_id, new_id
from maniflex.background.runs.rows import ClaimedRun, ClaimTerms
from maniflex.background.runs.store_postgres import FULL_LOOK_EVERY, PostgresRunStore
from maniflex.sql.statement import Sql
from tests.kit.partitioned_server import (
    RUN,
    InTransaction,
    a_server,
    adapter_of,
    aged_partition,
    keeper_of,
    layout_of,
    partition,
)
from tests.kit.postgres import execute, fetch_value

ROWS = "INSERT INTO workflow_run (id, type, status, priority, attempt, max_attempts, run_at, updated_at)"
LOCKED = """
SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'workflow_run%'
"""


def terms(limit: int = 10) -> ClaimTerms:
    now = datetime.now(UTC)
    return ClaimTerms([("part.ok", "part.ok!")], limit, "me", now, timedelta(minutes=1), {}, new_id())


async def claim(server: Server, limit: int = 10) -> list[ClaimedRun]:
    return await server.work.engine.store.claim(terms(limit))


def look_everywhere_again(server: Server, *, soon: bool) -> None:
    """As if the last look at all partitions was long ago, or just now."""
    store: Any = server.work.engine.store
    store._full_look_at = float("-inf") if soon else float("inf")


async def locks_of_a_claim_and_its_outcome(server: Server) -> tuple[int, int]:
    known = server.work.engine.store._known  # type: ignore[attr-defined]  # of PostgreSQL
    counts = []
    async with adapter_of(server).transaction() as tx:
        await tx.execute(Sql("SET LOCAL plan_cache_mode = force_generic_plan"))
        adapter: Any = InTransaction(tx)
        store = PostgresRunStore(adapter, known=known)
        store._full_look_at = float("inf")
        runs = await store.claim(terms())
        assert len(runs) == 10
        counts.append((await tx.write(Sql(LOCKED)))[0][0])
    async with adapter_of(server).transaction() as tx:
        await tx.execute(Sql("SET LOCAL plan_cache_mode = force_generic_plan"))
        adapter = InTransaction(tx)
        await PostgresRunStore(adapter, known=known).succeed([(run.held, None) for run in runs], terms().now)
        counts.append((await tx.write(Sql(LOCKED)))[0][0])
    return counts[0], counts[1]


async def test_a_claim_and_its_outcome_lock_as_many_tables_with_24_partitions_as_with_4(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))  # so that new runs have one
        counts = []
        for ages in ((100,), range(102, 142, 2)):
            for days in ages:
                prefix = await aged_partition(postgres_url, days)
                await execute(
                    postgres_url, f"{RUN} ('{prefix}1', 'part.ok', 'succeeded', now(), now(), NULL)"
                )
            await server.work.submit_many("part.ok", list(range(10)))
            await keeper_of(server).tick()
            counts.append(await locks_of_a_claim_and_its_outcome(server))

        assert counts[0] == counts[1]
        tables = await fetch_value(
            postgres_url, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'workflow_run'::regclass"
        )
        assert tables > 24


async def test_the_most_urgent_of_all_partitions_come_first_and_no_more_than_asked_for(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        before = await server.work.submit("part.ok", priority=3)
        await partition(server)
        ages = [await aged_partition(postgres_url, days) for days in (7, 5, 3)]
        for number, prefix in enumerate(ages):
            await execute(
                postgres_url,
                f"{ROWS}"
                f" SELECT '{prefix}' || g, 'part.ok', 'pending', g + {number}, 0, 3, now(), now()"
                " FROM generate_series(1, 4) g",
            )
        await keeper_of(server).tick()
        look_everywhere_again(server, soon=False)

        runs = await claim(server, 5)
        rest = await claim(server, 100)

        assert [run.priority for run in runs] == [6, 5, 5, 4, 4]
        assert [run.priority for run in rest] == [4, 3, 3, 3, 3, 2, 2, 1]
        assert before.id in {run.id for run in rest}
        assert await claim(server) == []


async def test_a_backlog_from_before_the_partitions_is_worked_off_without_a_pause(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        old = datetime.now(UTC) - timedelta(hours=2)
        await execute(
            postgres_url,
            f"{ROWS}"
            f" SELECT '{first_id(old)}-7000-8000-' || g, 'part.ok', 'pending', 0, 0, 3, now(), now()"
            " FROM generate_series(1, 30) g",
        )
        await partition(server)
        await keeper_of(server).tick()
        look_everywhere_again(server, soon=False)

        assert [len(await claim(server)) for _ in range(4)] == [10, 10, 10, 0]


async def test_runs_retried_in_a_finished_partition_are_found_and_then_taken_without_a_pause(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} SELECT '{prefix}' || g, 'part.ok', 'failed', 0, 3, 3, now(), now()"
            " FROM generate_series(1, 3) g",
        )
        await keeper_of(server).tick()
        for number in (1, 2, 3):
            await server.work.retry(f"{prefix}{number}")
        look_everywhere_again(server, soon=False)
        assert await claim(server) == []  # claims look there once a second
        assert FULL_LOOK_EVERY <= 1
        look_everywhere_again(server, soon=True)

        assert [len(await claim(server, 1)) for _ in range(4)] == [1, 1, 1, 0]


async def test_a_claim_goes_on_when_a_partition_it_names_is_dropped(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))
        await server.work.submit_many("part.ok", list(range(4)))
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} VALUES ('{prefix}1', 'part.ok', 'pending', 0, 0, 3, now(), now())",
        )
        await keeper_of(server).tick()
        look_everywhere_again(server, soon=False)
        [first, second] = await claim(server, 2)
        await execute(postgres_url, "DROP TABLE workflow_run_aged20")

        store = server.work.engine.store
        [third, _] = await claim(server, 2)
        assert await store.succeed([(third.held, None)], terms().now) == {third.id}
        layout = await layout_of(server)
        store.learn_partitions(layout, [one.name for one in layout.partitions])
        name = next(one.name for one in layout.partitions if one.lower <= second.id < one.upper)
        await execute(postgres_url, f"ALTER TABLE {name} RENAME TO workflow_run_of_another_name")
        later = second if first.id.startswith(prefix) else first
        assert await store.succeed([(later.held, None)], terms().now) == {later.id}
