"""Makes partitions for the time to come, beside those who write.

Before another partition is attached, PostgreSQL reads the whole default one to see that it has no row of it,
and lets nobody write meanwhile. Where that takes an instant, a partition is made in one transaction. Where
the default partition is large, a check comes first, which is validated beside the writers and tells
PostgreSQL the same; it goes again when the partition is there. A check that a killed process leaves would
refuse rows once its period begins. So it is only set up long before, for a limited time, and the next beat of
any keeper removes it; so does a process whose row it refuses (left_checks.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic

from maniflex._ids import first_id, moment_of
from maniflex.background.partitions.layout import (
    EVENTS,
    MESSAGES,
    PATIENCE,
    RUNS,
    STEPS,
    Partition,
    PartitionedTable,
    PartitionLayout,
    Period,
    partition_name,
    patient_sibling,
    read_layout,
    run_all,
    take_turn,
)
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.short_locks import LockLimits, change_tables
from maniflex.errors import ConstraintViolation, DeclarationError, RequestError, SerializationFailure
from maniflex.sql.statement import Sql

AHEAD = 3  # partitions that are there before their time
SOONEST = timedelta(minutes=1)  # a partition that begins sooner might have rows already
LATEST = timedelta(minutes=30)  # before a period begins, no check is left; clocks may be that far ahead
SMALL = 16 * 2**20  # bytes that are read within an instant
CHECK = "maniflex_ahead_check"

_OPTIONS = "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass($1)"
_EXISTS = "SELECT 1 WHERE to_regclass($1) IS NOT NULL"
_SIZE = "SELECT coalesce(pg_relation_size(to_regclass($1)), 0)"
_CHECKS = "SELECT 1 FROM pg_constraint WHERE conrelid = to_regclass($1) AND conname = $2"
_OWN_KEY = """
SELECT 1 FROM pg_index WHERE indrelid = to_regclass($1) AND indisprimary
   AND NOT EXISTS (SELECT 1 FROM pg_index p WHERE p.indrelid = to_regclass($2) AND p.indisprimary)
