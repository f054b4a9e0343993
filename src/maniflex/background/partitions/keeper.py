"""Looks after the partitions of durable work: the next ones are there, and claims know which to look at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from maniflex._ids import first_id, moment_of
from maniflex.background.environment import Environment
from maniflex.background.loop import Loop
from maniflex.background.partitions.builder import LATEST, PartitionBuilder, has_check, missing_partitions
from maniflex.background.partitions.layout import (
    MESSAGES,
    ONCE,
    PACKAGE,
    RUNS,
    Partition,
    PartitionedTable,
    PartitionLayout,
    patient_sibling,
    read_layout,
    take_turn,
)
from maniflex.db.short_locks import LockNotFree
from maniflex.errors import DatabaseError, TransactionError
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_files import load

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
