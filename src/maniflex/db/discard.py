"""The statements that remove a column together with what the framework derived from it.

SQLite drops no column that an index or a trigger names, PostgreSQL none that a generated column is made
of. Triggers, order keys and search columns hold nothing that is not in the records; the next migration
makes anew what other fields need of them. Two columns may share such a piece, and the statements for
both are run one after the other, so dropping it says IF EXISTS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from maniflex.db import decimal_schema, search_schema
from maniflex.db.advice import advised_name, advised_table
from maniflex.db.columns import type_ddl
from maniflex.db.port import Executor
from maniflex.model.meta import FieldMeta
from maniflex.sql.decimal_order import order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? ORDER BY name"
_INDEXES = """
SELECT name, sql FROM sqlite_master
 WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ? COLLATE NOCASE ORDER BY name
"""
_MADE_OF_IT = """
SELECT dependent_column FROM information_schema.column_column_usage
 WHERE table_schema = $1 AND table_name = $2 AND column_name = $3 ORDER BY 1
"""
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
_TEXT = re.compile(r"'(?:[^']|'')*'")
_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|\[([^\]]+)\]|`([^`]+)`|([\w$]+)')


async def discard_statements(run: Executor, model: ModelSql, column: str) -> list[str]:
    """The statements that remove the column, in the order in which the database takes them."""
    find_derived = by_dialect(model.dialect, sqlite=_derived_on_sqlite, postgres=_derived_on_postgres)
    return [*await find_derived(run, model, column), f"{_drop_column(model)}{quote(column, model.dialect)}"]


def _drop_column(model: ModelSql) -> str:
    return f"ALTER TABLE {advised_table(model)} DROP COLUMN "


async def _derived_on_postgres(run: Executor, model: ModelSql, column: str) -> list[str]:
    table = model.table.name
    indexes = await run.fetch(Sql(_INDEXES_UNDER_CONDITION, (quote(table, model.dialect), column)))
    columns = await run.fetch(Sql(_MADE_OF_IT, (model.schema, table, column)))
    return [
        *(f"DROP INDEX IF EXISTS {advised_name(model, row[0])}" for row in indexes),
        *(f"{_drop_column(model)}IF EXISTS {quote(row[0], model.dialect)}" for row in columns),
    ]


async def _derived_on_sqlite(run: Executor, model: ModelSql, column: str) -> list[str]:
    table, key, name = model.table.name, order_column(column), quote(column, model.dialect)
    ours = {*decimal_schema.trigger_names(model), *search_schema.trigger_names(model)}
    triggers = [t for t, sql in await run.fetch(Sql(_TRIGGERS, (table,))) if t in ours and name in sql]
    indexes = [
        index
        for index, sql in await run.fetch(Sql(_INDEXES, (table,)))
        if not {column.lower(), key.lower()}.isdisjoint(_names_in_index(sql))
    ]
    keys = await run.fetch(Sql("SELECT name FROM pragma_table_info(?) WHERE name = ?", (table, key)))
    return [
        *(f"DROP TRIGGER IF EXISTS {quote(trigger, model.dialect)}" for trigger in triggers),
        *(f"DROP INDEX IF EXISTS {quote(index, model.dialect)}" for index in indexes),
        *(f"{_drop_column(model)}{quote(row[0], model.dialect)}" for row in keys),
    ]


def _names_in_index(sql: str) -> Iterator[str]:
    """Every name behind the table in a CREATE INDEX: of its columns, and in its condition."""
    _, _, body = _TEXT.sub("", sql).partition("(")
    for names in _IDENTIFIER.findall(body):
        yield "".join(names).replace('""', '"').lower()


async def nullable_statements(run: Executor, model: ModelSql, field: FieldMeta) -> list[str]:
    """The statements that let the column of the field be null; SQLite does that only to a new column."""
    table, column = advised_table(model), quote(field.column, model.dialect)
    if by_dialect(model.dialect, sqlite=False, postgres=True):
        return [f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"]
    new = quote(f"{field.column}$null", model.dialect)
    # The shell of SQLite does not know our collation, and the next migration makes order keys instead.
    type_ = type_ddl(model, field).partition(" COLLATE ")[0]
    return [
        f"ALTER TABLE {table} ADD COLUMN {new} {type_}",
        f"UPDATE {table} SET {new} = {column}",
        *await discard_statements(run, model, field.column),
        f"ALTER TABLE {table} RENAME COLUMN {new} TO {column}",
    ]
