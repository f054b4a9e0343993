"""Which tables of durable work may be partitioned, what the database has of them, and the next partitions.

A partitioned table has a default partition, which takes every row that no other one is for: those from
before the table was partitioned, and those whose id the application chose.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from time import monotonic

from maniflex._ids import first_id, moment_of
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.short_locks import LockLimits, change_tables
from maniflex.errors import ConstraintViolation, DeclarationError, RequestError, SerializationFailure
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


# Makes partitions for the time to come, beside those who write.
#
# Before another partition is attached, PostgreSQL reads the whole default one to see that it has no row of
# it, and lets nobody write meanwhile. Where that takes an instant, a partition is made in one transaction.
# Where the default partition is large, a check comes first, which is validated beside the writers and tells
# PostgreSQL the same; it goes again when the partition is there. A check that a killed process leaves would
# refuse rows once its period begins. So it is only set up long before, for a limited time, and the next
# beat of any keeper removes it; so does a process whose row it refuses (left_checks.py).


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
        made_names, reasons = [], {}
        for one in missing_partitions(layout, length, now):
            if one.name in besides:
                continue
            try:  # each may take long
                await self._build(one, now + timedelta(seconds=monotonic() - began))
                made_names.append(one.name)
            except _NotMade as error:
                reasons[one.name] = str(error)
        return BuildOutcome(made_names, reasons)

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
