"""The statements that remove a column together with what the framework derived from it.

SQLite drops no column that an index or a trigger names, PostgreSQL none that a generated column is made
of. Triggers, order keys and search columns hold nothing that is not in the records; the next migration
makes anew what other fields need of them.
"""

from __future__ import annotations

from maniflex.db import decimal_schema, search_schema
from maniflex.db.port import Executor
from maniflex.model.meta import FieldMeta
from maniflex.sql.decimal_order import order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import column_type, quoted, sa_dialect

_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? ORDER BY name"
_INDEXES = """
SELECT DISTINCT l.name FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i
 WHERE l.origin = 'c' AND i.name IN (?, ?) ORDER BY l.name
"""
_MADE_OF_IT = """
SELECT dependent_column FROM information_schema.column_column_usage
 WHERE table_schema = current_schema() AND table_name = $1 AND column_name = $2 ORDER BY 1
"""


async def discarding(run: Executor, model: ModelSql, column: str) -> list[str]:
    """What removes the column, in the order in which the database takes it."""
    table = model.table.name
    alter = f"ALTER TABLE {quoted(table, model.dialect)} DROP COLUMN "
    if model.dialect is Dialect.POSTGRES:
        rows = await run.fetch(Sql(_MADE_OF_IT, (table, column)))
        return [alter + quoted(name, model.dialect) for name in (*(row[0] for row in rows), column)]
    ours = {*decimal_schema.trigger_names(model), *search_schema.trigger_names(model)}
    key, name = order_column(column), quoted(column, model.dialect)
    triggers = await run.fetch(Sql(_TRIGGERS, (table,)))
    statements = [
        f"DROP TRIGGER {quoted(t, model.dialect)}" for t, sql in triggers if t in ours and name in sql
    ]
    indexes = await run.fetch(Sql(_INDEXES, (table, column, key)))
    statements += [f"DROP INDEX {quoted(row[0], model.dialect)}" for row in indexes]
    keys = await run.fetch(Sql("SELECT name FROM pragma_table_info(?) WHERE name = ?", (table, key)))
    return [*statements, *(alter + quoted(c, model.dialect) for c in (*(row[0] for row in keys), column))]


async def loosening(run: Executor, model: ModelSql, field: FieldMeta) -> list[str]:
    """What lets the column of the field be null; SQLite does that only to a new column."""
    table, column = quoted(model.table.name, model.dialect), quoted(field.column, model.dialect)
    if model.dialect is Dialect.POSTGRES:
        return [f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"]
    new = quoted(f"{field.column}$null", model.dialect)
    type_ = column_type(field.kind, model.dialect).compile(dialect=sa_dialect(model.dialect))
    # The shell of SQLite does not know our collation, and the next migration makes order keys instead.
    type_ = str(type_).partition(" COLLATE ")[0]
    return [
        f"ALTER TABLE {table} ADD COLUMN {new} {type_}",
        f"UPDATE {table} SET {new} = {column}",
        *await discarding(run, model, field.column),
        f"ALTER TABLE {table} RENAME COLUMN {new} TO {column}",
    ]
