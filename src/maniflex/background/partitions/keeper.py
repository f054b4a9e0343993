"""Looks after the partitions of durable work: the next ones are there, and old ones go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from maniflex._ids import first_id, moment_of
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.partitions.layout import (
    LATEST,
    MESSAGES,
    OF_RUNS,
    ONCE,
    PACKAGE,
    RUNS,
    Partition,
    PartitionBuilder,
    PartitionedTable,
    PartitionLayout,
    has_check,
    missing_partitions,
    patient_sibling,
    read_layout,
    take_turn,
)
from maniflex.db.port import Adapter, Tx
from maniflex.db.short_locks import LockNotFree, change_tables
from maniflex.errors import DatabaseError, TransactionError
from maniflex.sql.statement import Dialect, Sql, by_dialect, load

EVERY = timedelta(seconds=10)
LOOK_EVERY = timedelta(minutes=1)  # whether tables have been partitioned
_KEYS_AT_ONCE = 1_000
_CLOCK_DIFFERENCE = timedelta(minutes=10)  # of those who make ids, at most
# Whether a worker or a relay may soon have something to do in a partition.
_OPEN = {
    RUNS: """
SELECT 1 WHERE EXISTS (SELECT 1 FROM {0} WHERE lease_until IS NOT NULL)
    OR EXISTS (SELECT 1 FROM {0}
                WHERE status = 'pending' AND deleted_at IS NULL AND type > '' AND run_at <= $1)
""",
    MESSAGES: """
SELECT 1 WHERE EXISTS (
        SELECT 1 FROM {0} WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL AND kind > '')
""",
}


# Partitions that an open transaction wrote to: it may commit long after their time has passed.
_WRITERS = """
SELECT DISTINCT l.relation::regclass::text FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation
 WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND i.inhparent = to_regclass($1)
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Learner(Protocol):
    """A store whose statements look into some partitions only."""

    def learn_partitions(self, layout: PartitionLayout | None, open: Sequence[str] = ()) -> None:
        """How its table is partitioned, and where something may be to do within seconds."""


