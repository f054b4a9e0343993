"""Where a database stands (applied, pending, missing, changed, drifting), and what `up` would do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.current import reading, transaction
from maniflex.db.port import Tx
from maniflex.schema.apply import Migrator, pending_steps, tables_of_the_start
from maniflex.schema.differences import Difference, What, count_outside_enum, renamed_columns
from maniflex.schema.files import MigrationFile, missing_file, several_ends
from maniflex.schema.operations import (
    Action,
    BackfillAction,
    CodeAction,
    Commit,
    IndexBuild,
    StatementAction,
    StatementByDatabase,
    StoredRowsCheck,
    describe_operation,
    rows_of,
    them,
    version_statements,
)
from maniflex.schema.plan_postgres import plan_on_postgres
from maniflex.schema.plan_sqlite import plan_on_sqlite
from maniflex.schema.read import VERSION_TABLES, LogEntry, read_catalogue, read_columns, read_heads, read_log
from maniflex.schema.start import make_tables
from maniflex.schema.target import MigrationError, MigrationTarget
from maniflex.sql.statement import Dialect, Sql, by_dialect


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file and what the database knows of it."""

    file: MigrationFile
    state: str  # applied, pending or interrupted
    entry: LogEntry | None
    is_changed: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "revision": self.file.revision,
            "file": self.file.title,
            "state": self.state,
            "applied_at": self.entry.applied_at if self.entry else None,
            "seconds": self.entry.seconds if self.entry else None,
            "changed": self.is_changed,
            "drops": self.file.drops,
        }


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """All files of one database."""

    target: MigrationTarget
    heads: tuple[str, ...] | None  # None: at no revision
    files: list[FileReport]
    missing: list[str]  # revisions of the database that no file has
    ends: tuple[str, ...]  # of the chain

    @property
    def pending(self) -> list[FileReport]:
        return [state for state in self.files if state.state != "applied"]

    def problems(self) -> Iterator[str]:
        """What keeps the database from being at the end of a whole chain."""
        command = self.target.command
        if len(self.ends) > 1:
            yield f"{several_ends(self.ends)}; join them with {command('merge @')}"
        for state in self.pending:
            yield f"{state.file.title} is {state.state}; apply it with {command('up @')}"
        for revision in self.missing:
            yield missing_file(revision)
        for state in self.files:
            if state.is_changed:
                yield f"{state.file.title} was changed after it was applied; write a new file instead"

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.target.name,
            "at": list(self.heads or ()),
            "files": [state.as_json() for state in self.files],
            "missing": self.missing,
            "heads": list(self.ends),
        }


async def read_status(target: MigrationTarget) -> MigrationStatus:
    """Where the database stands among its files."""
    run = reading(target.adapter)
    heads, log = await read_heads(run), await read_log(run)
    pending = {file.revision for file, _ in pending_steps(target, heads or ())}
    files = []
    for file in target.files.all():
        entry = log.get(file.revision)
        is_interrupted = entry is not None and entry.progress is not None
        state = "interrupted" if is_interrupted else "pending" if file.revision in pending else "applied"
        is_changed = state == "applied" and entry is not None and entry.digest not in ("", file.digest)
        files.append(FileReport(file, state, entry, is_changed))
    missing = [head for head in heads or () if not target.files.knows(head)]
    return MigrationStatus(target, heads, files, missing, target.files.heads)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `migrate check` finds."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # of the database, which both lists tell


def advise_first_file(target: MigrationTarget, differences: Sequence[Difference]) -> str:
    """The sentence that says who keeps a database without files, and how to write the first."""
    has_tables = has_model_tables(target, differences)
    make = target.command("make @ --baseline" if has_tables else "make @")
    is_behind = has_tables and not all(difference.harmless for difference in differences)
    when = "start once, then write" if is_behind else "write"
    return (
        "there are no migration files: a start with auto_migrate makes the tables and columns that are"
        f" missing; to change them by files instead, {when} the first with {make}"
    )


def advise_next_file(target: MigrationTarget) -> str:
    """How to write the file that the models need, where nothing is pending."""
    return f"write a migration with {target.command('make @')} and apply it with {target.command('up @')}"


def has_model_tables(target: MigrationTarget, differences: Sequence[Difference]) -> bool:
    """Whether the database has the table of any model."""
    absent = {d.model.table.name for d in differences if d.model is not None and d.what is What.TABLE}
    return any(not model.readonly and model.table.name not in absent for model in target.models)


