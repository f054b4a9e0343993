"""Tables that have no model and may be the old table of a model whose class was renamed.

The new class gets a table of its own, empty, while the records stay in the old one: worth a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maniflex.db.columns import Columns
from maniflex.db.port import Executor
from maniflex.sql.decimal_order import is_order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import quote

_COLUMNS = {
    # A virtual table may need a module that is not there.
    Dialect.SQLITE: """
SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
 WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY m.name
""",
    Dialect.POSTGRES: """
SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
   AND a.attnum > 0 AND NOT a.attisdropped AND has_table_privilege(c.oid, 'SELECT') ORDER BY c.relname
""",
}
_OF_EVERY_MODEL = frozenset({"id", "created_at", "updated_at"})


async def find_old_tables(
    run: Executor, tables: Sequence[tuple[ModelSql, Columns]]
) -> Mapping[str, list[str]]:
    """For each model without a table, by its name: tables without a model that have its columns, and rows."""
    new = [model for model, columns in tables if not columns and _columns(model) - _OF_EVERY_MODEL]
    if not new:
        return {}
    others = await _tables_without_model(run, [model for model, _ in tables])
    old = {
        model.meta.name: [t for t, columns in others.items() if columns == _columns(model)] for model in new
    }
    tables_with_rows = {table for names in old.values() for table in names if await _has_rows(run, table)}
    return {name: [table for table in names if table in tables_with_rows] for name, names in old.items()}


def keeping_advice(model: ModelSql, old_tables: Sequence[str]) -> str:
    """How the model keeps the records of a table that may have been its own; empty without such a table."""
    if not old_tables:
        return ""
    name = model.meta.name
    tables = " or ".join(f"{table!r}" for table in old_tables)
    ways = " or ".join(f'class {name}(Model, table="{table}")' for table in old_tables)
    return (
        f"the database has {tables} with the same columns, with rows and without a model; if {name} is a new"
        f" name for that model, keep its table: {ways}"
    )


def _columns(model: ModelSql) -> frozenset[str]:
    return frozenset(field.column for field in model.meta.fields)


async def _tables_without_model(run: Executor, models: Sequence[ModelSql]) -> dict[str, set[str]]:
    columns: dict[str, set[str]] = {}
    for table, column in await run.fetch(Sql(_COLUMNS[run.dialect])):
        columns.setdefault(table, set()).add(column)
    model_tables = {model.table.name.lower() for model in models}
    return {
        table: {name for name in names if not is_order_column(name, names) and name != VECTOR}
        for table, names in columns.items()
        if table.lower() not in model_tables
    }


async def _has_rows(run: Executor, table: str) -> bool:
    text = f"SELECT 1 FROM {quote(table, run.dialect)} LIMIT 1"
    return await run.fetch_one(Sql(text)) is not None