class PartitionKeeper(Loop):
    """Makes partitions ahead of their time, and finds those that claims have to look at."""

    name = "maniflex-partitions"

    def __init__(self, environment: Environment, tables: Sequence[PartitionedTable], store: Learner) -> None:
        super().__init__(environment.clock, EVERY, environment.logger)
        self._adapter = environment.adapter
        self._tables = tables
        self._store = store
        self._after = ""  # keys up to here were looked at
        self._given_up: set[str] = set()  # partitions
        self._held_up: set[str] = set()  # partitions whose lock was not free when they were needed soon
        self._refused: set[PartitionedTable] = set()  # of which partitions could not be made

    async def tick(self) -> bool:
        is_partitioned = False
        for table in self._tables:
            layout = await read_layout(self._adapter, table)
            if layout is None:
                continue
            is_partitioned = True
            await self._try_to_build(layout)
            if table in _OPEN:
                await self._tell_open(layout)
            if table == RUNS:
                await self._prune_keys(layout)
        self.interval = EVERY if is_partitioned else LOOK_EVERY
        return False

    async def _build(self, layout: PartitionLayout) -> None:
        period, now = layout.period, self.clock.now()
        missing = [] if period is None else missing_partitions(layout, period, now)
        missing = [one for one in missing if one.name not in self._given_up]
        if not missing and not await has_check(self._adapter, layout.table):
            return
        async with take_turn(self._adapter) as ours:
            if not ours:
                return
            async with patient_sibling(self._adapter) as adapter:
                builder = PartitionBuilder(adapter, layout.table, ONCE)
                try:
                    outcome = await builder.build_ahead(now, besides=self._given_up)
                except LockNotFree:  # the next tick tries again
                    self._warn_of_locks(layout.table, missing, now)
                    return
        if outcome.made:
            self.logger.info("made the partitions %s", ", ".join(outcome.made))
        self._given_up |= outcome.reasons.keys()
        for name, reason in outcome.reasons.items():
            self.logger.warning(
                "the partition %s is not made, and its rows go to %s: %s. When that has changed, type"
                " maniflex partition module:server %s --by %s",
                *(name, layout.table.default, reason),
                *("messages" if layout.table == MESSAGES else "runs", period and period.name.lower()),
            )

    def _warn_of_locks(self, table: PartitionedTable, missing: Sequence[Partition], now: datetime) -> None:
        """Say once that a partition cannot be made though it is needed soon."""
        near = {one.name for one in missing if moment_of(one.lower) - now <= LATEST} - self._held_up
        self._held_up |= near
        for name in near:
            self.logger.warning(
                "the partition %s is not made yet, because others hold the lock of %s or %s; if they go on,"
                " its rows go to %s. To see who: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT"
                " pid FROM pg_locks WHERE relation IN ('%s'::regclass, '%s'::regclass))",
                *(name, table.name, table.default, table.default, table.name, table.default),
            )

    async def _try_to_build(self, layout: PartitionLayout) -> None:
        try:
            await self._build(layout)
        except TransactionError:
            raise
        except DatabaseError as error:  # this role may not own the tables; rows are well in the default one
            if layout.table not in self._refused:
                self._refused.add(layout.table)
                self.logger.warning(
                    "the partitions of %s could not be made; let `maniflex partition` make them now and then,"
                    " as the role that owns the tables",
                    layout.table.name,
                    exc_info=error,
                )

    async def _tell_open(self, layout: PartitionLayout) -> None:
        try:
            self._store.learn_partitions(layout, await self._open_partitions(layout))
        except DatabaseError as error:
            if isinstance(error, TransactionError):
                raise
            self._store.learn_partitions(None)  # retention dropped one meanwhile; the next tick knows more

    async def _open_partitions(self, layout: PartitionLayout) -> list[str]:
        """Those that new rows go to, those somebody writes to, and those where one may be claimed soon."""
        now, until = self.clock.now(), self.clock.now() + 2 * EVERY
        text = _OPEN[layout.table]
        params = (until,) if "$1" in text else ()
        earliest, latest = first_id(now - _CLOCK_DIFFERENCE), first_id(now + _CLOCK_DIFFERENCE)
        names = [] if layout.default is None else [layout.default]
        async with self._adapter.transaction() as tx:
            await tx.execute(Sql("SET LOCAL enable_seqscan = off"))
            # Before the rows are looked at: who commits in between is seen by that look.
            written_tables = {name for (name,) in await tx.write(Sql(_WRITERS, (layout.table.name,)))}
            for one in layout.partitions:
                is_current = one.upper > earliest and one.lower <= latest
                is_open = is_current or one.name in written_tables
                if is_open or await tx.write(Sql(text.format(one.name), params)):
                    names.append(one.name)
        return names

    async def _prune_keys(self, layout: PartitionLayout) -> None:
        """Remove keys of runs that went with their partitions, a few at a time."""
        if not layout.partitions:
            return
        statement = load(PACKAGE, "partitions", Dialect.POSTGRES)["prune_keys"]
        values = {"after": self._after, "below": layout.partitions[0].lower, "limit": _KEYS_AT_ONCE}
        [(last, count)] = await self._adapter.write(statement.bind(**values))
        self._after = last if count == _KEYS_AT_ONCE else ""


def keeper_of(
    environment: Environment, tables: Sequence[PartitionedTable], store: Learner
) -> list[PartitionKeeper]:
    """The keeper of these tables; none where a database has no partitions."""
    has_partitions = by_dialect(environment.adapter.dialect, sqlite=False, postgres=True)
    return [PartitionKeeper(environment, tables, store)] if has_partitions else []


# Removes whole partitions whose rows are all over and old enough; nothing that is not over goes with them.
#
# Whether a row has to stay is asked once beside the writers and once more with the table locked, because a
# run may be retried in between. A partition with such a row is kept, and pruned row by row as a table
# without partitions is; so is the default partition. A table that somebody detached is theirs: it is
# neither dropped nor pruned, whatever its name.


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
