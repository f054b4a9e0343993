"""Partitions in odd company: other roles, views, bad clocks, two processes at once, rows left behind."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from maniflex._ids import first_id
from maniflex.background.partitions.keeper import PartitionRetention
from maniflex.background.partitions.layout import (
    PACKAGE,
    RUNS,
    Partition,
    PartitionLayout,
    Period,
    missing_partitions,
    take_turn,
)
from maniflex.errors import Conflict, DeclarationError
from maniflex.sql.statement import Dialect, Sql, load
from tests.kit.partitioned_server import (
    RUN,
    a_server,
    adapter_of,
    aged_partition,
    keeper_of,
    layout_of,
    partition,
    work_off,
)
from tests.kit.postgres import as_role, execute, fetch_value


async def count(url: str, table: str) -> int:
    return int(await fetch_value(url, f"SELECT count(*) FROM {table}"))


# -- what hangs on a table would stay with its old rows


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE VIEW open_runs AS SELECT id FROM workflow_run", "open_runs"),
        ("CREATE MATERIALIZED VIEW kept_runs AS SELECT id FROM workflow_run", "kept_runs"),
        ("CREATE TABLE mine (run text REFERENCES workflow_run (id))", "mine"),
        (
            "CREATE TABLE mine (id text PRIMARY KEY);"
            "ALTER TABLE workflow_run ADD FOREIGN KEY (about) REFERENCES mine",
            "mine",
        ),
        (
            "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
            "CREATE TRIGGER noted BEFORE INSERT ON workflow_run FOR EACH ROW EXECUTE FUNCTION noted()",
            "noted",
        ),
        ("CREATE PUBLICATION told FOR TABLE workflow_run", "told"),
    ],
)
async def test_a_table_that_others_hang_on_is_not_moved(
    postgres_url: str, statement: str, reason: str
) -> None:
    async with a_server(postgres_url) as server:
        await execute(postgres_url, statement)
        with pytest.raises(DeclarationError, match=reason):
            await partition(server)
        assert (
            await fetch_value(
                postgres_url, "SELECT relkind::text FROM pg_class WHERE relname = 'workflow_run'"
            )
            == "r"
        )
        await server.work.submit("part.ok", idempotency_key="one")


# -- roles


async def test_only_the_owner_of_the_tables_moves_them(postgres_url: str, role: str) -> None:
    async with a_server(as_role(postgres_url, role)) as server:
        await server.work.submit("part.ok")
    async with a_server(postgres_url) as other:
        with pytest.raises(DeclarationError, match=f"belongs to the role {role}"):
            await partition(other)
    async with a_server(as_role(postgres_url, role)) as server:
        await partition(server)
        await server.work.submit("part.ok", idempotency_key="one", group_key="g")
        await work_off(server.work)


async def test_a_role_that_may_only_use_the_tables_goes_on_using_them(
    postgres_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_server(postgres_url) as owner:
        await execute(
            postgres_url,
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};"
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
        )
        await partition(owner, datetime.now(UTC) - timedelta(days=10))
        async with a_server(as_role(postgres_url, role), auto_migrate=False) as server:
            with caplog.at_level(logging.WARNING):
                await keeper_of(server).tick()  # it may make no partition, and says so
            assert "the partitions of workflow_run could not be made" in caplog.text
            await partition(owner, datetime.now(UTC) - timedelta(days=1))
            await keeper_of(server).tick()
            run = await server.work.submit("part.ok", idempotency_key="one", group_key="g")
            assert (await server.work.submit("part.ok", idempotency_key="one")).id == run.id
            await work_off(server.work)
            assert (await server.work.get(run.id)).status == "succeeded"
            name = await fetch_value(postgres_url, "SELECT tableoid::regclass::text FROM workflow_run")
            assert name != "workflow_run_default"


# -- clocks


def test_a_clock_that_once_was_years_ahead_does_not_end_the_partitions() -> None:
    now = datetime(2026, 11, 17, 12, tzinfo=UTC)

    def days(*starts: datetime) -> PartitionLayout:
        parts = [
            Partition(f"p{n}", first_id(one), first_id(one + timedelta(days=1)))
            for n, one in enumerate(starts)
        ]
        return PartitionLayout(RUNS, tuple(parts))

    far = datetime(2038, 1, 1, tzinfo=UTC)
    names = [one.name for one in missing_partitions(days(far), Period.DAY, now)]
    assert names == ["workflow_run_p20261118", "workflow_run_p20261119", "workflow_run_p20261120"]
    there = days(datetime(2026, 11, 19, tzinfo=UTC), far)
    names = [one.name for one in missing_partitions(there, Period.DAY, now)]
    assert names == ["workflow_run_p20261118", "workflow_run_p20261120"]


def test_partitions_of_another_period_fill_what_is_free_and_overlap_nothing() -> None:
    now = datetime(2026, 11, 17, 12, tzinfo=UTC)  # a Tuesday
    hours = [datetime(2026, 11, 17, 13, tzinfo=UTC) + timedelta(hours=n) for n in range(3)]
    layout = PartitionLayout(
        RUNS,
        tuple(Partition(f"p{one:%H}", first_id(one), first_id(one + timedelta(hours=1))) for one in hours),
    )
    made = missing_partitions(layout, Period.WEEK, now)
    bounds = [(one.lower, one.upper) for one in made]
    monday = datetime(2026, 11, 23, tzinfo=UTC)
    assert bounds[0] == (first_id(hours[-1] + timedelta(hours=1)), first_id(monday))
    assert bounds[1] == (first_id(monday), first_id(monday + timedelta(weeks=1)))
    assert PartitionLayout(RUNS, (*layout.partitions, *made)).period is Period.WEEK


# -- two at once


async def test_two_commands_at_once_change_nothing_twice(postgres_url: str) -> None:
    async with a_server(postgres_url) as server, a_server(postgres_url) as other:
        run = await server.work.submit("part.ok", idempotency_key="one")
        answers = await asyncio.gather(partition(server), partition(other), return_exceptions=True)

        assert [type(one) for one in answers if one is not None] in ([], [Conflict])
        assert len((await layout_of(server)).partitions) == 3
        assert (await other.work.submit("part.ok", idempotency_key="one")).id == run.id


async def test_two_processes_drop_the_same_partitions_at_once(postgres_url: str) -> None:
    async with a_server(postgres_url) as server, a_server(postgres_url) as other:
        await partition(server)
        for days in (60, 50, 40):
            prefix = await aged_partition(postgres_url, days)
            await execute(
                postgres_url,
                f"{RUN} ('{prefix}1', 'part.ok', 'failed', now(), now() - interval '{days} days', NULL)",
            )
        before = datetime.now(UTC) - timedelta(days=30)
        for _ in range(5):
            await asyncio.gather(
                *(
                    PartitionRetention(adapter_of(one), RUNS).tables_to_prune(before)
                    for one in (server, other, server)
                )
            )
        assert not [one for one in (await layout_of(server)).partitions if "aged" in one.name]


async def test_a_change_that_takes_longer_than_a_transaction_may_be_idle_keeps_its_turn(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url, idle_in_transaction_timeout=timedelta(milliseconds=500)) as server:
        adapter = adapter_of(server)
        async with take_turn(adapter) as ours:
            assert ours
            await fetch_value(postgres_url, "SELECT pg_sleep(1)")  # a long statement of the change
            async with take_turn(adapter) as again:
                assert not again


# -- what belongs to a run that went with its partition


async def test_nothing_of_a_run_outlives_its_partition(postgres_url: str) -> None:
    """Not where its events and steps are in the default partition, and not its signals."""
    async with a_server(postgres_url) as server:
        await partition(server)
        start = datetime.now(UTC) - timedelta(days=60)
        lower, upper = first_id(start), first_id(start + timedelta(days=1))
        await execute(
            postgres_url,
            "CREATE TABLE workflow_run_aged PARTITION OF workflow_run"
            f" FOR VALUES FROM ('{lower}') TO ('{upper}')",
        )
        old, kept = f"{lower}-7000-8000-1", await server.work.submit("part.ok")
        await execute(
            postgres_url, f"{RUN} ('{old}', 'part.ok', 'failed', now(), now() - interval '60 days', 'k')"
        )
        for run in (old, kept.id):
            await execute(
                postgres_url,
                "INSERT INTO workflow_event (id, workflow_id, event_type)"
                f" VALUES ('e' || '{run}', '{run}', 'created');"
                "INSERT INTO workflow_step"
                " (id, workflow_id, name, undoable, compensated, created_at, updated_at)"
                f" VALUES ('s' || '{run}', '{run}', 'one', false, false, now(), now());"
                "INSERT INTO workflow_signal (id, workflow_id, name, created_at, updated_at)"
                f" VALUES ('g' || '{run}', '{run}', 'go', now(), now());",
            )
        [*_, pruner] = server.work.services()
        await pruner.tick()  # type: ignore[attr-defined]  # a loop

        assert await count(postgres_url, "workflow_run") == 1
        for table in ("workflow_step", "workflow_signal"):
            assert await count(postgres_url, table) == 1, table
        assert await count(postgres_url, f"workflow_event WHERE workflow_id = '{old}'") == 0


@pytest.mark.parametrize("name", ["prune_orphans", "prune_keys"])
async def test_what_is_left_of_dropped_runs_is_found_without_reading_all_runs(
    postgres_url: str, name: str
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        text = load(PACKAGE, "partitions", Dialect.POSTGRES)[name].bind(after="a", below="b", limit=10)
        async with adapter_of(server).transaction() as tx:
            rows = await tx.write(Sql(f"EXPLAIN {text.text}", text.params))

        assert not [row[0] for row in rows if "Anti Join" in row[0]]  # which may be one with a whole table
