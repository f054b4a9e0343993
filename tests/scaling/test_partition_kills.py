"""Processes that are killed while they partition tables, wherever they are with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from maniflex import Server
from maniflex._ids import first_id
from maniflex.background.partitions import layout, mover
from maniflex.background.partitions.layout import (
    CHECK,
    LATEST,
    MESSAGES,
    PATIENCE,
    RUNS,
    STEPS,
    PartitionBuilder,
    PartitionedTable,
    Period,
)
from maniflex.background.partitions.mover import TableMover, partition_tables
from maniflex.db.port import Adapter
from maniflex.db.short_locks import LockNotFree
from maniflex.errors import ConstraintViolation, SerializationFailure
from tests.kit.partitioned_server import (
    ALL,
    a_server,
    adapter_of,
    keeper_of,
    layout_of,
    partition,
    work_off,
)
from tests.kit.postgres import execute, fetch_value
from tests.kit.processes import run_program
from tests.kit.waiting import eventually

CHECKS = f"SELECT count(*) FROM pg_constraint WHERE conname = '{CHECK}' AND convalidated"
TURNS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%ATTACH%'"
    " AND datname = current_database()"
)
# Partitions a table by the week as if a table of more than so many bytes were large.
BUILDING = """
import asyncio, sys
from datetime import datetime
from maniflex import Server
from maniflex.background.partitions import layout
from maniflex.background.partitions.mover import partition_tables
from maniflex.background.partitions.layout import Period
from tests.kit.partitioned_server import ALL, a_server, adapter_of

_, url, table, now, size = sys.argv
layout.SMALL = int(size)

async def main():
    async with a_server(url) as server:
        tables = [one for one in ALL if one.name == table]
        await partition_tables(adapter_of(server), tables, Period.WEEK, datetime.fromisoformat(now))

asyncio.run(main())
"""
# Partitions all tables, and kills itself before the statement of this number; says how many there were.
MOVING = """
import asyncio, os, signal, sys
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.postgres.transaction import PostgresTx
from maniflex.background.partitions import layout
from tests.kit.partitioned_server import a_server, partition

url, last, layout.SMALL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
count = -1

def counted(send):
    async def sent(self, *arguments, **options):
        global count
        if count >= 0:
            count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return await send(self, *arguments, **options)
    return sent

for kind in (PostgresAdapter, PostgresTx):
    for name in ("execute", "write"):
        setattr(kind, name, counted(getattr(kind, name)))

async def main():
    global count
    async with a_server(url) as server:
        count = 0
        await partition(server)
    print(count, flush=True)

asyncio.run(main())
"""


def this_week() -> datetime:
    return Period.WEEK.next_start(datetime.now(UTC)) - timedelta(weeks=1)


async def move_all(server: Server) -> None:
    for table in ALL:
        await TableMover(adapter_of(server), table, PATIENCE).move()


@asynccontextmanager
async def nothing_attached(url: str, table: PartitionedTable) -> AsyncIterator[None]:
    """Nobody can attach a partition meanwhile."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE ONLY {table.name} IN SHARE UPDATE EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


async def kill_before_it_attaches(url: str, table: PartitionedTable, small: int) -> int:
    """A process that makes the partition of this week is killed in between; how many checks there are."""
    async with nothing_attached(url, table):
        with run_program(
            BUILDING, url, table.name, this_week() - LATEST - timedelta(minutes=5), small
        ) as one:

            async def is_waiting() -> bool:
                return int(await fetch_value(url, WAITING)) > 0

            await eventually(is_waiting, "a partition to be attached")
            one.kill()

    await eventually_free(url)
    return int(await fetch_value(url, CHECKS))


