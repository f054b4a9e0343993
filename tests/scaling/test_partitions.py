"""Runs, events, steps and messages in partitions: the same guarantees, and retention that drops tables."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex._ids import first_id, new_id
from maniflex.background.partitions import mover
from maniflex.background.partitions.keeper import PartitionRetention
from maniflex.background.partitions.layout import CHECK, MESSAGES, OF_RUNS, RUNS, PartitionBuilder, Period
from maniflex.errors import DeclarationError
from maniflex.schema.differences import find_differences
from maniflex.testing import client
from tests.kit.acknowledged_load import AcknowledgedLoad
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
from tests.kit.partitions import DURABLE
from tests.kit.postgres import execute, fetch_value
from tests.kit.processes import MANIFLEX, ROOT, run_command
from tests.kit.waiting import until

# What every run of the suite has of it; --long runs all of `DURABLE`.
SLICE = (
    "tests/background/test_runs_claims.py",
    "tests/background/test_outbox_relays.py",
    "tests/http/test_runs_keys.py",
)
CHOSEN = "urgent or twice or two_leases or dead_relay or orphans or side_by_side or put_back or one_key"
LONGER = ("_keep_keys", "_build_twins", "_switch")


def test_the_suite_of_durable_work_passes_in_partitions(long_mode: bool) -> None:
    paths = [path for one in DURABLE for path in sorted(ROOT.glob(one))] if long_mode else list(SLICE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--partitions", "-k", "" if long_mode else CHOSEN, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(f"\n{run.stdout.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout[-5_000:]


async def test_a_database_in_use_is_partitioned_and_every_key_and_group_stays_unique(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        work = server.work
        old = await work.submit("part.ok", idempotency_key="old", group_key="g")
        free = await work.submit("part.ok", idempotency_key="free")
        await work.delete(free.id)

        await partition(server)

        assert (await work.submit("part.ok", idempotency_key="old")).id == old.id
        again = await work.submit("part.ok", idempotency_key="free")
        assert again.id != free.id
        twice = await work.submit_many("part.ok", [1, 2], idempotency_keys=["same", "same"])
        assert twice[0].id == twice[1].id
        at_once = await asyncio.gather(*(work.submit("part.ok", idempotency_key="race") for _ in range(8)))
        assert len({run.id for run in at_once}) == 1
        await work.delete(at_once[0].id)
        assert (await work.submit("part.ok", idempotency_key="race")).id != at_once[0].id
        for _ in range(3):
            await work.submit("part.ok", group_key="g")
        await server.outbox.enqueue("part.told", {}, outside_transaction=True)
        await work_off(work)
        await server.outbox.drainer().drain()
        rows = await server.raw_query(
            "SELECT status, count(*) AS n FROM workflow_run WHERE deleted_at IS NULL GROUP BY 1"
        )
        assert [dict(row) for row in rows] == [{"status": "succeeded", "n": 7}]
        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_group") == 0


async def test_a_move_beside_the_load_loses_refuses_and_doubles_nothing(
    postgres_url: str, long_mode: bool
) -> None:
    load = AcknowledgedLoad(postgres_url)
    async with client(load.server, database=None, background=True) as http:
        loading = asyncio.create_task(load.run(http, 50 if long_mode else 20))
        await load.until_written(200 if long_mode else 20)
        await partition(load.server)
        await load.until_written(200 if long_mode else 20)
        load.end()
        await asyncio.wait_for(loading, 60)
        summary = await load.check()
        assert load.refusals == 0
    print(f"\n{summary}")


@pytest.mark.parametrize(
    "step", ["_make_table", *(pytest.param(step, marks=pytest.mark.long) for step in LONGER)]
)
async def test_a_move_that_was_killed_is_finished_by_the_same_command(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with a_server(postgres_url) as server:
        run = await server.work.submit("part.ok", idempotency_key="one")
        owner: Any = PartitionBuilder if step == "_make_table" else mover.TableMover
        whole = getattr(owner, step)

        async def killed(self: Any, *arguments: Any) -> None:
            await whole(self, *arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patching:
            patching.setattr(owner, step, killed)
            with pytest.raises(KeyboardInterrupt):
                await partition(server)
        await partition(server)

        assert (await server.work.submit("part.ok", idempotency_key="one")).id == run.id
        for table in ALL:
            assert len((await layout_of(server, table)).partitions) == 3
        assert (
            await fetch_value(postgres_url, f"SELECT count(*) FROM pg_constraint WHERE conname = '{CHECK}'")
            == 0
        )


async def test_nothing_differs_from_the_models_and_a_start_changes_nothing(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
    async with a_server(postgres_url) as server:
        schema = server.work.environment
        models = [store.sql for store in schema.stores.values()]
        statements = [
            *server.work.schema(schema.adapter.dialect),
            *server.outbox.schema(schema.adapter.dialect),
        ]
        assert await find_differences(schema.adapter, models, statements) == []


async def test_retention_drops_partitions_that_are_over_and_keeps_what_is_not(postgres_url: str) -> None:
    before = datetime.now(UTC) - timedelta(days=30)
    async with a_server(postgres_url) as server:
        await partition(server)
        ages = {days: await aged_partition(postgres_url, days) for days in (60, 50, 40, 20)}
        for days, prefix in ages.items():
            status = "pending" if days == 50 else "failed"
            changed = "now()" if days == 40 else f"now() - interval '{days} days'"
            await execute(
                postgres_url,
                f"{RUN} ('{prefix}1', 'part.ok', '{status}', now(), {changed}, 'key{days}'),"
                f" ('{prefix}2', 'part.ok', 'succeeded', now(), now() - interval '{days} days', NULL);"
                "INSERT INTO workflow_event (id, workflow_id, event_type)"
                f" VALUES ('e{days}', '{prefix}1', 'created');",
            )
        retention = PartitionRetention(adapter_of(server), RUNS)

        tables = await retention.tables_to_prune(before)

        names = {one.name for one in (await layout_of(server)).partitions}
        assert "workflow_run_aged60" not in names
        assert {"workflow_run_aged50", "workflow_run_aged40", "workflow_run_aged20"} <= names
        assert "workflow_event_aged60" not in {
            one.name for one in (await layout_of(server, OF_RUNS[0])).partitions
        }
        assert tables == ("workflow_run_default", "workflow_run_aged50", "workflow_run_aged40")
        [*_, pruner] = server.work.services()
        await pruner.tick()  # type: ignore[attr-defined]  # a loop
        rows = await server.raw_query("SELECT id FROM workflow_run ORDER BY id")
        assert [row["id"] for row in rows] == [ages[50] + "1", ages[40] + "1", ages[20] + "1", ages[20] + "2"]

        again = await server.work.submit("part.ok", idempotency_key="key60")  # its run is gone
        assert (await server.work.submit("part.ok", idempotency_key="key60")).id == again.id
        await work_off(server.work)  # the one of long ago is worked on, and its partition may go then
        assert (await server.work.get(ages[50] + "1")).status == "succeeded"


async def test_messages_that_are_not_delivered_stay_with_their_partition(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        for days, status in ((30, "delivered"), (20, "dead"), (10, "pending")):
            prefix = await aged_partition(postgres_url, days)
            values = f"('{prefix}1', {days}, 'part.told', '{status}', now(), now() - interval '{days} days')"
            await execute(
                postgres_url,
                "INSERT INTO outbox_event (id, seq, kind, status, retry_at, published_at, attempts,"
                f" claimed_with, created_at, updated_at)"
                f" SELECT *, 0, 0, now(), now() FROM (VALUES {values}) v",
            )
        await PartitionRetention(adapter_of(server), MESSAGES).tables_to_prune(
            datetime.now(UTC) - timedelta(days=7)
        )

        rows = await server.raw_query("SELECT status FROM outbox_event ORDER BY seq")
        assert [row["status"] for row in rows] == ["pending", "dead"]
        assert "outbox_event_aged30" not in {
            one.name for one in (await layout_of(server, MESSAGES)).partitions
        }


async def test_the_next_partitions_are_made_before_their_time_and_none_where_rows_are(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=10))  # nobody looked after them since
        run = await server.work.submit("part.ok")

        await keeper_of(server).tick()

        layout = await layout_of(server)
        assert len(layout.partitions) == 6
        assert layout.end is not None
        assert layout.end > datetime.now(UTC) + timedelta(days=2)
        rows = await server.raw_query("SELECT tableoid::regclass::text AS name FROM workflow_run")
        assert [row["name"] for row in rows] == ["workflow_run_default"]
        await work_off(server.work)
        assert (await server.work.get(run.id)).status == "succeeded"


APP = """
import os
from maniflex import Server

