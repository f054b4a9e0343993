"""The first `up` on a database whose tables the start has made: find the file that it is at already.

Files make all tables, so they cannot be applied to tables that are there. The files are applied to an empty
database beside this one instead; the first of them behind which the two are alike is where it stands, and
`up` goes on from there. Files that also change rows are never passed over like this.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.columns import read_heads
from maniflex.db.current import reading
from maniflex.db.schema_differences import read_object_names
from maniflex.errors import ManiflexError
from maniflex.migrations.catalogue import read_facts
from maniflex.migrations.errors import MigrationError
from maniflex.migrations.files import MigrationFile
from maniflex.migrations.operations import Backfill, RequireValues, RunCode, StatementByDatabase
from maniflex.migrations.scratch import scratch_database
from maniflex.migrations.target import MigrationTarget
from maniflex.sql.statement import by_dialect

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
        async with scratch_database(target.adapter, "take_over") as scratch:
            beside = replace(target, adapter=scratch, records=None)
            for file in target.files.all():
                if _row_steps(file, target):
                    reason = f"{file.title} also changes rows, which the start has not done"
                    raise _refuse(target, tables, reason)
                await up(beside, file.revision)
                differences = await _differences(beside, facts)
                if not differences and len(await read_heads(scratch) or ()) == 1:
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
