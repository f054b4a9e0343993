"""What `up` would do, without doing it: the operations in words, or the statements to run by hand."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.current import reading, transaction
from maniflex.db.port import Tx
from maniflex.schema.apply import Migrator, tables_of_the_start
from maniflex.schema.files import MigrationFile
from maniflex.schema.operations import (
    Action,
    BackfillAction,
    CodeAction,
    Commit,
    IndexBuild,
    StatementAction,
    StatementByDatabase,
    StoredRowsCheck,
)
from maniflex.schema.plan import describe_operation, version_statements
from maniflex.schema.plan_postgres import plan_on_postgres
from maniflex.schema.plan_sqlite import plan_on_sqlite
from maniflex.schema.read import VERSION_TABLES, read_heads
from maniflex.schema.target import MigrationTarget
from maniflex.sql.statement import Dialect, Sql, by_dialect


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
