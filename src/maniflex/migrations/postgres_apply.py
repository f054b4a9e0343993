"""The operations of a file on PostgreSQL, one transaction after the other, beside writers that go on.

A statement that needs a strong lock waits for it half a second and no longer, because all requests for the
table queue up behind one that waits; then it tries again a little later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.columns import LogEntry, read_log, write_entry
from maniflex.db.current import reading
from maniflex.db.port import Adapter, Tx
from maniflex.db.short_locks import LockNotFree, change_tables, lift_timeouts
from maniflex.errors import ConstraintViolation, ManiflexError
from maniflex.migrations.actions import (
    Action,
    BackfillAction,
    CodeAction,
    Commit,
    IndexBuild,
    StatementAction,
    StoredRowsCheck,
)
from maniflex.migrations.backfill import Backfiller
from maniflex.migrations.errors import MigrationError
from maniflex.migrations.job import FileJob, MigrationListener, note_columns, run_check, run_code
from maniflex.migrations.operations import Backfill
from maniflex.migrations.partitioned_index import build_statements, read_leaves
from maniflex.migrations.postgres_plan import plan_on_postgres
from maniflex.migrations.target import MigrationTarget
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import quote

LOCK = 0x6D616E69666C6579 >> 1  # not that of the start, which may wait for us
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5  # seconds between two tries
_STATE = """
SELECT i.indisvalid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
 WHERE c.oid = to_regclass($1)
