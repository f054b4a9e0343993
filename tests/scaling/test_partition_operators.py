"""Partitioned databases in the hands of operators: copies, checks, roles, tables put aside, open work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from maniflex import Server
from maniflex._ids import first_id
from maniflex.background.outbox.dispatcher import MessagePruner
from maniflex.background.partitions.keeper import PartitionRetention
from maniflex.background.partitions.layout import MESSAGES, RUNS, STEPS, Period
from maniflex.background.partitions.mover import partition_tables
from maniflex.background.runs.claimer import Pruner
from maniflex.errors import ManiflexError
from maniflex.testing import FakeClock
from tests.kit.partitioned_server import (
    ALL,
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
from tests.kit.processes import run_command

APP = """
import os
from maniflex import Server

server = Server(os.environ["DATABASE"])

@server.work.handler("part.ok")
async def succeed(run): ...

@server.outbox.handler("part.told")
async def tell(message): ...
"""


# -- copies and checks


@pytest.mark.parametrize("is_target_partitioned", [False, True])
def test_a_partitioned_database_is_copied_and_its_copy_works(
    tmp_path: Path, new_postgres_url: Callable[[], str], is_target_partitioned: bool
) -> None:
    (tmp_path / "app.py").write_text(APP)
    source, target = new_postgres_url(), new_postgres_url()

    async def fill() -> None:
        async with a_server(source) as server:
            await server.work.submit("part.ok", idempotency_key="before")
            await partition(server, datetime.now(UTC) - timedelta(days=1))
            await server.work.submit_many("part.ok", list(range(20)))
            await server.outbox.enqueue_many("part.told", [1, 2], keys=["k", "k"], outside_transaction=True)
        if is_target_partitioned:
            async with a_server(target) as server:
                await partition(server, datetime.now(UTC) - timedelta(days=1))

    asyncio.run(fill())
    done = run_command("copy", "app:server", "--from", source, "--to", target, cwd=tmp_path, DATABASE=source)
    assert done.returncode == 0, done.stderr + done.stdout

    async def use() -> None:
        async with a_server(target) as server:
            again = await server.work.submit("part.ok", idempotency_key="before")
            assert await fetch_value(target, "SELECT count(*) FROM workflow_run") == 21
            await work_off(server.work)
            assert (await server.work.get(again.id)).status == "succeeded"
            assert await server.outbox.drainer().drain() == 2

    asyncio.run(use())


def test_the_doctor_says_the_same_of_a_database_with_and_without_partitions(
    tmp_path: Path, postgres_url: str
) -> None:
    (tmp_path / "app.py").write_text(APP)

    async def prepare(partitioned: bool) -> None:
        async with a_server(postgres_url) as server:
            if partitioned:
                await partition(server)

    answers = []
    for partitioned in (False, True):
        asyncio.run(prepare(partitioned))
        done = run_command("doctor", "app:server", cwd=tmp_path, DATABASE=postgres_url)
        answers.append((done.returncode, done.stdout, done.stderr))
    assert answers[0] == answers[1]


# -- roles, clocks and tables


async def test_an_owner_that_may_make_no_tables_goes_on_without_new_partitions(
    postgres_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_server(as_role(postgres_url, role)) as server:
        await server.work.submit("part.ok", idempotency_key="one")
        await execute(postgres_url, f"REVOKE CREATE ON SCHEMA public FROM {role}")
        with pytest.raises(ManiflexError):
            await partition(server)
        run = await server.work.submit("part.ok", idempotency_key="two")
        await execute(postgres_url, f"GRANT CREATE ON SCHEMA public TO {role}")
        await partition(server, datetime.now(UTC) - timedelta(days=10))
        await execute(postgres_url, f"REVOKE CREATE ON SCHEMA public FROM {role}")
        with caplog.at_level(logging.WARNING):
            await keeper_of(server).tick()
        assert "the partitions of workflow_run could not be made" in caplog.text
        assert (await server.work.submit("part.ok", idempotency_key="two")).id == run.id
        await work_off(server.work)


async def test_partitions_begin_by_the_clock_of_the_database(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Tomorrow:
            return cls(2038, 1, 1, tzinfo=UTC)

    async with a_server(postgres_url) as server:
        monkeypatch.setattr("maniflex.background.partitions.mover.datetime", Tomorrow)
        await partition_tables(adapter_of(server), ALL, Period.WEEK)
        layout = await layout_of(server)
        start = Period.WEEK.next_start(datetime.now(UTC) + timedelta(minutes=1))
        assert layout.partitions[0].lower == first_id(start)


async def test_a_partition_that_was_detached_with_its_rows_is_not_replaced(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        newest = (await layout_of(server, MESSAGES)).partitions[-1]
        await execute(
            postgres_url,
            "INSERT INTO outbox_event (id, seq, kind, status, retry_at, attempts, claimed_with, created_at,"
            f" updated_at) VALUES ('{newest.lower}-1', 1, 'part.told', 'dead', now(), 0, 0, now(), now());"
            f"ALTER TABLE outbox_event DETACH PARTITION {newest.name}",
        )
        await partition(server)

        assert await fetch_value(postgres_url, f"SELECT count(*) FROM {newest.name}") == 1
        names = [one.name for one in (await layout_of(server, MESSAGES)).partitions]
        assert newest.name not in names


async def pruners(server: Server) -> None:
    """One tick of each loop that removes what is old."""
    for service in (*server.work.services(), *server.outbox.services()):
        if isinstance(service, Pruner | MessagePruner):
            await service.tick()


async def test_a_detached_default_partition_is_left_alone_whatever_it_is_called(postgres_url: str) -> None:
    async with a_server(postgres_url, work_retention=timedelta(days=7)) as server:
        await execute(
            postgres_url,
            f"{RUN} ('0', 'part.ok', 'succeeded', now(), now() - interval '60 days', NULL);"
            "INSERT INTO workflow_step (id, workflow_id, name, created_at, updated_at, undoable, compensated)"
            " VALUES ('s', '0', 'only', now(), now(), false, false);"
            "INSERT INTO outbox_event (id, seq, kind, status, retry_at, published_at, attempts, claimed_with,"
            " created_at, updated_at) VALUES ('0', 1, 'part.told', 'delivered', now(),"
            " now() - interval '60 days', 0, 0, now(), now())",
        )
        await partition(server)
        defaults = {table: f"{table.name}_default" for table in (RUNS, STEPS, MESSAGES)}
        for table, default in defaults.items():
            assert await fetch_value(postgres_url, f"SELECT count(*) FROM {default}") == 1
            await execute(postgres_url, f"ALTER TABLE {table.name} DETACH PARTITION {default}")
        await pruners(server)
        for table, default in defaults.items():
            assert await fetch_value(postgres_url, f"SELECT count(*) FROM {default}") == 1, table.name
            await execute(postgres_url, f"ALTER TABLE {default} RENAME TO {table.name}_archive")
        await pruners(server)
        for table in defaults:
            assert await fetch_value(postgres_url, f"SELECT count(*) FROM {table.name}_archive") == 1


async def test_a_partition_that_is_detached_while_retention_looks_is_not_dropped(postgres_url: str) -> None:
    before = datetime.now(UTC) - timedelta(days=30)
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 60)
        await execute(
            postgres_url,
            f"{RUN} ('{prefix}1', 'part.ok', 'succeeded', now(), now() - interval '60 days', NULL)",
        )
        layouts = {table: await layout_of(server, table) for table in (RUNS, STEPS)}
        for table, layout in layouts.items():
            [old] = [one for one in layout.partitions if one.name.endswith("aged60")]
            await execute(postgres_url, f"ALTER TABLE {table.name} DETACH PARTITION {old.name}")
        retention = PartitionRetention(adapter_of(server), RUNS)
        [old] = [one for one in layouts[RUNS].partitions if one.name.endswith("aged60")]

        assert not await retention._drop_finished(adapter_of(server), old, before)
        await retention._drop_companions(adapter_of(server), layouts[STEPS], before)

        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_run_aged60") == 1
        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_step_aged60") == 0


async def test_the_steps_of_a_run_that_is_committed_while_retention_looks_stay(postgres_url: str) -> None:
    before = datetime.now(UTC) - timedelta(days=30)
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 60)
        await execute(
            postgres_url,
            "INSERT INTO workflow_step (id, workflow_id, name, created_at, updated_at, undoable, compensated)"
            f" VALUES ('s', '{prefix}1', 'only', now(), now(), false, false)",
        )
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            await connection.execute(f"{RUN} ('{prefix}1', 'part.ok', 'pending', now(), now(), NULL)")
            retention = PartitionRetention(adapter_of(server), RUNS)
            await retention.tables_to_prune(before)
        await connection.close()

        await retention.tables_to_prune(before)  # the run is there now
        steps = await server.raw_query("SELECT name FROM workflow_step")
        assert [row["name"] for row in steps] == ["only"]


async def test_a_partition_that_cannot_be_made_is_told_once_with_what_to_type(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        *_, middle, newest = (await layout_of(server)).partitions
        values = "'part.ok', 'succeeded', now(), now(), NULL)"
        await execute(
            postgres_url,
            f"{RUN} ('{newest.lower}-1', {values};"
            f"ALTER TABLE workflow_run DETACH PARTITION {newest.name};"
            f"DROP TABLE {middle.name};"
            f"{RUN} ('{middle.lower}-1', {values}",
        )
        keeper = keeper_of(server)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await keeper.tick()

        told = {
            name: [r.getMessage() for r in caplog.records if name in r.getMessage()]
            for name in (middle.name, newest.name)
        }
        [rows], [name_in_use] = told[middle.name], told[newest.name]
        assert "workflow_run_default has rows of its time" in rows
        assert f"SELECT id FROM workflow_run_default WHERE id >= '{middle.lower}'" in rows
        assert f"ALTER TABLE {newest.name} RENAME TO {newest.name}_old" in name_in_use
        for text in (rows, name_in_use):
            assert "maniflex partition module:server runs --by day" in text


def test_the_command_fails_when_a_partition_cannot_be_made(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "app.py").write_text(APP)

    async def put_a_row_in_the_way() -> str:
        async with a_server(postgres_url) as server:
            await partition(server)
            *_, middle, _newest = (await layout_of(server)).partitions
            await execute(
                postgres_url,
                f"DROP TABLE {middle.name};"
                f"{RUN} ('{middle.lower}-1', 'part.ok', 'succeeded', now(), now(), NULL)",
            )
            return middle.name

    name = asyncio.run(put_a_row_in_the_way())

    done = run_command("partition", "app:server", "all", cwd=tmp_path, DATABASE=postgres_url)

    assert f"{name} was not made: workflow_run_default has rows of its time already" in done.stdout
    assert "outbox_event is partitioned already" in done.stdout
    assert done.returncode == 1
    asyncio.run(
        execute(postgres_url, f"DELETE FROM workflow_run WHERE id >= '{first_id(datetime.now(UTC))}'")
    )
    again = run_command("partition", "app:server", "all", cwd=tmp_path, DATABASE=postgres_url)
    assert f"made {name}" in again.stdout
    assert again.returncode == 0


async def test_a_lock_that_others_hold_until_a_partition_is_due_is_told_once(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(Period.DAY.next_start(datetime.now(UTC)) - timedelta(hours=2))
    async with a_server(postgres_url, clock=clock) as server:
        await partition(server, clock.now())
        first = (await layout_of(server)).partitions[0]
        await execute(postgres_url, f"DROP TABLE {first.name}")
        other = await asyncpg.connect(postgres_url)
        async with other.transaction():
            await other.execute("LOCK TABLE workflow_run_default IN ACCESS SHARE MODE")
            keeper = keeper_of(server)
            with caplog.at_level(logging.WARNING):
                await keeper.tick()
                assert caplog.text == ""  # there is time yet
                clock.advance(timedelta(minutes=100))
                for _ in range(3):
                    await keeper.tick()
        await other.close()
        [text] = [record.getMessage() for record in caplog.records]
        assert first.name in text
        assert "FROM pg_locks" in text


# -- what is open


async def test_runs_that_are_open_in_any_way_keep_their_partition(postgres_url: str) -> None:
    states = {
        60: ("'leased'", "lease = 'x', lease_until = now() - interval '50 days'"),  # its worker died
        58: ("'cancelled'", "lease = 'x', lease_until = now() + interval '1 minute'"),  # still worked on
        56: ("'pending'", "run_at = now() + interval '300 days'"),  # put off
        54: ("'pending'", "waiting_for = 'signal', run_at = 'infinity'"),
        52: ("'pending'", "waiting_for = 'run:' || id, run_at = now() + interval '9 days'"),
        50: ("'pending'", "type = 'part.unknown'"),
    }
    async with a_server(postgres_url) as server:
        await partition(server)
        for days, (status, change) in states.items():
            prefix = await aged_partition(postgres_url, days)
            await execute(
                postgres_url,
                f"{RUN} ('{prefix}1', 'part.ok', {status}, now(), now() - interval '{days} days', NULL);"
                f"UPDATE workflow_run SET {change} WHERE id = '{prefix}1'",
            )
        retention = PartitionRetention(adapter_of(server), RUNS)
        await retention.tables_to_prune(datetime.now(UTC) - timedelta(days=30))
        [*_, pruner] = server.work.services()
        await pruner.tick()  # type: ignore[attr-defined]  # a loop

        names = {one.name for one in (await layout_of(server)).partitions}
        assert {f"workflow_run_aged{days}" for days in states} <= names
        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_run") == len(states)


async def test_a_partition_that_is_dropped_while_the_keeper_looks_is_no_error(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        await aged_partition(postgres_url, 20)
        before = await layout_of(server)
        await execute(postgres_url, "DROP TABLE workflow_run_aged20")
        await keeper_of(server)._tell_open(before)

        run = await server.work.submit("part.ok")
        await work_off(server.work)
        assert (await server.work.get(run.id)).status == "succeeded"
