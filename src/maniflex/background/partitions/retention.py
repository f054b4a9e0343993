"""Removes whole partitions whose rows are all over and old enough; nothing that is not over goes with them.

Whether a row has to stay is asked once beside the writers and once more with the table locked, because a run
may be retried in between. A partition with such a row is kept, and pruned row by row as a table without
partitions is; so is the default partition. A table that somebody detached is theirs: it is neither dropped
nor pruned, whatever its name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from maniflex._ids import first_id
from maniflex.background.partitions.layout import (
    MESSAGES,
    OF_RUNS,
    ONCE,
    PACKAGE,
    RUNS,
    Partition,
    PartitionedTable,
    PartitionLayout,
    patient_sibling,
    read_layout,
)
from maniflex.db.port import Adapter, Tx
from maniflex.db.short_locks import LockNotFree, change_tables
from maniflex.errors import DatabaseError
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.statement_files import load

# Rows that have to stay. Each part has an index that makes it a look, however many rows there are.
_STAYS = {
    RUNS: """
SELECT 1 WHERE EXISTS (SELECT 1 FROM {0} WHERE status = 'pending' AND deleted_at IS NULL AND type > '')
    OR EXISTS (SELECT 1 FROM {0} WHERE lease_until IS NOT NULL)
    OR EXISTS (SELECT 1 FROM {0} WHERE updated_at >= $1)
""",
    MESSAGES: """
SELECT 1 WHERE EXISTS (
        SELECT 1 FROM {0} WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL AND kind > '')
    OR EXISTS (SELECT 1 FROM {0} WHERE status = 'dead' AND seq > -1)
    OR EXISTS (SELECT 1 FROM {0} WHERE status = 'delivered' AND published_at >= $1)
""",
}
_SUMMARIZE = """
SELECT brin_summarize_new_values(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = to_regclass($1) AND a.amname = 'brin'
"""


_SIGNALS = "workflow_signal"
_ORPHANS_AT_ONCE = 1_000  # rows


class PartitionRetention:
    """Retention of runs, with all that belongs to them, or of messages."""

    def __init__(self, adapter: Adapter, table: PartitionedTable) -> None:
        self._adapter = adapter
        self._table = table
        self._companions = OF_RUNS if table == RUNS else ()
        self._after: dict[str, str] = {}  # up to which run a table was looked at for orphans

    async def tables_to_prune(self, before: datetime) -> Sequence[str]:
        """Drop what may go as a whole; the tables that are left to be pruned row by row."""
        layout = await read_layout(self._adapter, self._table)
        if layout is None:
            return (self._table.name,)
        others = [await read_layout(self._adapter, table) for table in self._companions]
        old = [one for one in layout.partitions if one.upper <= first_id(before)]
        default = () if layout.default is None else (layout.default,)
        if None in others:  # without partitions of their own, they go row by row
            return (*default, *(one.name for one in old))
        async with patient_sibling(self._adapter) as adapter:
            names = [one.name for one in old if not await self._drop_finished(adapter, one, before)]
            for other in others:
                assert other is not None
                await self._drop_companions(adapter, other, before)
        if self._companions:
            for name in (_SIGNALS, *(other.default for other in others if other and other.default)):
                await self._remove_orphans(name, before)
        return (*default, *(await self._still_there(names)))

    async def _drop_finished(self, adapter: Adapter, partition: Partition, before: datetime) -> bool:
        """Drop a partition that nothing has to stay in; False when something has, or it is in use."""

        async def work(tx: Tx) -> None:
            await tx.execute(Sql(f"LOCK TABLE {self._table.name} IN ACCESS EXCLUSIVE MODE"))
            if not await _is_attached(tx, self._table, partition):
                raise _HasToStay
            if await self._has_to_stay(tx, partition, before):
                raise _HasToStay
            await tx.execute(Sql(f"DROP TABLE {partition.name}"))

        try:
            await adapter.write(Sql(_SUMMARIZE, (partition.name,)))
            async with adapter.transaction() as tx:
                if await self._has_to_stay(tx, partition, before):
                    return False
            await change_tables(adapter, work, ONCE)
        except (_HasToStay, LockNotFree):  # the next round tries again
            return False
        except DatabaseError:  # another process was first, or this role does not own it
            return False
        return True

    async def _still_there(self, names: Sequence[str]) -> list[str]:
        """Those that no other process has dropped meanwhile."""
        layout = await read_layout(self._adapter, self._table) if names else None
        return [] if layout is None else [one.name for one in layout.partitions if one.name in names]

    async def _remove_orphans(self, table: str, before: datetime) -> None:
        """Remove rows of runs that went with their partition, a thousand rows at a time.

        Events and steps are in the default partition where those of their run's time were not there.
        """
        statement = load(PACKAGE, "partitions", Dialect.POSTGRES)["prune_orphans"].on_table(_SIGNALS, table)
        values = {"after": self._after.get(table, ""), "below": first_id(before), "limit": _ORPHANS_AT_ONCE}
        [(last,)] = await self._adapter.write(statement.bind(**values))
        self._after[table] = last or ""

    async def _has_to_stay(self, tx: Tx, partition: Partition, before: datetime) -> bool:
        await tx.execute(Sql("SET LOCAL enable_seqscan = off"))
        return bool(await tx.write(Sql(_STAYS[self._table].format(partition.name), (before,))))

    async def _drop_companions(self, adapter: Adapter, layout: PartitionLayout, before: datetime) -> None:
        """Drop the partitions of events and steps whose runs are all gone."""
        for partition in layout.partitions:
            if partition.upper > first_id(before):
                return
            if await adapter.write(self._runs_of(partition)):
                continue
            try:
                await change_tables(adapter, self._drop_of_companion(layout.table, partition), ONCE)
            except _HasToStay:
                continue
            except (LockNotFree, DatabaseError):
                return

    def _runs_of(self, partition: Partition) -> Sql:
        """Asks whether there is a run of the time of a partition."""
        text = f"SELECT 1 FROM {self._table.name} WHERE id >= $1 AND id < $2 LIMIT 1"
        return Sql(text, (partition.lower, partition.upper))

    def _drop_of_companion(
        self, table: PartitionedTable, partition: Partition
    ) -> Callable[[Tx], Awaitable[None]]:
        """Drops a partition of events or steps, unless one of their runs is there after all."""

        async def work(tx: Tx) -> None:
            # Whoever is about to commit a run of that time is waited for, and nobody begins one meanwhile.
            await tx.execute(Sql(f"LOCK TABLE {self._table.name} IN SHARE MODE"))
            await tx.execute(Sql(f"LOCK TABLE {table.name} IN ACCESS EXCLUSIVE MODE"))
            if not await _is_attached(tx, table, partition) or await tx.write(self._runs_of(partition)):
                raise _HasToStay
            await tx.execute(Sql(f"DROP TABLE {partition.name}"))

        return work


async def _is_attached(tx: Tx, table: PartitionedTable, partition: Partition) -> bool:
    """Whether the table is still a partition with these bounds, and nobody's own."""
    layout = await read_layout(tx, table)
    return layout is not None and partition in layout.partitions


class _HasToStay(Exception):
    """A row of the partition has to stay after all, or the table is somebody's own by now."""
