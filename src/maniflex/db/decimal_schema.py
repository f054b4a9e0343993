"""The order keys of decimal columns on SQLite: made, filled, and kept by triggers (`sql/decimal_order.py`).

Like the pieces of full text search they hold nothing that is not in the records themselves, so they may
be made anew. Triggers keep them, so raw SQL and other programs that write decimals need not know of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from maniflex.db.port import Adapter, Executor, Tx
from maniflex.sql.decimal_order import has_order_key, order_column, order_expression
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

log = logging.getLogger("maniflex.migrate")


async def migrate_decimals(tx: Tx, model: ModelSql) -> None:
    """Give every decimal column of the model's table its order keys; without such columns, no triggers."""
    columns = _decimal_columns(model)
    if not columns:
        if by_dialect(model.dialect, sqlite=True, postgres=False):
            await _drop_triggers(tx, model)
        return
    table = quote(model.table.name, model.dialect)
    existing = await _table_columns(tx, model)
    for column in columns:
        if order_column(column) not in existing:
            name = quote(order_column(column), model.dialect)
            await tx.execute(Sql(f"ALTER TABLE {table} ADD COLUMN {name} TEXT"))
    triggers = _triggers(model, columns)
    marks = ", ".join("?" * len(triggers))
    rows = await tx.fetch(
        Sql(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN ({marks})",
            tuple(triggers),
        )
    )
    if {row[0]: row[1] for row in rows} != triggers:
        log.info("making order keys for the decimals of %s", model.table.name)
        for name, _ in rows:
            await tx.execute(Sql(f"DROP TRIGGER {quote(name, model.dialect)}"))
        await tx.execute(Sql(f"UPDATE {table} SET {_keys(model, columns)}"))
        for statement in triggers.values():
            await tx.execute(Sql(statement))
    await _drop_indexes_on_texts(tx, model, columns)


async def order_key_difference(run: Executor, model: ModelSql) -> str | None:
    """What of the order keys of a model's decimals is not in the database as it should be."""
    if by_dialect(model.dialect, sqlite=False, postgres=True):
        return None
    columns = _decimal_columns(model)
    existing = await _table_columns(run, model)
    for column in columns:
        if order_column(column) not in existing:
            return f"the column {order_column(column)} is missing"
    triggers = _triggers(model, columns) if columns else {}
    rows = await run.fetch(
        Sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN (?, ?)",
            trigger_names(model),
        )
    )
    made_triggers = {row[0]: row[1] for row in rows}
    for name in trigger_names(model):
        if made_triggers.get(name) != triggers.get(name):
            return (
                f"the trigger {name} is {'missing' if name not in made_triggers else 'not as it should be'}"
            )
    return None


async def _drop_triggers(tx: Tx, model: ModelSql) -> None:
    """Drop the triggers of a table whose last decimal is of another type now: they would fail every write."""
    rows = await tx.fetch(
        Sql("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name IN (?, ?)", trigger_names(model))
    )
    for (name,) in rows:
        await tx.execute(Sql(f"DROP TRIGGER {quote(name, model.dialect)}"))


async def use_order_keys_if_there(adapter: Adapter, models: Sequence[ModelSql]) -> None:
    """Compare decimals by their texts in a database that was made without order keys."""
    for model in models:
        columns = () if model.readonly else _decimal_columns(model)  # none where the database has the type
        existing = await _table_columns(adapter, model) if columns else set()
        if any(order_column(column) not in existing for column in columns):
            for each in models:
                each.compare_stored_texts()
            return


def _decimal_columns(model: ModelSql) -> tuple[str, ...]:
    return tuple(f.column for f in model.meta.fields if has_order_key(f, model.dialect))


async def _table_columns(run: Executor, model: ModelSql) -> set[str]:
    rows = await run.fetch(Sql("SELECT name FROM pragma_table_info(?)", (model.table.name,)))
    return {row[0] for row in rows}


def _keys(model: ModelSql, columns: Sequence[str], row: str = "") -> str:
    """`key = expression` for every column, from the columns of `row`."""
    return ", ".join(
        f"{quote(order_column(c), model.dialect)} = {order_expression(row + quote(c, model.dialect))}"
        for c in columns
    )


def trigger_names(model: ModelSql) -> tuple[str, str]:
    """The triggers that keep the order keys of the model's table."""
    return f"{model.table.name}$order_insert", f"{model.table.name}$order_update"


def _triggers(model: ModelSql, columns: Sequence[str]) -> dict[str, str]:
    """Name → statement. SQLite keeps the statements word for word, so they tell what has changed."""
    table, key = (quote(n, model.dialect) for n in (model.table.name, model.id.name))
    names = [quote(column, model.dialect) for column in columns]
    # By bytes: the column's own collation is a Python function, and 1.5 → 1.50 has the same key anyway.
    has_changed = " OR ".join(f"old.{name} COLLATE BINARY IS NOT new.{name}" for name in names)
    update = f"UPDATE {table} SET {_keys(model, columns, 'new.')} WHERE {key} = new.{key};"
    on_insert, on_update = trigger_names(model)
    return {
        on_insert: f"CREATE TRIGGER {quote(on_insert, model.dialect)} AFTER INSERT ON {table}"
        f" BEGIN {update} END",
        on_update: f"CREATE TRIGGER {quote(on_update, model.dialect)} AFTER UPDATE OF {', '.join(names)}"
        f" ON {table} WHEN {has_changed} BEGIN {update} END",
    }


async def _drop_indexes_on_texts(tx: Tx, model: ModelSql, columns: Sequence[str]) -> None:
    """Drop indexes of ours that compare the stored texts; those on the order keys have their names."""
    ours = {str(index.name) for index in model.table.indexes}
    rows = await tx.fetch(
        Sql(
            "SELECT l.name, i.name FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i",
            (model.table.name,),
        )
    )
    for name in {index for index, column in rows if index in ours and column in columns}:
        log.info("building index %s of %s on order keys", name, model.table.name)
        await tx.execute(Sql(f"DROP INDEX {quote(name, model.dialect)}"))
