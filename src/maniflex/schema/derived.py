"""What the schema has beside the columns of models: order keys of decimals on SQLite, and full text search.

These pieces hold nothing that is not in the records themselves, so unlike columns of a model they may be
dropped and made anew. Triggers keep them on SQLite, so raw SQL and other programs that write need not know of
them; on PostgreSQL search has one generated column and its index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import DeclarationError
from maniflex.schema.read import ddl, read_columns
from maniflex.sql.decimal_order import has_order_key, order_column, order_expression
from maniflex.sql.model import ModelSql
from maniflex.sql.search import (
    ENGLISH,
    TOKENS,
    VECTOR,
    index_columns,
    index_table,
    index_texts,
    joined_text,
    language,
    numbers_table,
    searchable_fields,
    separated_words,
)
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import index_name, quote

log = logging.getLogger("maniflex.migrate")


async def refresh_derived(tx: Tx, models: Sequence[ModelSql]) -> None:
    """Refresh the pieces of all models whose tables are as far as the models are."""
    for model in await ready_models(tx, models):
        await migrate_decimals(tx, model)
        await migrate_search(tx, model)


async def ready_models(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models all of whose columns are there."""
    ready = []
    for model in models:
        if not model.readonly:
            columns = await read_columns(run, model)
            if columns and all(field.column in columns for field in model.meta.stored):
                ready.append(model)
    return ready


# The order keys of decimal columns on SQLite (`sql/decimal_order.py`).


async def migrate_decimals(tx: Tx, model: ModelSql) -> None:
    """Give every decimal column of the model's table its order keys; without such columns, no triggers."""
    if await order_key_difference(tx, model) is None:
        return
    log.info("making order keys for the decimals of %s", model.table.name)
    table, columns = quote(model.table.name, model.dialect), _decimal_columns(model)
    for name in _order_key_triggers(model):  # of a column that is no decimal now, they would fail every write
        await tx.execute(Sql(f"DROP TRIGGER IF EXISTS {quote(name, model.dialect)}"))
    existing = await _table_columns(tx, model)
    for name in map(order_column, columns):
        if name not in existing:
            await tx.execute(Sql(f"ALTER TABLE {table} ADD COLUMN {quote(name, model.dialect)} TEXT"))
    if columns:
        await tx.execute(Sql(f"UPDATE {table} SET {_keys(model, columns)}"))
        for statement in _order_key_statements(model, columns).values():
            await tx.execute(Sql(statement))
    for index in await _indexes_on_texts(tx, model, columns):
        await tx.execute(Sql(f"DROP INDEX {quote(str(index.name), model.dialect)}"))
        await tx.execute(Sql(ddl(CreateIndex(index), model)))


async def order_key_difference(run: Executor, model: ModelSql) -> str | None:
    """What of the order keys of a model's decimals is not in the database as it should be."""
    if by_dialect(model.dialect, sqlite=False, postgres=True):
        return None
    columns = _decimal_columns(model)
    existing = await _table_columns(run, model)
    for column in columns:
        if order_column(column) not in existing:
            return f"the column {order_column(column)} is missing"
    triggers = _order_key_statements(model, columns) if columns else {}
    rows = await run.fetch(
        Sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN (?, ?)",
            _order_key_triggers(model),
        )
    )
    made_triggers = {row[0]: row[1] for row in rows}
    for name in _order_key_triggers(model):
        if made_triggers.get(name) != triggers.get(name):
            return (
                f"the trigger {name} is {'missing' if name not in made_triggers else 'not as it should be'}"
            )
    for index in await _indexes_on_texts(run, model, columns):
        return f"the index {index.name} compares the texts of decimals"
    return None


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


def _order_key_triggers(model: ModelSql) -> tuple[str, str]:
    """The triggers that keep the order keys of the model's table."""
    return f"{model.table.name}$order_insert", f"{model.table.name}$order_update"


