"""Which tables of durable work may be partitioned, and how the database has them now.

A partitioned table has a default partition, which takes every row that no other one is for: those from
before the table was partitioned, and those whose id the application chose.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from maniflex._ids import moment_of
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.short_locks import LockLimits, change_tables
from maniflex.sql.statement import Sql, by_dialect

PACKAGE = "maniflex.background.partitions"  # whose folder `sql` has the statements; only PostgreSQL has any


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table and the column of it that says which partition a row is in: the id of a run or a message."""

    name: str
    column: str

    @property
    def default(self) -> str:
        return f"{self.name}_default"


RUNS = PartitionedTable("workflow_run", "id")
EVENTS = PartitionedTable("workflow_event", "workflow_id")
STEPS = PartitionedTable("workflow_step", "workflow_id")
MESSAGES = PartitionedTable("outbox_event", "id")
OF_RUNS = (EVENTS, STEPS)  # their rows go with the partition of their run


@dataclass(frozen=True, slots=True)
class Partition:
    """A table that holds the rows whose ids are from `lower` on and below `upper`."""

    name: str
    lower: str
    upper: str


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The partitions of a table as the database has them, the oldest first."""

    table: PartitionedTable
    partitions: tuple[Partition, ...]
    default: str | None = None  # the name of the default one, unless someone detached it

    @property
    def period(self) -> Period | None:
        """How long the newest partition lasts."""
        if not self.partitions:
            return None
        newest = self.partitions[-1]
        return Period.lasting(moment_of(newest.upper) - moment_of(newest.lower))

    @property
    def end(self) -> datetime | None:
        """When the newest partition ends."""
        return moment_of(self.partitions[-1].upper) if self.partitions else None


_LAYOUT = """
SELECT p.oid::regclass::text, pg_get_expr(p.relpartbound, p.oid)
  FROM pg_class t LEFT JOIN pg_inherits i ON i.inhparent = t.oid LEFT JOIN pg_class p ON p.oid = i.inhrelid
 WHERE t.oid = to_regclass($1) AND t.relkind = 'p'
"""
_BOUNDS = re.compile(r"FOR VALUES FROM \('([^']*)'\) TO \('([^']*)'\)")


async def read_layout(run: Executor, table: PartitionedTable) -> PartitionLayout | None:
    """How the table is partitioned; None when it is not, as always on SQLite."""
    if not by_dialect(run.dialect, sqlite=False, postgres=True):
        return None
    rows = await run.write(Sql(_LAYOUT, (table.name,)))  # of the primary
    if not rows:
        return None
    bounds = [(name, _BOUNDS.fullmatch(text or "")) for name, text in rows]
    partitions = [Partition(name, match[1], match[2]) for name, match in bounds if match is not None]
    default = next((name for name, text in rows if text == "DEFAULT"), None)
    return PartitionLayout(table, tuple(sorted(partitions, key=lambda one: one.lower)), default)


# The periods that partitions are cut by, in UTC, and the names of their tables.


_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


class Period(Enum):
    """How much time one partition holds."""

    HOUR = timedelta(hours=1)
    DAY = timedelta(days=1)
    WEEK = timedelta(weeks=1)

    @classmethod
    def of_name(cls, word: str) -> Period:
        return cls[word.upper()]

    @classmethod
    def lasting(cls, length: timedelta) -> Period:
        """The period of that length, or the longest that is not longer."""
        return max((one for one in cls if one.value <= length), key=lambda one: one.value, default=cls.HOUR)

    def next_start(self, moment: datetime) -> datetime:
        """When the next period begins; weeks begin on Mondays."""
        return _MONDAY + ((moment - _MONDAY) // self.value + 1) * self.value


def partition_name(table: str, start: datetime) -> str:
    """The name of the partition that begins at this moment."""
    return f"{table}_p{start:%Y%m%d}" + (f"{start:%H}" if start.hour else "")


# The locks that changes of partitions take: for a short time each, and one process at a time.


PATIENCE = LockLimits(timedelta(milliseconds=200), tries=100)
ONCE = replace(PATIENCE, tries=1)
_TURN = 0x6D616E69666C657A >> 1  # any fixed number of 63 bits that nobody else locks


async def run_all(adapter: Adapter, statements: Sequence[str], limits: LockLimits) -> None:
    """Run these statements in one such transaction."""

    async def work(tx: Tx) -> None:
        for text in statements:
            await tx.execute(Sql(text))

    await change_tables(adapter, work, limits)


@asynccontextmanager
async def patient_sibling(adapter: Adapter) -> AsyncIterator[Adapter]:
    """An adapter of its own for statements that may take long."""
    sibling = adapter.sibling(patient=True)
    await sibling.open()
    try:
        yield sibling
    finally:
        await sibling.close()


@asynccontextmanager
async def take_turn(adapter: Adapter) -> AsyncIterator[bool]:
    """Keep other processes from changing partitions meanwhile; False when one is at it."""
    async with patient_sibling(adapter) as holder, holder.transaction() as tx:
        # A lock of the transaction, because one of the session would not survive a transaction pooler.
        rows = await tx.fetch(Sql("SELECT pg_try_advisory_xact_lock($1)", (_TURN,)))
        # An index that is built concurrently waits for all older snapshots; this statement has none.
        await tx.execute(Sql("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield bool(rows[0][0])
