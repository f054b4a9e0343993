"""Which tables of durable work may be partitioned, and how the database has them now.

A partitioned table has a default partition, which takes every row that no other one is for: those from
before the table was partitioned, and those whose id the application chose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from maniflex._ids import moment_of
from maniflex.background.partitions.periods import Period
from maniflex.db.port import Executor
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
