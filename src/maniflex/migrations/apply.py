"""Apply migration files to a database, or undo them; one process at a time, and never half.

SQLite: a file is one transaction. PostgreSQL: each operation is, because a lock that is held while the next
one is waited for would stop the writers of both tables; with each operation its number is committed, and an
`up` that was killed goes on behind the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from alembic.runtime.migration import RevisionStep

from maniflex.db.columns import (
    LogEntry,
    delete_entry,
    make_tables,
    read_columns,
    read_heads,
    read_log,
    write_entry,
)
from maniflex.db.current import reading, transaction
from maniflex.db.decimal_schema import migrate_decimals
from maniflex.db.history_schema import make_table as make_history_schema
from maniflex.db.port import Executor, Tx
from maniflex.db.search_schema import adds_search_column, migrate_search
from maniflex.migrations.files import MigrationFile
from maniflex.migrations.job import (
    FileJob,
    MigrationListener,
    describe_operation,
    note_columns,
    note_version,
    run_check,
    run_code,
    step_errors,
    version_statements,
)
from maniflex.migrations.operations import (
    BackfillAction,
    CodeAction,
    Commit,
    IndexBuild,
    StatementAction,
    StoredRowsCheck,
)
from maniflex.migrations.postgres_apply import Backfiller, PostgresSteps, migration_lock
from maniflex.migrations.sqlite_plan import foreign_key_check, plan_on_sqlite, without_foreign_keys
from maniflex.migrations.take_over import find_file_of_tables
from maniflex.migrations.target import MigrationError, MigrationTarget
from maniflex.model.history_row import is_history
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote


@dataclass(slots=True)
class Migrator:
    """Brings one database to a revision; one whose tables the start has made from the file it is at."""

    target: MigrationTarget
    listener: MigrationListener = field(default_factory=MigrationListener)
    allow_rewrite: bool = False  # of a large table, for search

    async def up(self, revision: str = "head") -> int:
        """Apply pending files up to a revision; returns how many files that were."""
        await self._refuse_interrupted(back=True)
        revision = await self._goal_ahead(revision)
        made_by_start = await find_file_of_tables(self.target, _up_to)
        return await self._run(lambda heads: self._pending(heads, revision), made_by_start)

    async def down(self, revision: str) -> int:
        """Undo files back to a revision; returns how many files that were."""
        files = self.target.files
        goal = await self.goal(revision)
        await self._refuse_interrupted(back=False)

        def pending(heads: tuple[str, ...]) -> list[FileJob]:
            if not heads:
                return []
            steps = files.steps_down(heads, goal)
            return [self._job(file, step, heads, back=True) for file, step in steps[:1]]

        return await self._run(pending)

    async def _refuse_interrupted(self, *, back: bool) -> None:
        """What was done of an interrupted file is behind no revision, so only its own direction goes on."""
        log = await read_log(reading(self.target.adapter))
        for file in self.target.files.all():
            progress = log[file.revision].progress if file.revision in log else None
            if progress and progress.get("back") is back:
                word, verb = ("down @", "undone") if back else ("up @", "applied")
                raise MigrationError(
                    f"{file.title} is {verb} in part, up to operation {progress['steps']}, because that was"
                    f" interrupted; finish it first with {self.target.command(word)}"
                )

    async def goal(self, revision: str) -> str:
        """A relative revision such as -1 as the one it means, from where the database is now."""
        heads = await read_heads(reading(self.target.adapter))
        if heads is None:
            raise MigrationError(
                f"{self.target.adapter.label} is at no revision, so there is nothing to undo"
            )
        if not revision.startswith("-"):
            return revision
        steps = self.target.files.steps_down(heads, revision)
        down: Any = steps[-1][0].script.down_revision if steps else heads[0]
        return "base" if down is None else down if isinstance(down, str) else str(down[0])

    async def _goal_ahead(self, revision: str) -> str:
        """A relative revision such as +1 as the one it means; each file that is applied would move it on."""
        if not revision.startswith("+"):
            return revision
        heads = await read_heads(reading(self.target.adapter)) or ()
        steps = self.target.files.steps_up(heads, revision)
        return steps[-1][0].revision if steps else revision

    def _pending(self, heads: tuple[str, ...], revision: str) -> list[FileJob]:
        steps = self.target.files.steps_up(heads, revision)
        return [self._job(file, step, heads) for file, step in steps[:1]]

    def _job(
        self, file: MigrationFile, step: RevisionStep, heads: tuple[str, ...], *, back: bool = False
    ) -> FileJob:
        return FileJob(file, step, file.operations(self.target.dialect, back=back), back, heads)

    async def _run(
        self,
        pending: Callable[[tuple[str, ...]], list[FileJob]],
        made_by_start: MigrationFile | None = None,
    ) -> int:
        count = 0
        async with self._lock():
            if made_by_start is not None and await read_heads(reading(self.target.adapter)) is None:
                await stamp(self.target, made_by_start.revision)
                for file in applied_files(self.target, (made_by_start.revision,)):
                    self.listener.on_noted(file)
            while jobs := pending(await read_heads(reading(self.target.adapter)) or ()):
                began = time.monotonic()
                if await self._apply(jobs[0]):
                    count += 1
                    self.listener.on_file(jobs[0].file, time.monotonic() - began)
            await self._finish()
        return count

    def _lock(self) -> AbstractAsyncContextManager[None]:
        adapter = self.target.adapter
        return by_dialect(
            adapter.dialect,
            sqlite=without_foreign_keys(adapter),  # the one transaction of a file is the lock
            postgres=migration_lock(adapter, self.listener.on_step),
        )

    async def _apply(self, job: FileJob) -> bool:
        return await by_dialect(
            self.target.dialect, sqlite=self._apply_on_sqlite, postgres=self._apply_on_postgres
        )(job)

    async def _finish(self) -> None:
        """Bring derived pieces up to date, also when no file was pending."""
        if await read_heads(reading(self.target.adapter)) is not None:
            await by_dialect(
                self.target.dialect, sqlite=self._finish_on_sqlite, postgres=self._finish_on_postgres
            )()

    # -- SQLite

    async def _apply_on_sqlite(self, job: FileJob) -> bool:
        began = time.monotonic()
        adapter = self.target.adapter
        async with transaction(adapter) as tx:
            if (await read_heads(tx) or ()) != job.heads:
                return False  # another process was first
            await make_tables(tx)
            for number, operation in enumerate(job.operations, 1):
                async with step_errors(job, number):
                    self.listener.on_step(describe_operation(operation))
                    for action in await plan_on_sqlite(operation, tx):
                        await self._act(tx, action)
                    await note_columns(tx, job, operation)
            await refresh_derived(tx, self.target.models)
            async with step_errors(job, len(job.operations)):
                await self._act(tx, foreign_key_check())
            await note_version(tx, job, time.monotonic() - began)
        return True

    async def _finish_on_sqlite(self) -> None:
        async with transaction(self.target.adapter) as tx:
            await self._make_history_schema(tx)
            await refresh_derived(tx, self.target.models)

    async def _make_history_schema(self, tx: Tx) -> None:
        """Make the table in which starts and migrations note how histories are written."""
        if any(is_history(model.meta) for model in self.target.models):
            await make_history_schema(tx)

    async def _act(self, tx: Tx, action: Any) -> None:
        match action:
            case StatementAction(text):
                await tx.execute(Sql(text))
            case StoredRowsCheck():
                await run_check(tx, action)
            case BackfillAction(backfill):
                await self._fill(tx, Backfiller(backfill, self.target.models), backfill.table)
            case CodeAction(run):
                await run_code(self.target, run.model, run.fn)
            case Commit() | IndexBuild():
                raise AssertionError("SQLite applies a file in one transaction")

    async def _fill(self, tx: Tx, backfiller: Backfiller, table: str) -> None:
        last, rows = None, 0
        while True:
            count, last = await backfiller.run_batch(tx, last)
            if not count:
                return
            rows += count
            self.listener.on_rows(table, rows)

    # -- PostgreSQL

    async def _apply_on_postgres(self, job: FileJob) -> bool:
        began = time.monotonic()
        steps = PostgresSteps(self.target, self.listener, job)
        async with steps.open():
            done = await self._steps_done(job)
            for number, operation in enumerate(job.operations, 1):
                if number > done:
                    async with step_errors(job, number):
                        self.listener.on_step(describe_operation(operation))
                        await steps.perform(number, operation)
            async with step_errors(job, len(job.operations)):
                await steps.in_transaction(lambda tx: note_version(tx, job, time.monotonic() - began))
        return True

    async def _steps_done(self, job: FileJob) -> int:
        """How many operations of the file were committed by an `up` that was interrupted."""
        async with transaction(self.target.adapter) as tx:
            await make_tables(tx)
            entry = (await read_log(tx)).get(job.file.revision)
        progress = entry.progress if entry is not None else None
        if not progress or progress.get("back") is not job.back:
            return 0
        done = int(progress["steps"])
        if progress["digest"] != job.digest(done):
            raise MigrationError(
                f"{job.file.title} was interrupted after {done} of its operations, which the file has"
                " changed since; change only what comes behind them"
            )
        return done

    async def _finish_on_postgres(self) -> None:
        run = reading(self.target.adapter)
        async with transaction(self.target.adapter) as tx:
            await self._make_history_schema(tx)
        ready = await ready_models(run, self.target.models)
        large = [] if self.allow_rewrite else await large_rewrites(run, ready)
        for model in self.target.models:
            if not model.readonly and model not in large:
                steps = PostgresSteps(self.target, self.listener, None)
                async with steps.open():
                    await steps.in_transaction(lambda tx, model=model: refresh_derived(tx, [model]))  # type: ignore[misc]
        if large:
            raise MigrationError(describe_rewrites(self.target, large))


async def _up_to(target: MigrationTarget, revision: str) -> int:
    return await Migrator(target).up(revision)


async def stamp(target: MigrationTarget, revision: str) -> None:
    """Note that the database is at a revision, without applying anything."""
    async with transaction(target.adapter) as tx:
        await make_tables(tx)
        heads = await read_heads(tx) or ()
        for step in target.files.steps_to_stamp(heads, revision):
            for statement in version_statements(step, frozenset(heads), tx.dialect):
                await tx.execute(Sql(statement))
            heads = await read_heads(tx) or ()
        await _restate_log(tx, target, heads)


async def _restate_log(tx: Tx, target: MigrationTarget, heads: tuple[str, ...]) -> None:
    """Let the log have the files up to these revisions and no other."""
    applied = {file.revision: file for file in applied_files(target, heads)}
    log = await read_log(tx)
    for revision in log.keys() - applied.keys():
        await delete_entry(tx, revision)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for revision, file in applied.items():
        entry = log.get(revision) or LogEntry(revision, "", now, None, None)
        await write_entry(tx, replace(entry, digest=file.digest, progress=None))


def applied_files(target: MigrationTarget, heads: tuple[str, ...]) -> list[MigrationFile]:
    """The files that a database at these revisions has behind it, as far as they are known."""
    pending = {file.revision for file, _ in pending_steps(target, heads)}
    return [file for file in target.files.all() if file.revision not in pending]


def pending_steps(
    target: MigrationTarget, heads: tuple[str, ...]
) -> list[tuple[MigrationFile, RevisionStep]]:
    """The files that a database at these revisions has before it; none where a newer release has left it."""
    if not all(target.files.knows(head) for head in heads):
        return []
    return target.files.steps_up(heads, "heads")


# Bring pieces that are derived from the rows up to date: order keys of decimals and full text search.


async def refresh_derived(tx: Tx, models: Sequence[ModelSql]) -> None:
    """Refresh the pieces of all models whose tables are as far as the models are."""
    for model in await ready_models(tx, models):
        await migrate_decimals(tx, model)
        await migrate_search(tx, model)


async def ready_models(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models all of whose columns are there."""
    ready = []
    for model in models:
        if not model.readonly:
            columns = await read_columns(run, model)
            if columns and all(field.column in columns for field in model.meta.fields):
                ready.append(model)
    return ready


# Search on a large table of PostgreSQL: its column rewrites the table, and nobody can use it meanwhile.


LARGE = 10_000  # rows: fewer are rewritten in a moment


async def large_rewrites(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models whose tables would be rewritten for search, and are large."""
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        return []
    return [model for model in models if await adds_search_column(run, model) and await _is_large(run, model)]


async def _is_large(run: Executor, model: ModelSql) -> bool:
    table = quote(model.table.name, model.dialect)
    return await run.fetch_one(Sql(f"SELECT 1 FROM {table} OFFSET {LARGE} LIMIT 1")) is not None


def describe_rewrites(target: MigrationTarget, models: Sequence[ModelSql]) -> str:
    """What would happen, and what to type in a quiet hour."""
    tables = ", ".join(model.table.name for model in models)
    command = target.command("up @ --allow-rewrite")
    return (
        f"searching adds a column to {tables}, of more than {LARGE:,} rows: PostgreSQL writes the table anew"
        f" and lets nobody read or write it meanwhile. In a quiet hour: {command}"
    )