async def check_database(target: MigrationTarget) -> CheckReport:
    """Pending and changed files, drift, and models that differ from the database."""
    status = await read_status(target)
    report = CheckReport([*status.problems()])
    if status.heads is None and target.files.exist and not status.pending:
        report.problems.append(f"{target.adapter.label} is at no revision")
    report.differences.extend(differences := await target.differences())
    for difference in differences:
        (report.warnings if difference.harmless else report.problems).append(difference.text)
    report.problems.extend(await _outside_enums(target, differences))
    if report.problems and status.heads is None and not target.files.exist:
        report.problems.append(advise_first_file(target, differences))
    elif not status.missing and len(status.ends) < 2:
        report.problems.extend(_advise_next_step(status, differences))
    return report


def _advise_next_step(status: MigrationStatus, differences: Sequence[Difference]) -> Iterator[str]:
    """What to do about models that are ahead; where files are pending, that these come first."""
    target = status.target
    if status.pending:
        yield from unmade_by_files(target)
    elif not all(difference.harmless for difference in differences):
        yield f"the models are ahead of the migrations; {advise_next_file(target)}"


async def _outside_enums(target: MigrationTarget, differences: list[Difference]) -> list[str]:
    """Rows whose value is none of its enum any more."""
    absent = {
        d.model.table.name for d in differences if d.model and d.what in (What.TABLE, What.RENAMED_TABLE)
    }
    problems = []
    for model in target.models:
        if model.readonly or model.table.name in absent:
            continue
        columns = await read_columns(reading(target.adapter), model)
        renamed = renamed_columns(model, columns).values()
        for one in model.meta.stored:
            if one.enum is None or one.column not in columns or one.column in renamed:
                continue
            count = await count_outside_enum(reading(target.adapter), model, one)
            if count:
                problems.append(
                    f"{rows_of(count, model.table.name, 'holds', 'hold')} a value in {one.column} that"
                    f" {model.meta.name} declares no longer; change {them(count)} with op.backfill, or"
                    " declare the value again"
                )
    return problems


def unmade_by_files(target: MigrationTarget) -> list[str]:
    """The tables and columns of the models that no migration file makes; asks no database."""
    if not target.files.exist:
        return []
    tables, statements = _made_by_files(target)
    problems = []
    for model in target.models:
        name, columns = model.table.name, tables.get(model.table.name)
        if model.readonly or (columns is None and re.search(rf"\b{name}\b", statements)):
            continue
        if columns is None:
            problems.append(f"{model.meta.name}: no migration file makes the table {name!r}")
            continue
        missing = [f for f in model.meta.stored if f.column not in columns]
        problems += [
            f"{model.meta.name}.{f.name}: no migration file adds the column {f.column!r} to {name!r}"
            for f in missing
            if not re.search(rf"\b{f.column}\b", statements)
        ]
    if problems:
        # The database is not asked, so files may be pending: `make` starts from a database that has them all.
        make, up = target.command("make @"), target.command("up @")
        problems.append(
            f"the models are ahead of the migrations; apply what is pending with {up}, write one with {make}"
            f" and apply it with {up}"
        )
    return problems


def _made_by_files(target: MigrationTarget) -> tuple[dict[str, set[str]], str]:
    """The columns of each table after all files, and the statements whose tables cannot be told."""
    tables: dict[str, set[str]] = {}
    statements: list[str] = []
    for file in target.files.all():
        for operation in file.operations(target.dialect):
            match operation:
                case ops.CreateTableOp():
                    columns = {item.name for item in operation.columns if isinstance(item, sa.Column)}
                    tables[operation.table_name] = columns
                case ops.DropTableOp():
                    tables.pop(operation.table_name, None)
                case ops.RenameTableOp():
                    tables[operation.new_table_name] = tables.pop(operation.table_name, set())
                case ops.AddColumnOp():
                    tables.setdefault(operation.table_name, set()).add(operation.column.name)
                case ops.DropColumnOp():
                    tables.get(operation.table_name, set()).discard(operation.column_name)
                case ops.AlterColumnOp(modify_name=str(new)):
                    columns = tables.setdefault(operation.table_name, set())
                    columns.discard(operation.column_name)
                    columns.add(new)
                case ops.ExecuteSQLOp():
                    statements.append(str(operation.sqltext))
                case StatementByDatabase():
                    statements += [text for text in (operation.sqlite, operation.postgresql) if text]
    return tables, "\n".join(statements)


# `migrate check --replay`: all files applied to an empty database, compared with a fresh start.