async def test_runs_are_stored_after_a_kill_between_the_check_and_the_partition(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await move_all(server)
        assert await kill_before_it_attaches(postgres_url, RUNS, small=-1) == 1

        run = await server.work.submit("part.ok")

        assert await fetch_value(postgres_url, CHECKS) == 0
        await work_off(server.work)
        assert (await server.work.get(run.id)).status == "succeeded"


async def test_a_transaction_that_meets_such_a_check_is_told_to_try_again_and_then_succeeds(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await move_all(server)
        assert await kill_before_it_attaches(postgres_url, MESSAGES, small=-1) == 1
        with pytest.raises(SerializationFailure):
            async with server.transaction():
                await server.outbox.enqueue("part.told", 1, key="k")
        async with server.transaction():
            await server.outbox.enqueue("part.told", 2, key="k")

        assert await server.outbox.drainer().drain() == 1


async def test_steps_are_stored_after_such_a_kill(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await move_all(server)
        assert await kill_before_it_attaches(postgres_url, STEPS, small=-1) == 1

        run = await server.work.submit("part.ok")
        await work_off(server.work)

        assert (await server.work.get(run.id)).status == "succeeded"
        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_step") == 1
        assert await fetch_value(postgres_url, CHECKS) == 0


async def test_the_next_beat_removes_a_check_that_a_killed_process_left(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await move_all(server)
        assert await kill_before_it_attaches(postgres_url, RUNS, small=-1) == 1
        await keeper_of(server).tick()
        assert await fetch_value(postgres_url, CHECKS) == 0


async def test_the_next_beat_removes_a_check_though_all_partitions_are_there(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        for table in (RUNS, STEPS):
            await execute(
                postgres_url,
                f"ALTER TABLE {table.default} ADD CONSTRAINT {CHECK} CHECK ({table.column} < 'b')",
            )
        await keeper_of(server).tick()
        assert await fetch_value(postgres_url, CHECKS) == 0


async def test_a_check_that_could_not_be_removed_goes_when_nobody_holds_the_table(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SMALL", -1)
    async with a_server(postgres_url) as server:
        await move_all(server)
        one = PartitionBuilder(adapter_of(server), RUNS, replace(PATIENCE, tries=3))
        reader = await asyncpg.connect(postgres_url)
        checked = asyncio.Event()

        async def hold_the_default() -> None:
            await eventually(lambda: _has_check(postgres_url), "a check that is set up")
            await reader.execute("BEGIN; LOCK TABLE workflow_run_default IN ACCESS SHARE MODE")
            checked.set()

        async with nothing_attached(postgres_url, RUNS):
            holding = asyncio.create_task(hold_the_default())
            with pytest.raises(LockNotFree):
                await one.build_ahead(this_week() - LATEST - timedelta(seconds=3), Period.WEEK)
            await holding
        assert checked.is_set()
        assert await fetch_value(postgres_url, CHECKS) == 1
        await reader.close()
        await keeper_of(server).tick()
        assert await fetch_value(postgres_url, CHECKS) == 0


async def _has_check(url: str) -> bool:
    return int(await fetch_value(url, CHECKS)) > 0


async def test_a_rule_of_somebody_else_is_not_taken_for_such_a_check(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        await execute(
            postgres_url, "ALTER TABLE workflow_run_default ADD CONSTRAINT ours CHECK (priority < 50)"
        )
        with pytest.raises(ConstraintViolation):
            async with server.transaction():
                await server.work.submit("part.ok", priority=50)


async def test_a_small_table_gets_a_partition_without_a_check(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await move_all(server)
        assert await kill_before_it_attaches(postgres_url, MESSAGES, small=layout.SMALL) == 0
        await server.work.submit("part.ok", idempotency_key="one")
        await server.outbox.enqueue("part.told", 1, outside_transaction=True)
        assert (await layout_of(server, MESSAGES)).partitions == ()


async def test_a_check_goes_before_its_period_comes_near(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the partition cannot be attached, or the default one takes long to read."""
    monkeypatch.setattr(layout, "SMALL", -1)
    async with a_server(postgres_url) as server:
        await move_all(server)
        one = PartitionBuilder(adapter_of(server), RUNS, PATIENCE)
        week = this_week()
        async with nothing_attached(postgres_url, RUNS):
            monkeypatch.setattr(layout, "AHEAD", 1)
            assert not (await one.build_ahead(week - LATEST - timedelta(seconds=1), Period.WEEK)).made
            assert not (await one.build_ahead(week - LATEST + timedelta(seconds=1), Period.WEEK)).made
        assert await fetch_value(postgres_url, CHECKS) == 0
        await server.work.submit("part.ok")


async def test_time_that_other_partitions_took_counts_for_a_check(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SMALL", -1)
    now = this_week() + timedelta(minutes=5)
    async with a_server(postgres_url) as server:
        await move_all(server)
        one = PartitionBuilder(adapter_of(server), RUNS, PATIENCE)
        times = [0.0, 0.0]  # at the beginning, and for the first one
        monkeypatch.setattr(layout, "monotonic", lambda: times.pop(0) if times else 10_800.0)

        assert len((await one.build_ahead(now, Period.HOUR)).made) == 1  # three are missing
        assert await fetch_value(postgres_url, CHECKS) == 0


async def test_partitions_begin_after_the_moment_when_their_table_was_moved(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [datetime.now(UTC)]

    async def time_of_database(adapter: Adapter) -> datetime:
        return moments[-1]

    monkeypatch.setattr(mover, "_database_time", time_of_database)
    async with a_server(postgres_url) as server:

        def tell(text: str) -> None:  # as if each step of it had taken two hours
            moments.append(moments[-1] + timedelta(hours=2))

        await partition_tables(adapter_of(server), [MESSAGES], Period.HOUR, tell=tell)
        assert len(moments) > 1
        first = (await layout_of(server, MESSAGES)).partitions[0]
        assert first.lower > first_id(moments[0] + timedelta(hours=2))


async def check_moved(server: Server, url: str) -> None:
    for table in ALL:
        assert len((await layout_of(server, table)).partitions) == 3
    assert await fetch_value(url, f"SELECT count(*) FROM pg_constraint WHERE conname = '{CHECK}'") == 0
    assert await fetch_value(url, "SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0
    assert (
        await fetch_value(
            url,
            "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '_p\\d{8,10}$'"
            " AND NOT relispartition",
        )
        == 0
    )


async def move_killed(url: str, last: int, small: int) -> int | None:
    """The number of statements that a move took; None when it was killed before the last one."""
    with run_program(MOVING, url, last, small) as one:
        lines = one.hear_rest()
    await eventually_free(url)
    return int(lines[0]) if lines else None


async def eventually_free(url: str) -> None:
    async def is_over() -> bool:
        return int(await fetch_value(url, TURNS)) == 0

    await eventually(is_over, "the end of the killed session")


async def kill_at(url: str, places: range, small: int) -> int:
    """Kill a move at each of these statements, and see that runs are stored and found each time."""
    async with a_server(url) as server:
        kept = await server.work.submit("part.ok", idempotency_key="one", group_key="g")
        await server.outbox.enqueue("part.told", 1, key="k", outside_transaction=True)
        for killed in places:
            if await move_killed(url, killed, small) is not None:
                break
            assert (await server.work.submit("part.ok", idempotency_key="one")).id == kept.id
            key = f"at{killed}"
            run = await server.work.submit("part.ok", idempotency_key=key)
            assert (await server.work.submit("part.ok", idempotency_key=key)).id == run.id
            await server.outbox.enqueue("part.told", killed, key="k", outside_transaction=True)
        await partition(server)
        await check_moved(server, url)
        await work_off(server.work)
        open_runs = "SELECT count(*) FROM workflow_run WHERE status <> 'succeeded'"
        assert await fetch_value(url, open_runs) == 0
        return await server.outbox.drainer().drain()


async def test_a_move_is_killed_at_some_of_its_statements_and_finished(postgres_url: str) -> None:
    assert await kill_at(postgres_url, range(40, 140, 50), layout.SMALL) > 1


@pytest.mark.long
@pytest.mark.parametrize("small", [layout.SMALL, -1])
async def test_a_move_is_killed_at_every_statement_and_finished(postgres_url: str, small: int) -> None:
    """Each killed move goes as far as the one before and one statement farther, on what that left."""
    await kill_at(postgres_url, range(1, 400), small)
