"""The first `up` on a database whose tables the start has made: find the file that it is at already.

Files make all tables, so they cannot be applied to tables that are there. The files are applied to an empty
database beside this one instead; the first of them behind which the two are alike is where it stands, and
`up` goes on from there. Files that also change rows are never passed over like this.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.columns import OWN_TABLES, read_heads
from maniflex.db.current import reading
from maniflex.db.port import Adapter, Executor
from maniflex.db.schema_differences import read_object_names
from maniflex.errors import ManiflexError
from maniflex.migrations.files import MigrationFile
from maniflex.migrations.operations import Backfill, RequireValues, RunCode, StatementByDatabase
from maniflex.migrations.sqlite_plan import TableText
from maniflex.migrations.target import MigrationError, MigrationTarget
from maniflex.sql.statement import Sql, by_dialect

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


# An empty database beside that of an application, to apply its files to.


@asynccontextmanager
async def scratch_database(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    """An empty database beside this one, which is gone afterwards."""
    make = by_dialect(adapter.dialect, sqlite=_scratch_file, postgres=_scratch_schema)
    async with make(adapter, name) as scratch:
        yield scratch


@asynccontextmanager
async def _scratch_file(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    from maniflex.db.sqlite.adapter import SqliteAdapter

    with tempfile.TemporaryDirectory(prefix="maniflex-") as directory:
        scratch = SqliteAdapter(str(Path(directory) / f"{name}.db"), durable=False)
        await scratch.open()
        try:
            yield scratch
        finally:
            await scratch.close()


@asynccontextmanager
async def _scratch_schema(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    schema = f"maniflex_{name}_{os.getpid()}"
    scratch = adapter.sibling(schema=schema)  # type: ignore[call-arg]  # of the adapter of PostgreSQL
    await scratch.open()
    try:
        yield scratch
    finally:
        await scratch.close()
        await adapter.execute(Sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))


# The schema of a database as a set of facts in words, to compare two databases of the same kind.


_POSTGRES = """
SELECT 'the column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || COALESCE(' COLLATE ' || l.collname, '')
       || COALESCE(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''), c.relname::text
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation AND l.collname <> 'default'
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
   AND a.attnum > 0 AND NOT a.attisdropped
 UNION ALL
SELECT 'the index ' || pg_get_indexdef(i.indexrelid), c.relname::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema()))
 UNION ALL
SELECT 'the constraint ' || o.conname || ' ' || pg_get_constraintdef(o.oid), c.relname::text
  FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND o.contype <> 'n'
 UNION ALL
SELECT 'the options of ' || c.relname || ': ' || c.reloptions::text, c.relname::text FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.reloptions IS NOT NULL
 UNION ALL
SELECT 'the sequence ' || c.relname, c.relname::text FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'S'
"""
_NOT_NULL = re.compile(r"(?<! IS) NOT NULL(?=(?:[^']*'[^']*')*[^']*$)")  # outside of texts
_SQLITE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"


async def read_catalogue(run: Executor) -> frozenset[str]:
    """Every column, index, constraint and trigger, but not the tables that note the migrations."""
    return frozenset(await read_facts(run))


async def read_facts(run: Executor) -> dict[str, str]:
    """The same, each with the table it belongs to."""
    read = by_dialect(run.dialect, sqlite=_read_sqlite, postgres=_read_postgres)
    return {fact: table for fact, table in await read(run) if table not in OWN_TABLES}


async def _read_postgres(run: Executor) -> list[tuple[str, str]]:
    row = await run.fetch_one(Sql("SELECT current_schema()"))
    schema = str(row[0]) if row is not None else "public"
    rows = await run.fetch(Sql(_POSTGRES))
    # An index names the schema of its table, which the two databases need not share.
    return [(str(row[0]).replace(f" ON {schema}.", " ON "), row[1]) for row in rows]


async def _read_sqlite(run: Executor) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for kind, name, table, sql in await run.fetch(Sql(_SQLITE)):
        if (
            kind == "table"
            and "USING fts5" not in sql
            and not re.search(r"_fts_(data|idx|content|docsize|config)$", name)
        ):
            text = TableText.parse(str(sql))
            facts += [
                (f"the column {name}.{_column(definition)}", table) for definition in text.columns.values()
            ]
            facts += [(f"the constraint {name} {_plain(c)}", table) for c in text.constraints]
        elif kind != "table" or "USING fts5" in sql:
            facts.append((f"the {kind} {_plain(str(sql))}", table))
    return facts


def _column(definition: str) -> str:
    """The same for a column, with NOT NULL behind its default wherever it was written."""
    text = _plain(definition)
    shorter = _NOT_NULL.sub("", text)
    return text if shorter == text else f"{shorter} NOT NULL"


def _plain(text: str) -> str:
    """A definition without quotes around names, and with one blank between words."""
    text = re.sub(r"\bIF NOT EXISTS\b", "", text, flags=re.IGNORECASE).replace('"', "")
    return " ".join(re.sub(r"\s*([(),])\s*", r"\1", text).split())