async def replay_problems(target: MigrationTarget, report: CheckReport) -> list[str]:
    """How a database that all files were applied to differs from one that the start has made.

    What the report tells already is not told again. A column that no model has any more becomes one of its
    warnings: it stays until a file drops it.
    """
    async with target.beside("replay") as replay:
        try:
            await Migrator(replay).up("heads")
        except MigrationError as error:
            return [f"the files do not apply to an empty database: {problem}" for problem in error.problems]
        replayed_facts = await read_catalogue(replay.adapter)
    async with target.beside("fresh") as fresh:
        await make_tables(fresh.adapter, target.models, target.statements(target.dialect))
        fresh_facts = await read_catalogue(fresh.adapter)
    missing = {fact for fact in fresh_facts - replayed_facts if not _is_told(fact, report.differences)}
    extra = {fact for fact in replayed_facts - fresh_facts if not _is_told(fact, report.differences)}
    left_columns = {fact for fact in extra if fact.startswith("the column ")}
    if not missing:
        report.warnings.extend(f"the files leave {fact}" for fact in sorted(left_columns))
        extra -= left_columns
    return [
        *(f"a fresh start has {fact}, the files do not make it" for fact in sorted(missing)),
        *(f"the files make {fact}, a fresh start does not" for fact in sorted(extra)),
    ]


def _is_told(fact: str, differences: Sequence[Difference]) -> bool:
    return any(re.match(_told_facts(one), fact) for one in differences if one.model is not None)


def _told_facts(difference: Difference) -> str:
    """Which facts a difference of the database says: a harmless one of itself, another of its whole table."""
    assert difference.model is not None
    table, name = re.escape(difference.model.table.name), re.escape(difference.name)
    if not difference.harmless:
        return rf".*\b{table}\b"
    if difference.what is What.EXTRA_COLUMN:
        return rf"the column {table}\.{name}(\$order)? "
    return rf".*\b{name}\b"


# What `up` would do, without doing it: the operations in words, or the statements to run by hand.


async def preview_steps(target: MigrationTarget, revision: str) -> AsyncIterator[str]:
    """The pending files and their operations, in words."""
    heads = await read_heads(reading(target.adapter)) or ()
    steps = target.files.steps_up(heads, revision)
    if not steps:
        yield "nothing to do"
    if await tables_of_the_start(target):
        yield "the start has made the tables already: `up` notes the files that they are like, or refuses"
    for file, _ in steps:
        yield file.title
        for operation in file.operations(target.dialect):
            yield f"  {describe_operation(operation)}"
        for warning in lint_operations(file.operations(target.dialect), target.dialect):
            yield f"  warning: {warning}"


async def pending_warnings(target: MigrationTarget, revision: str) -> list[str]:
    """What statements written by hand would do to an application that is running."""
    heads = await read_heads(reading(target.adapter)) or ()
    return [
        f"{file.title}: {warning}"
        for file, _ in target.files.steps_up(heads, revision)
        for warning in lint_operations(file.operations(target.dialect), target.dialect)
    ]


async def preview_sql(target: MigrationTarget, revision: str) -> AsyncIterator[str]:
    """The statements of the pending files, in the order in which they are to be run."""
    heads = await read_heads(reading(target.adapter))
    if not target.files.steps_up(heads or (), revision):
        yield "-- nothing to do"
        return
    if heads is None:
        for statement in VERSION_TABLES:
            yield f"{statement};"
    lines = by_dialect(target.dialect, sqlite=_sqlite_lines, postgres=_postgres_lines)
    async for line in lines(target, heads or (), revision):
        yield line
    yield "-- order keys of decimals and search are made by `maniflex migrate up` or by the next start"


async def _postgres_lines(
    target: MigrationTarget, heads: tuple[str, ...], revision: str
) -> AsyncIterator[str]:
    for file, step in target.files.steps_up(heads, revision):
        yield f"\n-- {file.title}"
        operations = file.operations(target.dialect)
        new_tables = {o.table_name for o in operations if isinstance(o, ops.CreateTableOp)}
        for operation in operations:
            yield f"-- {describe_operation(operation)}"
            run = reading(target.adapter)
            for line in _texts(await plan_on_postgres(operation, run, new_tables, is_preview=True)):
                yield line
        for statement in version_statements(step, frozenset(heads), target.dialect):
            yield f"{statement};"
        heads = (file.revision,)


class _RolledBack(Exception):
    """The transaction of a preview, which is never committed."""


async def _sqlite_lines(target: MigrationTarget, heads: tuple[str, ...], revision: str) -> AsyncIterator[str]:
    """Run for real and rolled back: a later statement depends on what an earlier one made of a table."""
    lines: list[str] = ["PRAGMA foreign_keys = OFF;"]
    try:
        async with transaction(target.adapter) as tx:
            for file, step in target.files.steps_up(heads, revision):
                lines += [f"\n-- {file.title}", "BEGIN IMMEDIATE;"]
                lines += await _run_and_note(tx, file)
                lines += [f"{text};" for text in version_statements(step, frozenset(heads), target.dialect)]
                lines.append("COMMIT;")
                heads = (file.revision,)
            raise _RolledBack
    except _RolledBack:
        pass
    for line in [*lines, "PRAGMA foreign_keys = ON;"]:
        yield line


