"""Makes a partitioned table of an existing one, beside those who work on it.

The table itself becomes the default partition of a new one that takes its name: names change, and no row is
moved. What takes time comes before, beside the writers: indexes, and the table of keys. Every step looks
first whether it is done already, so a move that was killed is finished by the same command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from maniflex.background.partitions.layout import (
    MESSAGES,
    OF_RUNS,
    PACKAGE,
    PATIENCE,
    RUNS,
    PartitionBuilder,
    PartitionedTable,
    Period,
    copy_grants,
    patient_sibling,
    read_layout,
    require_plain_table,
    run_all,
    take_turn,
)
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.short_locks import LockLimits, change_tables
from maniflex.errors import Conflict, DeclarationError
from maniflex.sql.statement import Dialect, Sql, by_dialect, load

_PAGE = 5_000  # keys copied at once
_LONGEST_NAME = 63
_TWIN = "_twin"
_UPDATED = "workflow_run_updated_idx"

_INDEXES = """
SELECT c.relname::text, pg_get_indexdef(i.indexrelid), i.indisunique, i.indisprimary, i.indisvalid,
       $2 = ANY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0 : i.indnkeyatts - 1]))
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = to_regclass($1) ORDER BY c.relname
"""
_DEFINITION = re.compile(
    r"CREATE (?:UNIQUE )?INDEX (?:\S+|\"[^\"]+\") ON (?:ONLY )?\S+ (USING .*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class _TableIndex:
    name: str
    definition: str  # from USING on
    unique: bool
    primary: bool
    valid: bool
    has_column: bool  # the one that the table is partitioned by

    @property
    def is_in_the_way(self) -> bool:
        """Whether a partitioned table cannot have it as it is."""
        return self.unique and not self.primary and not self.has_column


class TableMover:
    """Partitions one table of a database that may be in use."""

    def __init__(
        self,
        adapter: Adapter,
        table: PartitionedTable,
        patience: LockLimits,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._adapter = adapter
        self._table = table
        self._patience = patience
        self._tell = tell
        self._sql = load(PACKAGE, "partitions", Dialect.POSTGRES)

    async def move(self) -> bool:
        """Partition the table; False when it is partitioned already."""
        if await read_layout(self._adapter, self._table) is not None:
            return False
        await require_plain_table(self._adapter, self._table.name)
        if self._table == RUNS:
            await self._keep_keys()
        await self._build_twins()
        self._tell(f"{self._table.name} becomes the default partition of a table of its name")
        await change_tables(self._adapter, self._switch, self._patience)
        return True

    # -- beside the writers

    async def _keep_keys(self) -> None:
        """The keys of all runs in a table of their own, and triggers that keep it so."""
        names = (
            "keys",
            "keys_of_runs",
            "groups",
            "take_key",
            "note_key",
            "free_key",
            "hold_group",
            "free_group",
        )
        triggers = ("note_keys_trigger", "free_keys_trigger", "free_removed_keys_trigger")
        await self._run(names)
        # Before any trigger: it writes there as whoever stores a run.
        await copy_grants(self._adapter, self._table.name, ("workflow_key", "workflow_group"))
        await self._run(triggers)
        after, pages = "", 0
        while True:
            rows = await self._adapter.write(self._sql["copy_keys"].bind(after=after, limit=_PAGE))
            if rows[0][0] is None:
                return
            after, pages = rows[0][0], pages + 1
            if pages % 100 == 0:
                self._tell(f"copied the keys of {pages * _PAGE} runs")

    async def _build_twins(self) -> None:
        """Build indexes that are not unique for those in the way, and one by the time of the last change."""
        indexes = {index.name: index for index in await self._indexes(self._adapter)}
        twins = [
            (_shorten(index.name, _TWIN), index.definition)
            for index in indexes.values()
            if index.is_in_the_way
        ]
        if self._table == RUNS:
            twins.append((_UPDATED, "USING brin (updated_at) WITH (pages_per_range = 32)"))
        for name, definition in twins:
            if (existing := indexes.get(name)) is not None and existing.valid:
                continue
            self._tell(f"building an index on {self._table.name}")
            if existing is not None:  # left unfinished
                await self._adapter.execute(Sql(f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"'))
            await self._adapter.execute(
                Sql(f'CREATE INDEX CONCURRENTLY "{name}" ON {self._table.name} {definition}')
            )

    # -- in one transaction, with the table to itself

    async def _switch(self, tx: Tx) -> None:
        table, default = self._table.name, self._table.default
        await tx.execute(Sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        indexes = await self._indexes(tx)
        await self._rename_all(tx, indexes)
        await tx.execute(
            Sql(
                f"CREATE TABLE {table} (LIKE {default} INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
                f" INCLUDING STORAGE INCLUDING GENERATED INCLUDING COMMENTS)"
                f" PARTITION BY RANGE ({self._table.column})"
            )
        )
        for index in indexes:
            await self._make_on_parent(tx, index)
        await tx.execute(Sql(f"ALTER TABLE {table} ATTACH PARTITION {default} DEFAULT"))
        if self._table == RUNS:
            await self._set_triggers(tx)
        await copy_grants(tx, default, [table])

    async def _rename_all(self, tx: Tx, indexes: Sequence[_TableIndex]) -> None:
        """Give the table and its indexes new names; twins take the place of what is in the way."""
        table, default = self._table.name, self._table.default
        for index in indexes:
            if index.is_in_the_way:
                await tx.execute(Sql(f'DROP INDEX "{index.name}"'))
                continue
            name = _shorten(index.name.removesuffix(_TWIN), "_default")
            await tx.execute(Sql(f'ALTER INDEX "{index.name}" RENAME TO "{name}"'))
        await tx.execute(Sql(f"ALTER TABLE {table} RENAME TO {default}"))

    async def _make_on_parent(self, tx: Tx, index: _TableIndex) -> None:
        """The same index on the partitioned table, of which the renamed one becomes a part."""
        table = self._table.name
        if index.is_in_the_way:
            return  # its twin has its name
        if index.primary:
            if index.has_column:
                await tx.execute(Sql(f'ALTER TABLE {table} ADD CONSTRAINT "{index.name}" PRIMARY KEY (id)'))
            return
        unique = "UNIQUE " if index.unique else ""
        name = index.name.removesuffix(_TWIN)
        await tx.execute(Sql(f'CREATE {unique}INDEX "{name}" ON {table} {index.definition}'))

    async def _set_triggers(self, tx: Tx) -> None:
        for name in ("maniflex_note_key", "maniflex_free_key", "maniflex_free_removed_key"):
            await tx.execute(Sql(f"DROP TRIGGER IF EXISTS {name} ON {self._table.default}"))
        for name, statement in self._sql.items():
            if name.endswith("_trigger") and name != "note_keys_trigger":
                await tx.execute(statement.bind())
        await tx.execute(self._sql["copy_groups"].bind())

    # -- small things

    async def _run(self, names: Sequence[str]) -> None:
        await run_all(self._adapter, [self._sql[name].text for name in names], self._patience)

    async def _indexes(self, run: Executor) -> list[_TableIndex]:
        rows = await run.write(Sql(_INDEXES, (self._table.name, self._table.column)))
        return [
            _TableIndex(name, _definition(text), unique, primary, valid, has_column)
            for name, text, unique, primary, valid, has_column in rows
        ]


def _definition(text: str) -> str:
    match = _DEFINITION.fullmatch(text)
    assert match is not None, text
    return match[1]


def _shorten(name: str, suffix: str) -> str:
    return name[: _LONGEST_NAME - len(suffix)] + suffix


# What `maniflex partition` does: partition the tables of runs or messages, whatever state they are in.


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