def _order_key_statements(model: ModelSql, columns: Sequence[str]) -> dict[str, str]:
    """Name → statement. SQLite keeps the statements word for word, so they tell what has changed."""
    table, key = (quote(n, model.dialect) for n in (model.table.name, model.id.name))
    names = [quote(column, model.dialect) for column in columns]
    # By bytes: the column's own collation is a Python function, and 1.5 → 1.50 has the same key anyway.
    has_changed = " OR ".join(f"old.{name} COLLATE BINARY IS NOT new.{name}" for name in names)
    update = f"UPDATE {table} SET {_keys(model, columns, 'new.')} WHERE {key} = new.{key};"
    on_insert, on_update = _order_key_triggers(model)
    return {
        on_insert: f"CREATE TRIGGER {quote(on_insert, model.dialect)} AFTER INSERT ON {table}"
        f" BEGIN {update} END",
        on_update: f"CREATE TRIGGER {quote(on_update, model.dialect)} AFTER UPDATE OF {', '.join(names)}"
        f" ON {table} WHEN {has_changed} BEGIN {update} END",
    }


async def _indexes_on_texts(run: Executor, model: ModelSql, columns: Sequence[str]) -> list[sa.Index]:
    """Indexes of ours that compare the stored texts, as before there were order keys."""
    rows = await run.fetch(
        Sql(
            "SELECT l.name, i.name FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i",
            (model.table.name,),
        )
    )
    names = {name for name, column in rows if column in columns}
    return [index for index in model.table.indexes if str(index.name) in names]


# Search: on SQLite an FTS5 table, a table of numbers and three triggers stand beside the model's table.


SEARCH_COMMENT = "maniflex search: "


async def migrate_search(tx: Tx, model: ModelSql) -> None:
    """Make the model searchable as it is declared now, or no longer."""
    await by_dialect(model.dialect, sqlite=_search_on_sqlite, postgres=_search_on_postgres)(tx, model)


async def search_difference(run: Executor, model: ModelSql) -> str | None:
    """What of the search of a model is not in the database as it is declared, or is no longer needed."""
    look = by_dialect(model.dialect, sqlite=_difference_on_sqlite, postgres=_difference_on_postgres)
    return await look(run, model)


# -- SQLite


async def _difference_on_sqlite(run: Executor, model: ModelSql) -> str | None:
    pieces = _pieces(model) if searchable_fields(model.meta) else {}
    existing = await _existing_pieces(run, model)
    index = _names(model)[0]
    if existing == pieces or (not pieces and "USING fts5" not in existing.get(index, "")):
        return None
    for name, statement in pieces.items():
        if existing.get(name) != statement:
            return f"{name} is {'missing' if name not in existing else 'made otherwise'}"
    return f"{index} is needed no longer"


async def _existing_pieces(run: Executor, model: ModelSql) -> dict[str, str]:
    names = _names(model)
    marks = ", ".join("?" * len(names))
    rows = await run.fetch(Sql(f"SELECT name, sql FROM sqlite_master WHERE name IN ({marks})", names))
    return {row[0]: row[1] for row in rows}


async def _search_on_sqlite(tx: Tx, model: ModelSql) -> None:
    if await _difference_on_sqlite(tx, model) is None:
        return
    existing, index = await _existing_pieces(tx, model), _names(model)[0]
    if index in existing and "USING fts5" not in existing[index]:
        raise DeclarationError(f"{model.meta.name}: searching needs the name {index!r}; another table has it")
    await _drop_pieces(tx, existing)
    if searchable_fields(model.meta):
        await _check_fts5(tx, model)
        log.info("indexing %s for search", model.table.name)
        for statement in _pieces(model).values():
            await tx.execute(Sql(statement))
        await _fill_index(tx, model)


def _names(model: ModelSql) -> tuple[str, ...]:
    index = index_table(model.meta)
    return (index, numbers_table(model.meta), f"{index}_insert", f"{index}_update", f"{index}_delete")