async def _run_and_note(tx: Tx, file: MigrationFile) -> list[str]:
    lines = []
    for operation in file.operations(Dialect.SQLITE):
        actions = await plan_on_sqlite(operation, tx)
        lines += [f"-- {describe_operation(operation)}", *_texts(actions)]
        for action in actions:
            if isinstance(action, StatementAction):
                await tx.execute(Sql(action.text))
    return lines


def _texts(actions: Sequence[Action]) -> Iterator[str]:
    for action in actions:
        match action:
            case StatementAction(text):
                yield f"{text.strip()};"
            case IndexBuild():
                yield f"{action.text.strip()};  -- outside any transaction"
            case StoredRowsCheck():
                yield f"-- no rows may come back: {action.query.text};"
            case Commit():
                yield "-- a transaction of its own:"
            case BackfillAction(backfill):
                yield f"-- {_backfill_text(backfill)}"
            case CodeAction(run):
                yield f"-- Python: op.run({run.model!r}, …) has no SQL; use `maniflex migrate up`"


def _backfill_text(backfill: Any) -> str:
    where = f" WHERE {backfill.where}" if backfill.where else ""
    if any(callable(value) or not isinstance(value, str) for value in backfill.set.values()):
        return f"Python: op.backfill({backfill.table!r}, …) has no SQL of its own; use `maniflex migrate up`"
    sets = ", ".join(f"{column} = {value}" for column, value in backfill.set.items())
    return f"in batches of {backfill.batch}: UPDATE {backfill.table} SET {sets}{where};"


async def files_to_undo(target: MigrationTarget, revision: str) -> list[MigrationFile]:
    """The files that `down` would undo, each of which can go back."""
    heads = await read_heads(reading(target.adapter)) or ()
    if not heads:
        if revision != "base" and not revision.startswith("-"):
            target.files.find(revision)  # one that is mistyped is told, even if there is nothing to undo
        return []
    goal = await Migrator(target).goal(revision)
    files = [file for file, _ in target.files.steps_down(heads, goal)]
    for file in files:
        file.operations(target.dialect, back=True)
    return files


def describe_file(target: MigrationTarget, revision: str) -> Iterator[str]:
    """A file and its operations."""
    file = target.files.find(revision)
    yield str(file.path)
    yield file.path.read_text("utf-8").rstrip()
    yield f"\non {target.dialect}:"
    for operation in file.operations(target.dialect):
        yield f"  {describe_operation(operation)}"


# What a person's own `op.execute` would do to an application that is running, as warnings.


_FLAGS = re.IGNORECASE | re.DOTALL
_RULES = (
    (
        re.compile(r"\s*CREATE\s+(UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)", _FLAGS),
        "an index that is not built CONCURRENTLY stops all writers of its table; use op.create_index",
    ),
    (
        re.compile(r"\bSET\s+NOT\s+NULL\b", _FLAGS),
        "SET NOT NULL reads the whole table while no one can use it; use op.set_not_null",
    ),
    (
        re.compile(r"\bALTER\s+COLUMN\b.*\bTYPE\b", _FLAGS),
        "another type rewrites the whole table while no one can use it",
    ),
    (
        re.compile(r"\s*LOCK\s+TABLE\b", _FLAGS),
        "LOCK TABLE holds up the application until the operation ends",
    ),
    (
        re.compile(r"\bDROP\s+(TABLE|COLUMN)\b", _FLAGS),
        "a DROP loses data; deploy the code that does without first",
    ),
)


def lint_operations(operations: Sequence[MigrateOperation], dialect: Dialect) -> Iterator[str]:
    """Warnings about statements of a file that were written by hand."""
    for operation in operations:
        text = by_dialect(dialect, sqlite=None, postgres=_text(operation))  # SQLite has one writer anyway
        for rule, warning in _RULES if text else ():
            if rule.search(str(text)):
                yield f"{' '.join(str(text).split())[:60]}: {warning}"


def _text(operation: MigrateOperation) -> str | None:
    if isinstance(operation, ops.ExecuteSQLOp) and isinstance(operation.sqltext, str):
        return operation.sqltext
    if isinstance(operation, StatementByDatabase):
        return operation.postgresql if not (operation.postgresql or "").startswith("DO") else None
    return None
