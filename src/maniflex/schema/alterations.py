"""Statements that rename and drop tables, columns and indexes, with all that carries their names.

Values, indexes and uniqueness stay with what is renamed. SQLite drops no column that an index or a trigger
names, PostgreSQL none that a generated column is made of. Triggers, order keys and search columns hold
nothing that is not in the records, so they are dropped where they are in the way, and `derived.py` makes anew
what other columns need of them. The plans of operations run these statements; a refusal of the start advises
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from maniflex.db.port import Executor
from maniflex.sql.decimal_order import order_column
from maniflex.sql.search import SQLITE_PIECES, VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import index_name, quote

_PUBLIC = "public"  # where a session of its own looks for tables


def place_of(name: str, dialect: Dialect, schema: str | None = None) -> str:
    """A table or an index as it stands in a statement, with its schema unless sessions look there anyway.

    A statement that people run in a session of their own would change a table of that name in `public`.
    """
    return quote(name, dialect) if schema in (None, _PUBLIC) else f'"{schema}".{quote(name, dialect)}'


# -- renames


async def table_statements(run: Executor, old: str, new: str) -> list[str]:
    """The statements that rename a table."""
    rename = f"ALTER TABLE {quote(old, run.dialect)} RENAME TO {quote(new, run.dialect)}"
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        return [*await _derived_triggers(run, old), *await search_tables(run, old), rename]
    pairs = [(f"{old}_pkey", f"{new}_pkey")]
    pairs.append((index_name("idx", old, VECTOR), index_name("idx", new, VECTOR)))
    return [rename, *(f'ALTER INDEX IF EXISTS "{a}" RENAME TO "{b}"' for a, b in pairs)]


async def column_statements(
    run: Executor, table: str, old: str, new: str, *, schema: str | None = None
) -> list[str]:
    """The statements that rename a column, with its order keys."""
    place = place_of(table, run.dialect, schema)

    def rename(a: str, b: str) -> str:
        names = quote(a, run.dialect), quote(b, run.dialect)
        return f"ALTER TABLE {place} RENAME COLUMN {names[0]} TO {names[1]}"

    if by_dialect(run.dialect, sqlite=False, postgres=True):
        return [rename(old, new), *await _vector_comment(run, table, place, old, new)]
    # SQLite writes the new name into triggers and indexes too.
    key, new_key = order_column(old), order_column(new)
    has_key = await _has_column(run, table, key)
    return [rename(old, new), *([rename(key, new_key)] if has_key else [])]


async def _has_column(run: Executor, table: str, column: str) -> bool:
    statement = by_dialect(
        run.dialect,
        sqlite=Sql("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, column)),
        postgres=Sql(
            "SELECT 1 FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped",
            (quote(table, run.dialect), column),
        ),
    )
    return await run.fetch_one(statement) is not None


_VECTOR_COMMENT = """
SELECT col_description(attrelid, attnum) FROM pg_attribute
 WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped
"""


async def _vector_comment(run: Executor, table: str, place: str, old: str, new: str) -> list[str]:
    """The search column follows a renamed one by itself; what it is made of is noted in its comment."""
    row = await run.fetch_one(Sql(_VECTOR_COMMENT, (quote(table, run.dialect), VECTOR)))
    if row is None or row[0] is None:
        return []
    head, bracket, names = str(row[0]).partition("(")
    text = head + bracket + re.sub(rf"(?<![\w$]){re.escape(old)}(?![\w$])", new, names)
    return [f"COMMENT ON COLUMN {place}.{VECTOR} IS '{text.replace(chr(39), chr(39) * 2)}'"]


_INDEX_NAME = re.compile(
    r"(CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?)(?:\"(?:[^\"]|\"\")+\"|[\w$]+)", re.IGNORECASE
)


async def index_statements(run: Executor, old: str, new: str) -> list[str]:
    """The statements that rename an index; SQLite makes it again."""
    if by_dialect(run.dialect, sqlite=False, postgres=True):
        return [f"ALTER INDEX {quote(old, run.dialect)} RENAME TO {quote(new, run.dialect)}"]
    row = await run.fetch_one(Sql("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (old,)))
    if row is None:
        return []
    text = _INDEX_NAME.sub(lambda match: match[1] + quote(new, run.dialect), str(row[0]), count=1)
    return [f"DROP INDEX {quote(old, run.dialect)}", text]


# -- drops


async def drop_statements(run: Executor, table: str, column: str, *, schema: str | None = None) -> list[str]:
    """The statements that drop a column and what was derived from it, in the order the database takes them.

    Two columns may share a piece, and the statements for both may be run one after the other: IF EXISTS.
    """
    place = place_of(table, run.dialect, schema)
    find_derived = by_dialect(run.dialect, sqlite=_derived_on_sqlite, postgres=_derived_on_postgres)
    drop = f"ALTER TABLE {place} DROP COLUMN {quote(column, run.dialect)}"
    return [*await find_derived(run, table, column, schema), drop]


_INDEXES = """
SELECT name, sql FROM sqlite_master
 WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ? COLLATE NOCASE ORDER BY name