def _pieces(model: ModelSql) -> dict[str, str]:
    """Name → statement. SQLite keeps the statements word for word, so they tell what has changed."""
    index, numbers, on_insert, on_update, on_delete = (quote(n, model.dialect) for n in _names(model))
    table, key = (quote(n, model.dialect) for n in (model.table.name, model.id.name))
    columns = [quote(f.column, model.dialect) for f in searchable_fields(model.meta)]
    tokenizer = f"porter {TOKENS}" if language(model.meta) == ENGLISH else TOKENS  # it stems no other
    number = f"(SELECT docid FROM {numbers} WHERE id = {{}}.{key})"
    words, texts = ", ".join(index_columns(model)), ", ".join(index_texts(model, "new"))
    # REPLACE removes rows without calling a trigger, so a row may come in whose number is known.
    enter = (
        f"INSERT INTO {numbers} (id) SELECT new.{key}"
        f" WHERE NOT EXISTS (SELECT 1 FROM {numbers} WHERE id = new.{key});"
        f" DELETE FROM {index} WHERE rowid = {number.format('new')};"
        f" INSERT INTO {index} (rowid, {words}) VALUES ({number.format('new')}, {texts});"
    )
    leave = (
        f"DELETE FROM {index} WHERE rowid = {number.format('old')};"
        f" DELETE FROM {numbers} WHERE id = old.{key};"
    )
    column_list = ", ".join(dict.fromkeys([key, *columns]))
    has_changed = " OR ".join(f"old.{c} IS NOT new.{c}" for c in dict.fromkeys([key, *columns]))
    statements = (
        f"CREATE VIRTUAL TABLE {index} USING fts5({words}, tokenize='{tokenizer}')",
        f"CREATE TABLE {numbers} (docid INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)",
        f"CREATE TRIGGER {on_insert} AFTER INSERT ON {table} BEGIN {enter} END",
        f"CREATE TRIGGER {on_update} AFTER UPDATE OF {column_list} ON {table} WHEN {has_changed}"
        f" BEGIN {leave} {enter} END",
        f"CREATE TRIGGER {on_delete} AFTER DELETE ON {table} BEGIN {leave} END",
    )
    return dict(zip(_names(model), statements, strict=True))


async def _drop_pieces(tx: Tx, existing: dict[str, str]) -> None:
    for name, statement in existing.items():
        what = "TRIGGER" if statement.startswith("CREATE TRIGGER") else "TABLE"
        await tx.execute(Sql(f"DROP {what} {quote(name, Dialect.SQLITE)}"))


async def _check_fts5(tx: Tx, model: ModelSql) -> None:
    if await tx.fetch_one(Sql("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'")) is None:
        raise DeclarationError(f"{model.meta.name}: searching needs FTS5, and this SQLite has none")


async def _fill_index(tx: Tx, model: ModelSql) -> None:
    index, numbers = (quote(n, model.dialect) for n in _names(model)[:2])
    table, key = (quote(n, model.dialect) for n in (model.table.name, model.id.name))
    await tx.execute(Sql(f"INSERT INTO {numbers} (id) SELECT {key} FROM {table} ORDER BY {key}"))
    await tx.execute(
        Sql(
            f"INSERT INTO {index} (rowid, {', '.join(index_columns(model))})"
            f" SELECT {numbers}.docid, {', '.join(index_texts(model))}"
            f" FROM {table} JOIN {numbers} ON {numbers}.id = {table}.{key}"
        )
    )


# -- Postgres


async def adds_search_column(run: Executor, model: ModelSql) -> bool:
    """Whether `migrate_search` would add the column on PostgreSQL, which writes the whole table anew."""
    if model.readonly or not searchable_fields(model.meta):
        return False
    row = await _read_vector(run, model)
    return row is None or (bool(row[1]) and row[0] != _definition(model))


async def _read_vector(run: Executor, model: ModelSql) -> Row | None:
    """The comment on the column, and whether the database fills it."""
    return await run.fetch_one(
        Sql(
            "SELECT col_description(attrelid, attnum), attgenerated <> '' FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped",
            (quote(model.table.name, model.dialect), VECTOR),
        )
    )


_SEARCH_INDEX = """
SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
 WHERE i.indrelid = to_regclass($1) AND a.attname = $2
   AND m.amname = 'gin' AND i.indisvalid AND i.indpred IS NULL
"""


async def _has_search_index(run: Executor, model: ModelSql) -> bool:
    """Whether words are looked up in an index, whatever its name is."""
    table = quote(model.table.name, model.dialect)
    return await run.fetch_one(Sql(_SEARCH_INDEX, (table, VECTOR))) is not None