"""


@asynccontextmanager
async def migration_lock(adapter: Adapter, tell: Callable[[str], object]) -> AsyncIterator[None]:
    """Let no other process migrate this database meanwhile; wait for one that does."""
    holder = adapter.sibling(patient=True)
    await holder.open()
    is_told = False
    try:
        while True:
            # A transaction of its own: a lock of a session would not survive a transaction pooler.
            async with holder.transaction() as tx:
                if await _take_lock(tx):
                    yield
                    return
            if not is_told:
                tell("another process migrates this database; waiting for it")
                is_told = True
            # In no transaction: an index that the other builds concurrently waits for all snapshots, so it
            # and a statement that waits for the lock would wait for each other.
            await asyncio.sleep(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))
    finally:
        await holder.close()


async def _take_lock(tx: Tx) -> bool:
    await lift_timeouts(tx)
    rows = await tx.fetch(Sql("SELECT pg_try_advisory_xact_lock($1)", (LOCK,)))
    # The last query of a transaction keeps its snapshot, for which index builds wait, too. This statement
    # takes its place and has none.
    await lift_timeouts(tx)
    return bool(rows[0][0])


class PostgresSteps:
    """Carries out the operations of one file."""

    def __init__(self, target: MigrationTarget, listener: MigrationListener, job: FileJob | None) -> None:
        self._target = target
        self._adapter = target.adapter
        self._listener = listener
        self._job = job
        self._is_building = False
        operations = job.operations if job is not None else ()
        self._new_tables = {o.table_name for o in operations if isinstance(o, ops.CreateTableOp)}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The connections that index builds need for themselves."""
        self._builder: Adapter = self._adapter.sibling(patient=True)
        try:
            yield
        finally:
            await self._builder.close()

    async def perform(self, number: int, operation: MigrateOperation) -> None:
        """Carry out one operation and note that it is done."""
        plan = await plan_on_postgres(operation, reading(self._adapter), self._new_tables)
        parts = _parts(plan)
        for position, part in enumerate(parts):
            is_last = position == len(parts) - 1
            if isinstance(part, IndexBuild):
                await self._build_index(part)
            elif isinstance(part, Backfill):
                await self._fill(number, part)
            else:
                await self._run_part(part, (number, operation) if is_last else None)
                continue
            if is_last:
                await self._run_part((), (number, operation))
        if not parts:
            await self._run_part((), (number, operation))

    async def _run_part(self, actions: Sequence[Action], done: tuple[int, MigrateOperation] | None) -> None:
        async def work(tx: Tx) -> None:
            for action in actions:
                await self._act(tx, action)
            if done is not None and self._job is not None:
                await note_columns(tx, self._job, done[1])
                await self._note_progress(tx, {"steps": done[0]})

        await self.in_transaction(work)

    async def in_transaction(self, work: Callable[[Tx], Awaitable[None]]) -> None:
        """Run `work` in a transaction; again when it had to wait too long for a lock."""
        limits = self._target.lock_limits

        def tell(attempt: int) -> None:
            self._listener.on_step(f"waiting for a lock (try {attempt} of {limits.tries})")

        try:
            await change_tables(self._adapter, work, limits, tell)
        except LockNotFree as error:
            raise MigrationError(f"{error}, with more --tries or a longer --lock-timeout") from error

    async def _act(self, tx: Tx, action: Action) -> None:
        match action:
            case StatementAction(text):
                await tx.execute(Sql(text))
            case StoredRowsCheck():
                await run_check(tx, action)
            case CodeAction(run):
                await run_code(self._target, run.model, run.fn)
            case Commit() | IndexBuild() | BackfillAction():
                raise AssertionError("it is a part of its own")

    # -- progress

    async def _note_progress(self, tx: Tx, progress: dict[str, Any]) -> None:
        job = self._job
        if job is None:
            return
        entry = LogEntry(
            job.file.revision,
            job.file.digest,
            None,
            None,
            {**progress, "digest": job.digest(progress["steps"]), "back": job.back},
        )
        await write_entry(tx, entry)

    async def _fill(self, number: int, backfill: Backfill) -> None:
        """Fill batch by batch, each in a transaction that also notes the last key."""
        backfiller = Backfiller(backfill, self._target.models)
        last, rows = await self._last_key(number), 0

        while True:
            count = 0

            async def batch(tx: Tx) -> None:
                nonlocal count, last
                count, key = await backfiller.run_batch(tx, last)
                if count:
                    await self._note_progress(tx, {"steps": number - 1, "key": key})
                    last = key

            before = last
            try:
                await self.in_transaction(batch)
            except ManiflexError:
                last = before
                raise
            if not count:
                return
            rows += count
            self._listener.on_rows(backfill.table, rows)
            await asyncio.sleep(backfill.pause)

    async def _last_key(self, number: int) -> Any:
        assert self._job is not None
        entry = (await read_log(reading(self._adapter))).get(self._job.file.revision)
        progress = entry.progress if entry is not None else None
        if progress and progress.get("back") is self._job.back and progress.get("steps") == number - 1:
            return progress.get("key")
        return None

    # -- indexes

    async def _build_index(self, build: IndexBuild) -> None:
        """Build an index beside the writers; one that was left unfinished is dropped and built again."""
        name = quote(build.name, Dialect.POSTGRES)
        row = await reading(self._adapter).fetch_one(Sql(_STATE, (name,)))
        if row is not None and row[0]:
            return
        leaves = await read_leaves(reading(self._adapter), build.table)
        drop = f"DROP INDEX {'' if leaves else 'CONCURRENTLY '}IF EXISTS {name}"
        await self._wait_for_table(build.table)
        if row is not None:
            self._listener.on_step(f"the index {build.name} was left unfinished; building it again")
            await self._alone(drop)
        try:
            for text in build_statements(build, leaves) if leaves else (build.text,):
                await self._alone(text)
        except ConstraintViolation as error:
            await self._alone(drop)
            columns = ", ".join(error.columns)
            raise MigrationError(
                f"{build.table} has rows with equal values in {columns or 'the columns of the index'}, so the"
                f" unique index {build.name} cannot be built; change or delete all but one row of each group"
            ) from error
        except ManiflexError:
            await self._alone(drop)
            raise

    async def _wait_for_table(self, table: str) -> None:
        """Make sure that no session keeps the table to itself: the build would wait for it without end."""

        async def lock(tx: Tx) -> None:
            await tx.execute(
                Sql(f"LOCK TABLE {quote(table, Dialect.POSTGRES)} IN SHARE UPDATE EXCLUSIVE MODE")
            )

        await self.in_transaction(lock)

    async def _alone(self, text: str) -> None:
        """Run a statement that no transaction may hold, for as long as it takes."""
        if not self._is_building:
            await self._builder.open()
            self._is_building = True
        await self._builder.execute(Sql(text))


def _parts(actions: Sequence[Action]) -> list[Any]:
    """Actions that share a transaction, and those that stand alone."""
    parts: list[Any] = []
    for action in actions:
        if isinstance(action, IndexBuild):
            parts.append(action)
        elif isinstance(action, BackfillAction):
            parts.append(action.backfill)
        elif isinstance(action, Commit) or not parts or not isinstance(parts[-1], list):
            parts.append([] if isinstance(action, Commit) else [action])
        else:
            parts[-1].append(action)
    return [part for part in parts if part != []]
