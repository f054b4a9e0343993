"""What `maniflex partition` does: partition the tables of runs or messages, whatever state they are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from maniflex.background.partitions.builder import PartitionBuilder
from maniflex.background.partitions.layout import (
    MESSAGES,
    OF_RUNS,
    PATIENCE,
    RUNS,
    PartitionedTable,
    Period,
    patient_sibling,
    take_turn,
)
from maniflex.background.partitions.mover import TableMover
from maniflex.db.port import Adapter
from maniflex.db.short_locks import LockLimits
from maniflex.errors import Conflict, DeclarationError
from maniflex.sql.statement import Sql, by_dialect

TABLES: dict[str, Sequence[PartitionedTable]] = {"runs": (RUNS, *OF_RUNS), "messages": (MESSAGES,)}
OLDEST_SERVER = 140_000  # as server_version_num


async def partition_tables(
    adapter: Adapter,
    tables: Sequence[PartitionedTable],
    period: Period,
    now: datetime | None = None,
    *,
    patience: LockLimits = PATIENCE,
    tell: Callable[[str], object] = lambda text: None,
) -> list[str]:
    """Partition the tables that are not, and make the partitions of the next periods.

    They begin after `now`, which the database says if nobody does: the clock here may be wrong. Returns the
    names of the partitions that could not be made.
    """
    if not by_dialect(adapter.dialect, sqlite=False, postgres=True):
        raise DeclarationError("only PostgreSQL has partitions; on SQLite retention goes row by row")
    async with take_turn(adapter) as ours, patient_sibling(adapter) as own:
        if not ours:
            raise Conflict("another process is changing partitions of this database; try again in a moment")
        await _require_server(own)
        missing_names: list[str] = []
        for table in tables:
            if not await TableMover(own, table, patience, tell).move():
                tell(f"{table.name} is partitioned already")
            moment = now or await _database_time(own)  # to move a table may take hours
            outcome = await PartitionBuilder(own, table, patience).build_ahead(moment, period)
            if outcome.made:
                tell(f"made {', '.join(outcome.made)}")
            for name, reason in outcome.reasons.items():
                tell(f"{name} was not made: {reason}")
                missing_names.append(name)
        return missing_names


async def _database_time(adapter: Adapter) -> datetime:
    [(now,)] = await adapter.write(Sql("SELECT now()"))
    return now.astimezone(UTC)  # type: ignore[no-any-return]  # a datetime


async def _require_server(adapter: Adapter) -> None:
    [(number,)] = await adapter.write(Sql("SELECT current_setting('server_version_num')::int"))
    if number < OLDEST_SERVER:
        raise DeclarationError(f"partitions need PostgreSQL {OLDEST_SERVER // 10_000} or later")
