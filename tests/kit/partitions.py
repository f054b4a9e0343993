"""Durable tables in partitions for every test, by the option --partitions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from unittest.mock import patch

from maniflex._ids import first_id
from maniflex.app.databases import SchemaTables
from maniflex.background.outbox.api import Outbox
from maniflex.background.partitions.layout import MESSAGES, PATIENCE, RUNS, PartitionedTable, read_layout
from maniflex.background.partitions.mover import TABLES, TableMover
from maniflex.background.runs.api import Work
from maniflex.db.port import Adapter
from maniflex.sql.statement import Dialect, Sql

PARTITIONED = "MANIFLEX_TEST_PARTITIONS"  # what the option sets
DURABLE = (
    "tests/background",
    "tests/events/test_groups.py",
    "tests/events/test_feed.py",
    "tests/events/test_every_write.py",
    "tests/mail",
    "tests/concurrency",
    "tests/http/test_run*.py",
    "tests/http/test_outbox*.py",
    "tests/http/test_control*.py",
    "tests/http/test_durable*.py",
    "tests/http/test_payloads*.py",
    "tests/admin/test_operations*.py",
)  # what is about durable work, as patterns
SLICES = (-86_400_000, 0, 100, 300, 60_000)  # milliseconds from now where partitions begin


async def partition_all(adapter: Adapter) -> None:
    """Partition all durable tables there are, so that rows of the next seconds are in several of them."""
    for tables in TABLES.values():
        if await adapter.write(Sql("SELECT 1 WHERE to_regclass($1) IS NOT NULL", (tables[0].name,))):
            await slice_tables(adapter, tables)


async def slice_tables(adapter: Adapter, tables: Sequence[PartitionedTable]) -> None:
    if await read_layout(adapter, tables[0]) is not None:
        return
    for table in tables:
        await TableMover(adapter, table, PATIENCE).move()
    now = datetime.now(UTC)
    starts = [now + timedelta(milliseconds=one) for one in SLICES]
    for table in tables:
        for number, (start, end) in enumerate(pairwise(starts)):
            await adapter.execute(
                Sql(
                    f"CREATE TABLE {table.name}_slice{number} PARTITION OF {table.name}"
                    f" FOR VALUES FROM ('{first_id(start)}') TO ('{first_id(end)}')"
                )
            )


async def open_all(work: Work, adapter: Adapter) -> None:
    """Let claims and outcomes name partitions from the first one on, as after a tick of the keeper."""
    layout = await read_layout(adapter, RUNS)
    assert layout is not None
    assert layout.default is not None
    work.engine.store.learn_partitions(layout, [layout.default, *(one.name for one in layout.partitions)])


async def open_present(outbox: Outbox, adapter: Adapter) -> None:
    """Let relays leave out the partition of yesterday, as after a tick of the keeper."""
    layout = await read_layout(adapter, MESSAGES)
    assert layout is not None
    outbox.store.learn_partitions(layout, [one.name for one in layout.partitions[1:]])


@contextmanager
def partitioned_tables() -> Iterator[None]:
    """Every server that makes its tables partitions them, if the environment asks for it."""
    if os.environ.get(PARTITIONED) != "1":
        yield
        return
    prepare = SchemaTables.prepare

    async def prepare_in_partitions(self: SchemaTables) -> None:
        await prepare(self)
        adapter = self._assembly.runtime.adapter
        if adapter.dialect is Dialect.POSTGRES:
            await partition_all(adapter)
            if self._durable.work.is_used:
                await open_all(self._durable.work, adapter)
            if self._durable.outbox.is_used:
                await open_present(self._durable.outbox, adapter)

    with patch.object(SchemaTables, "prepare", prepare_in_partitions):
        yield
