"""Servers whose durable tables are partitioned, with partitions of long ago."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from maniflex import Run, Server
from maniflex._ids import first_id
from maniflex.background.partitions.keeper import PartitionKeeper
from maniflex.background.partitions.layout import RUNS, PartitionLayout, Period, read_layout
from maniflex.background.partitions.mover import TABLES, partition_tables
from maniflex.background.runs.api import Work
from maniflex.db.port import Adapter, Row, Tx
from maniflex.sql.statement import Dialect, Sql
from tests.kit.postgres import execute

ALL = [table for tables in TABLES.values() for table in tables]


@asynccontextmanager
async def a_server(url: str, **settings: Any) -> AsyncIterator[Server]:
    server = Server(url, pool_size=4, **settings)

    @server.work.handler("part.ok")
    async def succeed(run: Run) -> None:
        await run.step("only", lambda: 1)

    server.outbox.handler("part.told")(_ignore)
    async with server.lifespan(role="client"):
        yield server


async def _ignore(message: Any) -> None: ...


def adapter_of(server: Server) -> Adapter:
    return server.work.environment.adapter


async def partition(server: Server, now: datetime | None = None) -> None:
    await partition_tables(adapter_of(server), ALL, Period.DAY, now or datetime.now(UTC))


async def layout_of(server: Server, table: Any = RUNS) -> PartitionLayout:
    layout = await read_layout(adapter_of(server), table)
    assert layout is not None
    return layout


async def work_off(work: Work) -> None:
    await work.worker().drain()


async def aged_partition(url: str, days: int) -> str:
    """A partition of runs, events and steps of a day so long ago; the id that its rows begin with."""
    start = datetime.now(UTC) - timedelta(days=days)
    lower, upper = first_id(start), first_id(start + timedelta(days=1))
    await execute(
        url,
        "".join(
            f"CREATE TABLE {table.name}_aged{days} PARTITION OF {table.name}"
            f" FOR VALUES FROM ('{lower}') TO ('{upper}');"
            for table in ALL
        ),
    )
    return f"{lower}-7000-8000-"


RUN = "INSERT INTO workflow_run (id, type, status, run_at, updated_at, idempotency_key) VALUES "


def keeper_of(server: Server) -> PartitionKeeper:
    """The one that looks after the partitions of runs."""
    [keeper] = [one for one in server.work.services() if isinstance(one, PartitionKeeper)]
    return keeper


class InTransaction:
    """Statements of a store in one open transaction, whose locks are counted then."""

    dialect = Dialect.POSTGRES

    def __init__(self, tx: Tx) -> None:
        self.write = tx.write

    async def fetch(self, sql: Sql, budget: object = None) -> list[Row]:
        return await self.write(sql)

    async def batch(self, statements: Sequence[Sql]) -> list[list[Row]]:
        return [await self.write(one) for one in statements]