"""


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The names of the partitions that were made, and why others never will be, by their names."""

    made: Sequence[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


class PartitionBuilder:
    """Makes the partitions of one table."""

    def __init__(self, adapter: Adapter, table: PartitionedTable, patience: LockLimits) -> None:
        self._adapter = adapter
        self._table = table
        self._patience = patience

    async def build_ahead(
        self, now: datetime, period: Period | None = None, *, besides: Collection[str] = ()
    ) -> BuildOutcome:
        """Make those that are missing for the next periods, `besides` some."""
        began, layout = monotonic(), await read_layout(self._adapter, self._table)
        if layout is None:
            return BuildOutcome()
        await self.remove_check()
        if (length := period or layout.period) is None:
            return BuildOutcome()
        made, reasons = [], {}
        for one in missing_partitions(layout, length, now):
            if one.name in besides:
                continue
            try:  # each may take long
                await self._build(one, now + timedelta(seconds=monotonic() - began))
                made.append(one.name)
            except _NotMade as error:
                reasons[one.name] = str(error)
        return BuildOutcome(made, reasons)

    async def _build(self, partition: Partition, now: datetime) -> None:
        """Make one partition; `_NotMade` if that cannot be."""
        default, column = self._table.default, self._table.column
        try:
            if await self._is_default_small():
                await self._build_at_once(partition)
                return
            seconds = (moment_of(partition.lower) - LATEST - now).total_seconds()
            if seconds <= 0:
                raise TimeoutError
            async with asyncio.timeout(seconds):
                await self._build_beside_check(partition)
        except TimeoutError as error:
            raise _NotMade(
                f"{default} is too large to be looked through before its time comes near;"
                " partitions of longer periods (--by) are made earlier"
            ) from error
        except ConstraintViolation as error:
            raise _NotMade(
                f"{default} has rows of its time already; to see them, SELECT {column} FROM {default}"
                f" WHERE {column} >= '{partition.lower}' AND {column} < '{partition.upper}'"
            ) from error

    async def _is_default_small(self) -> bool:
        rows = await self._adapter.write(Sql(_SIZE, (self._table.default,)))
        return bool(rows[0][0] <= SMALL)

    async def _build_at_once(self, partition: Partition) -> None:
        async def work(tx: Tx) -> None:
            await self._make_table(tx, partition)
            await tx.execute(Sql(self._attach_text(partition)))

        await change_tables(self._adapter, work, self._patience)

    def _attach_text(self, partition: Partition) -> str:
        return (
            f"ALTER TABLE {self._table.name} ATTACH PARTITION {partition.name}"
            f" FOR VALUES FROM ('{partition.lower}') TO ('{partition.upper}')"
        )

    async def _build_beside_check(self, partition: Partition) -> None:
        default, column = self._table.default, self._table.column
        try:
            await run_all(
                self._adapter,
                [
                    f"ALTER TABLE {default} ADD CONSTRAINT {CHECK}"
                    f" CHECK ({column} < '{partition.lower}' OR {column} >= '{partition.upper}') NOT VALID"
                ],
                self._patience,
            )
            await run_all(
                self._adapter, [f"ALTER TABLE {default} VALIDATE CONSTRAINT {CHECK}"], self._patience
            )
            await change_tables(self._adapter, lambda tx: self._make_table(tx, partition), self._patience)
            await run_all(
                self._adapter,
                [self._attach_text(partition), f"ALTER TABLE {default} DROP CONSTRAINT {CHECK}"],
                self._patience,
            )
        except BaseException:
            await self.remove_check()
            raise

    async def _make_table(self, tx: Tx, partition: Partition) -> None:
        """The table by itself, so that making its indexes holds nobody up."""
        default, parent = self._table.default, self._table.name
        options = await _text_of(tx, Sql(_OPTIONS, (default,)))
        if await tx.write(Sql(_EXISTS, (partition.name,))):
            if await tx.write(Sql(f"SELECT 1 FROM {partition.name} LIMIT 1")):
                # Somebody has detached it, say.
                raise _NotMade(
                    f"a table of its name has rows; to keep them,"
                    f" ALTER TABLE {partition.name} RENAME TO {partition.name}_old"
                )
            await tx.execute(Sql(f"DROP TABLE {partition.name}"))  # one that was never attached
        storage = f" WITH ({options})" if options else ""
        await tx.execute(Sql(f"CREATE TABLE {partition.name} (LIKE {parent} INCLUDING ALL){storage}"))
        if await tx.write(Sql(_OWN_KEY, (default, parent))):
            await tx.execute(Sql(f"ALTER TABLE {partition.name} ADD PRIMARY KEY (id)"))
        await copy_grants(tx, parent, [partition.name])

    async def remove_check(self) -> None:
        """Remove a check that was left behind: when its time comes it would refuse rows."""
        if await has_check(self._adapter, self._table):
            await run_all(
                self._adapter,
                [f"ALTER TABLE {self._table.default} DROP CONSTRAINT IF EXISTS {CHECK}"],
                self._patience,
            )


class _NotMade(Exception):
    """Why a partition cannot be made."""


async def has_check(run: Executor, table: PartitionedTable) -> bool:
    """Whether the default partition has a check, which somebody works beside or has left behind."""
    return bool(await run.write(Sql(_CHECKS, (table.default, CHECK))))


def missing_partitions(layout: PartitionLayout, period: Period, now: datetime) -> list[Partition]:
    """Those of the next periods that are not there yet; what has begun is the default partition's.

    Of a period that other partitions have a part of, the rest: they may be shorter, or from a clock ahead.
    """
    soonest = now + SOONEST
    ends = [moment_of(one.upper) for one in layout.partitions]
    start = min([period.next_start(soonest), *(end for end in ends if end >= soonest)])
    last = period.next_start(now) + (AHEAD - 1) * period.value
    missing = []
    for one in layout.partitions:
        lower, upper = moment_of(one.lower), moment_of(one.upper)
        missing += _cut(layout.table, period, start, min(lower, last + period.value))
        start = max(start, upper)
    return missing + _cut(layout.table, period, start, last + period.value)


def _cut(table: PartitionedTable, period: Period, start: datetime, end: datetime) -> list[Partition]:
    """The partitions from one moment to another."""
    partitions = []
    while start < end:
        upper = min(period.next_start(start), end)
        partitions.append(Partition(partition_name(table.name, start), first_id(start), first_id(upper)))
        start = upper
    return partitions


async def _text_of(run: Executor, sql: Sql) -> str:
    rows = await run.write(sql)
    return str(rows[0][0] or "") if rows else ""


# What a table that takes the place of another must know: who may use it, and what else hangs on it.


_TABLE = """
SELECT relkind::text, relrowsecurity, pg_get_userbyid(relowner)::text,
       pg_get_userbyid(relowner) = current_user
  FROM pg_class WHERE oid = to_regclass($1)
"""
_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, g.privilege_type
  FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
 WHERE c.oid = to_regclass($1) AND g.grantee <> c.relowner
"""
# They belong to the table itself and not to its name, so they would stay with the rows it has now.
_DEPENDENTS = """
SELECT 'the view ' || w.ev_class::regclass FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid
 WHERE d.classid = 'pg_rewrite'::regclass
   AND d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass($1)
UNION
SELECT 'the foreign key from ' || conrelid::regclass || ' to ' || confrelid::regclass FROM pg_constraint
 WHERE contype = 'f' AND to_regclass($1) IN (conrelid, confrelid)
UNION
SELECT 'the trigger ' || tgname FROM pg_trigger
 WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND NOT starts_with(tgname, 'maniflex_')
UNION
SELECT 'the publication ' || p.pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE r.prrelid = to_regclass($1)
UNION
SELECT 'a privilege on the column ' || attname FROM pg_attribute
 WHERE attrelid = to_regclass($1) AND attacl IS NOT NULL
 ORDER BY 1
"""


async def require_plain_table(run: Executor, name: str) -> None:
    """Refuse a table that is not ours to replace, or that others hang on."""
    rows = await run.write(Sql(_TABLE, (name,)))
    if not rows:
        raise DeclarationError(f"there is no table {name!r}; start the application once, or migrate it up")
    kind, has_row_security, owner, is_ours = rows[0]
    if kind != "r":
        raise DeclarationError(f"{name!r} is no ordinary table, so it cannot be partitioned")
    if has_row_security:
        raise DeclarationError(f"{name!r} has row level security, which a partitioned table would lose")
    if not is_ours:
        raise DeclarationError(f"{name!r} belongs to the role {owner}; run the command as that role")
    if rows := await run.write(Sql(_DEPENDENTS, (name,))):
        dependents = ", ".join(row[0] for row in rows)
        raise DeclarationError(
            f"{name!r} cannot be partitioned, because it would lose {dependents};"
            " remove that, and make it again on the partitioned table"
        )


async def copy_grants(run: Executor, table: str, others: Sequence[str]) -> None:
    """Let those who may use the table use others in the same way."""
    for grantee, privilege in await run.write(Sql(_GRANTS, (table,))):
        for other in others:
            await run.execute(Sql(f"GRANT {privilege} ON {other} TO {grantee}"))


# Removes a check that a killed process left on a default partition, in the moment it refuses a row.
#
# The check keeps the default partition free of rows of a period until the partition of that period is
# there (builder.py). Whoever makes partitions removes what another left behind; where nobody does before
# the period begins, the first process whose row is refused does it.


_TABLES = {table.default: table for table in (RUNS, EVENTS, STEPS, MESSAGES)}
_PATIENCE = replace(PATIENCE, tries=5)


async def mend_refusal(adapter: Adapter, run: Executor, error: ConstraintViolation) -> None:
    """Return if the row may be stored now; otherwise raise what its caller is to be told."""
    table = _TABLES.get(error.table)
    if table is None or error.constraint != CHECK:
        raise error
    try:
        async with take_turn(adapter) as ours, patient_sibling(adapter) as own:
            if ours:  # otherwise another process removes it, or makes the partition
                await PartitionBuilder(own, table, _PATIENCE).remove_check()
    except RequestError as problem:  # this role may not own the table
        raise error from problem
    if not ours or run is not adapter:  # its transaction is over
        raise SerializationFailure() from error