async def _difference_on_postgres(run: Executor, model: ModelSql) -> str | None:
    row = await _read_vector(run, model)
    is_ours = row is not None and row[1] and str(row[0] or "").startswith(SEARCH_COMMENT)
    if not searchable_fields(model.meta):
        return f"the column {VECTOR} is needed no longer" if is_ours else None
    if row is None:
        return f"the column {VECTOR} is missing"
    if row[0] != _definition(model):
        return f"the column {VECTOR} is made otherwise"
    return None if await _has_search_index(run, model) else f"the index on {VECTOR} is missing"


async def _search_on_postgres(tx: Tx, model: ModelSql) -> None:
    table = quote(model.table.name, model.dialect)
    definition = _definition(model) if searchable_fields(model.meta) else None
    row = await _read_vector(tx, model)
    comment, is_generated = row if row is not None else (None, False)
    ours = is_generated and str(comment or "").startswith(SEARCH_COMMENT)
    if row is not None and not ours:
        if definition is not None:
            raise DeclarationError(
                f"{model.meta.name}: searching needs the name {VECTOR!r}; another column of its table has it"
            )
        return
    if definition is not None:
        await _check_language(tx, model)
    if ours and comment != definition:
        await tx.execute(Sql(f"ALTER TABLE {table} DROP COLUMN {VECTOR}"))
    if definition is not None and comment != definition:
        await _add_vector(tx, model, table, definition)
    elif definition is not None and not await _has_search_index(tx, model):
        log.info("building the search index of %s again", model.table.name)
        await _add_search_index(tx, model, table)


def _definition(model: ModelSql) -> str:
    """The comment on the column: it tells at the next start whether it is still right."""
    columns = ", ".join(f.column for f in searchable_fields(model.meta))
    return f"{SEARCH_COMMENT}2 {language(model.meta)} ({columns})"


async def _check_language(tx: Tx, model: ModelSql) -> None:
    name = language(model.meta)
    rows = await tx.fetch(
        Sql("SELECT cfgname FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) ORDER BY cfgname")
    )
    languages = [row[0] for row in rows]
    if name not in languages:
        raise DeclarationError(
            f"{model.meta.name}: the database knows no search_language {name!r};"
            f" there are: {', '.join(languages)}"
        )


async def _add_vector(tx: Tx, model: ModelSql, table: str, definition: str) -> None:
    log.info("indexing %s for search", model.table.name)
    vector = f"to_tsvector('{language(model.meta)}'::regconfig, {separated_words(_unqualified_text(model))})"
    await tx.execute(
        Sql(f"ALTER TABLE {table} ADD COLUMN {VECTOR} tsvector GENERATED ALWAYS AS ({vector}) STORED")
    )
    comment = definition.replace("'", "''")
    await tx.execute(Sql(f"COMMENT ON COLUMN {table}.{VECTOR} IS '{comment}'"))
    await _add_search_index(tx, model, table)


async def _add_search_index(tx: Tx, model: ModelSql, table: str) -> None:
    name = quote(index_name("idx", model.table.name, VECTOR), model.dialect)
    await tx.execute(Sql(f"DROP INDEX IF EXISTS {name}"))  # one that was never finished, or of another kind
    await tx.execute(Sql(f"CREATE INDEX {name} ON {table} USING gin ({VECTOR})"))


def _unqualified_text(model: ModelSql) -> str:
    return joined_text(model).replace(f"({quote(model.table.name, model.dialect)}.", "(")


# Search on a large table of PostgreSQL: its column rewrites the table, and nobody can use it meanwhile.


LARGE = 10_000  # rows: fewer are rewritten in a moment


async def large_rewrites(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models whose tables would be rewritten for search, and are large."""
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        return []
    return [model for model in models if await adds_search_column(run, model) and await _is_large(run, model)]


async def _is_large(run: Executor, model: ModelSql) -> bool:
    table = quote(model.table.name, model.dialect)
    return await run.fetch_one(Sql(f"SELECT 1 FROM {table} OFFSET {LARGE} LIMIT 1")) is not None