server = Server(os.environ["DATABASE"])

@server.work.handler("part.ok")
async def succeed(run): ...
"""


def test_the_command_is_killed_at_its_first_words_and_given_again(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    command: list[str | Path] = [MANIFLEX, "partition", "app:server", "all", "--by", "week"]
    killed = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "DATABASE": postgres_url}, stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.kill()
    killed.communicate()

    def is_finished() -> bool:
        done = run_command("partition", "app:server", "all", cwd=tmp_path, DATABASE=postgres_url)
        assert done.returncode == 0 or "another process is changing partitions" in done.stderr, done.stderr
        return done.returncode == 0

    until(is_finished, "the turn of the killed command")
    again = run_command("partition", "app:server", "runs", cwd=tmp_path, DATABASE=postgres_url)
    assert "workflow_run is partitioned already" in again.stdout
    refused = run_command("partition", "app:server", "messages", cwd=tmp_path, DATABASE=postgres_url)
    assert (refused.returncode, refused.stderr) == (1, "Error: the application has no messages\n")


async def test_sqlite_has_no_partitions_and_says_so(sqlite_url: str) -> None:
    async with a_server(sqlite_url) as server:
        with pytest.raises(DeclarationError, match="only PostgreSQL has partitions"):
            await partition(server)


MANY = """
INSERT INTO workflow_run (id, type, status, run_at, created_at, updated_at)
SELECT '{0}' || lpad(to_hex(g), 12, '0'), 'part.ok', 'succeeded', now(), now() - interval '60 days',
       now() - interval '60 days' FROM generate_series(1, {1}) g
"""


@pytest.mark.long
async def test_ten_million_rows_go_within_a_second(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 60)
        await execute(postgres_url, MANY.format(prefix, 10_000_000))
        await execute(postgres_url, "VACUUM workflow_run_aged60")
        began = time.monotonic()
        await PartitionRetention(adapter_of(server), RUNS).tables_to_prune(
            datetime.now(UTC) - timedelta(days=30)
        )
        seconds = time.monotonic() - began
        assert await fetch_value(postgres_url, "SELECT count(*) FROM workflow_run") == 0
    print(f"\n10,000,000 runs dropped in {seconds:.3f} s")
    assert seconds < 1


def test_ids_of_a_partition_are_those_of_its_time() -> None:
    now = datetime.now(UTC)
    assert first_id(now - timedelta(seconds=1)) < new_id() < first_id(now + timedelta(minutes=1))
    assert Period.WEEK.next_start(datetime(2026, 11, 17, 5, tzinfo=UTC)) == datetime(2026, 11, 23, tzinfo=UTC)
    assert Period.DAY.next_start(datetime(2026, 11, 17, tzinfo=UTC)) == datetime(2026, 11, 18, tzinfo=UTC)
