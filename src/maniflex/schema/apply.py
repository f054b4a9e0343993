"""Apply migration files to a database, or undo them; one process at a time, and never half.

SQLite: a file is one transaction. PostgreSQL: each operation is, because a lock that is held while the next
one is waited for would stop the writers of both tables; with each operation its number is committed, and an
`up` that was killed goes on behind the last one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import RevisionStep

from maniflex.db.current import reading, transaction
from maniflex.db.port import Tx
from maniflex.errors import ManiflexError
from maniflex.model.history_row import is_history
from maniflex.schema.derived import LARGE, large_rewrites, ready_models, refresh_derived
from maniflex.schema.files import MigrationFile
from maniflex.schema.history import make_layout_table
from maniflex.schema.operations import (
    Action,
    Backfill,
    RequireValues,
    RunCode,
    StatementByDatabase,
    describe_operation,
    version_statements,
)
from maniflex.schema.plan_sqlite import foreign_key_check, plan_on_sqlite, without_foreign_keys
from maniflex.schema.read import (
    LogEntry,
    delete_entry,
    make_version_tables,
    read_facts,
    read_heads,
    read_log,
    read_object_names,
    write_entry,
)
from maniflex.schema.steps import (
    FileJob,
    MigrationListener,
    PostgresSteps,
    act,
    migration_lock,
    note_columns,
    note_version,
    step_errors,
)
from maniflex.schema.target import MigrationError, MigrationTarget
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect


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
            await make_version_tables(tx)
            for number, operation in enumerate(job.operations, 1):
                async with step_errors(job, number):
                    self.listener.on_step(describe_operation(operation))
                    for action in await plan_on_sqlite(operation, tx):
                        await self._act(tx, action)
                    await note_columns(tx, job.operations, operation, self.target.models)
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
            await make_layout_table(tx)

    async def _act(self, tx: Tx, action: Action) -> None:
        target = self.target
        await act(tx, action, target.models, records=target.records, on_rows=self.listener.on_rows)

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
            await make_version_tables(tx)
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
        await make_version_tables(tx)
        heads = await read_heads(tx) or ()
        for step in target.files.steps_to_stamp(heads, revision):
            for statement in version_statements(step, frozenset(heads), tx.dialect):
                await tx.execute(Sql(statement))
            heads = await read_heads(tx) or ()
        await _restate_log(tx, target, heads)


async def _restate_log(tx: Tx, target: MigrationTarget, heads: tuple[str, ...]) -> None:
    """Let the log have the files up to these revisions and no other."""
    files_by_revision = {file.revision: file for file in applied_files(target, heads)}
    log = await read_log(tx)
    for revision in log.keys() - files_by_revision.keys():
        await delete_entry(tx, revision)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for revision, file in files_by_revision.items():
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


def describe_rewrites(target: MigrationTarget, models: Sequence[ModelSql]) -> str:
    """What would happen, and what to type in a quiet hour."""
    tables = ", ".join(model.table.name for model in models)
    command = target.command("up @ --allow-rewrite")
    return (
        f"searching adds a column to {tables}, of more than {LARGE:,} rows: PostgreSQL writes the table anew"
        f" and lets nobody read or write it meanwhile. In a quiet hour: {command}"
    )


# The first `up` on a database whose tables the start has made: find the file that it is at already.
#
# Files make all tables, so they cannot be applied to tables that are there. The files are applied to an empty
# database beside this one instead; the first of them behind which the two are alike is where it stands, and
# `up` goes on from there. Files that also change rows are never passed over like this.


_SCHEMA_STATEMENT = re.compile(r"\s*(CREATE|ALTER|DROP|COMMENT)\b", re.IGNORECASE)
_MOST_SHOWN = 3
Up = Callable[[MigrationTarget, str], Awaitable[object]]  # applies the files up to a revision


async def tables_of_the_start(target: MigrationTarget) -> list[str]:
    """The tables of the models in a database that is at no revision, while there are files that make them."""
    run = reading(target.adapter)
    if not target.files.exist or await read_heads(run) is not None:
        return []
    names = await read_object_names(run)
    return [m.table.name for m in target.models if not m.readonly and m.table.name in names]


async def find_file_of_tables(target: MigrationTarget, up: Up) -> MigrationFile | None:
    """The file that made such tables, had the files made them; None where there are no such tables.

    Tables that no file leaves like this are refused, with how they differ from those of the last file.
    """
    tables = await tables_of_the_start(target)
    if not tables:
        return None
    facts = await read_facts(target.adapter)
    differences: list[str] = []
    try:
        async with target.beside("take_over") as beside:
            for file in target.files.all():
                if _row_steps(file, target):
                    reason = f"{file.title} also changes rows, which the start has not done"
                    raise _refuse(target, tables, reason)
                await up(beside, file.revision)
                differences = await _differences(beside, facts)
                if not differences and len(await read_heads(beside.adapter) or ()) == 1:
                    return file
    except MigrationError:
        raise
    except ManiflexError as error:  # such as a role that may make no schema
        raise _refuse(target, tables, f"whether the files make them alike is not known: {error}") from error
    raise _refuse(target, tables, f"the files make them otherwise: {'; '.join(differences[:_MOST_SHOWN])}")


async def _differences(beside: MigrationTarget, facts: dict[str, str]) -> list[str]:
    """How these facts of a database differ from a scratch database; tables of others are left alone."""
    scratch_facts = await read_facts(beside.adapter)
    own = {*scratch_facts.values(), *(model.table.name for model in beside.models)}
    database_facts = {fact for fact, table in facts.items() if table in own}
    return [
        *(f"{fact} is missing" for fact in sorted(scratch_facts.keys() - database_facts)),
        *(f"{fact} is in no file" for fact in sorted(database_facts - scratch_facts.keys())),
    ]


def _row_steps(file: MigrationFile, target: MigrationTarget) -> list[MigrateOperation]:
    """The operations of a file that look at rows or change them."""
    engine_texts = {_one_line(statement.text) for statement in target.statements(target.dialect)}
    return [
        operation
        for operation in file.operations(target.dialect)
        if isinstance(operation, Backfill | RunCode | RequireValues | ops.BulkInsertOp)
        or not all(
            _one_line(text) in engine_texts or _SCHEMA_STATEMENT.match(text)
            for text in _own_statements(operation, target)
        )
    ]


def _own_statements(operation: MigrateOperation, target: MigrationTarget) -> list[str]:
    """The SQL that a file has written out."""
    if isinstance(operation, ops.ExecuteSQLOp):
        return [str(operation.sqltext)]
    if isinstance(operation, StatementByDatabase):
        text = by_dialect(target.dialect, sqlite=operation.sqlite, postgres=operation.postgresql)
        return [] if text is None else [text]
    return []


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(";")


def _refuse(target: MigrationTarget, tables: list[str], reason: str) -> MigrationError:
    command = target.command
    return MigrationError(
        f"{target.adapter.label} is at no revision and has the tables {', '.join(tables[:_MOST_SHOWN])}"
        f" already: the start has made them, and {reason}. If the models are ahead of the files, write the"
        f" file that is missing with {command('up @')} and {command('make @')} on an empty database, then"
        f" come back here with {command('up @')}. If the tables are right as they are, note that with"
        f" {command('stamp @ head')}"
    )