"""
_TEXT = re.compile(r"'(?:[^']|'')*'")
_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|\[([^\]]+)\]|`([^`]+)`|([\w$]+)')


async def _derived_on_sqlite(run: Executor, table: str, column: str, _: str | None) -> list[str]:
    key, place = order_column(column), quote(table, run.dialect)
    indexes = [
        index
        for index, sql in await run.fetch(Sql(_INDEXES, (table,)))
        if not {column.lower(), key.lower()}.isdisjoint(_names_in_index(sql))
    ]
    has_key = await _has_column(run, table, key)
    return [
        *await _derived_triggers(run, table, column),
        *(f"DROP INDEX IF EXISTS {quote(index, run.dialect)}" for index in indexes),
        *([f"ALTER TABLE {place} DROP COLUMN {quote(key, run.dialect)}"] if has_key else []),
    ]


def _names_in_index(sql: str) -> Iterator[str]:
    """Every name behind the table in a CREATE INDEX: of its columns, and in its condition."""
    _, _, body = _TEXT.sub("", sql).partition("(")
    for names in _IDENTIFIER.findall(body):
        yield "".join(names).replace('""', '"').lower()


# PostgreSQL drops them with the column, unasked: named, they tell that uniqueness has to be built anew.
_INDEXES_UNDER_CONDITION = """
SELECT DISTINCT x.relname::text FROM pg_attribute a
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_class'::regclass
                  AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
  JOIN pg_index i ON i.indexrelid = d.objid AND i.indpred IS NOT NULL AND a.attnum <> ALL (i.indkey)
  JOIN pg_class x ON x.oid = i.indexrelid
 WHERE a.attrelid = to_regclass($1) AND a.attname = $2
   AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexrelid)
 ORDER BY 1
"""
_MADE_OF_IT = """
SELECT u.dependent_column FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN information_schema.column_column_usage u ON u.table_schema = n.nspname AND u.table_name = c.relname
 WHERE c.oid = to_regclass($1) AND u.column_name = $2 ORDER BY 1
"""


async def _derived_on_postgres(run: Executor, table: str, column: str, schema: str | None) -> list[str]:
    name, place = quote(table, run.dialect), place_of(table, run.dialect, schema)
    if not await _has_column(run, table, column):  # it comes of a rename before, which no preview has run
        return [f"ALTER TABLE {place} DROP COLUMN IF EXISTS {VECTOR}"]
    indexes = await run.fetch(Sql(_INDEXES_UNDER_CONDITION, (name, column)))
    columns = await run.fetch(Sql(_MADE_OF_IT, (name, column)))
    return [
        *(f"DROP INDEX IF EXISTS {place_of(row[0], run.dialect, schema)}" for row in indexes),
        *(f"ALTER TABLE {place} DROP COLUMN IF EXISTS {quote(row[0], run.dialect)}" for row in columns),
    ]


_DERIVED_TRIGGERS = ("$order_insert", "$order_update", "_fts_insert", "_fts_update", "_fts_delete")


async def _derived_triggers(run: Executor, table: str, column: str | None = None) -> list[str]:
    """Statements that drop the triggers of SQLite which keep order keys and search from a column."""
    names = {f"{table}{ending}" for ending in _DERIVED_TRIGGERS}
    return [
        f"DROP TRIGGER IF EXISTS {_name(name)}"
        for name, text in await read_triggers(run, table)
        if name in names and (column is None or _name(column) in text)
    ]


async def read_triggers(run: Executor, table: str) -> Sequence[Sequence[Any]]:
    """The name and the statement of each trigger of a table of SQLite."""
    return await run.fetch(
        Sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? ORDER BY name",
            (table,),
        )
    )


async def search_tables(run: Executor, table: str) -> list[str]:
    """Statements that drop the search tables of SQLite which stand under the name of a table."""
    rows = await run.fetch(Sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    existing = {row[0]: str(row[1]) for row in rows}
    names = [table + ending for ending in SQLITE_PIECES]
    if "USING fts5" not in existing.get(names[0], ""):
        return []
    return [f"DROP TABLE {_name(name)}" for name in names if name in existing]


def _name(name: str) -> str:
    return quote(name, Dialect.SQLITE)
