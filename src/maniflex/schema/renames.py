"""Renaming tables, columns and indexes with everything that carries their names: `renamed_from`.

Values, indexes and uniqueness stay. On SQLite the triggers of order keys and search are dropped where they
are in the way; whoever renames brings them up to date afterwards (`derived.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from maniflex.db.port import Executor, Tx
from maniflex.schema.derived import SEARCH_COMMENT
from maniflex.schema.history import note_change, note_renamed_table
from maniflex.schema.read import Columns, read_columns, read_indexes, read_triggers
from maniflex.sql.decimal_order import decimal_column, order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.search import SQLITE_PIECES, VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import index_name, quote

log = logging.getLogger("maniflex.migrate")
_DERIVED_TRIGGERS = ("$order_insert", "$order_update", "_fts_insert", "_fts_update", "_fts_delete")
_INDEX_NAME = re.compile(
    r"(CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?)(?:\"(?:[^\"]|\"\")+\"|[\w$]+)", re.IGNORECASE
)
_VECTOR_COMMENT = """
SELECT col_description(attrelid, attnum) FROM pg_attribute
 WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped
"""
_HAS_COLUMN = (
    "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped"
)


async def rename_as_declared(tx: Tx, models: Sequence[ModelSql]) -> None:
    """Rename tables and columns where the old is there and the new is not."""
    for model in models:
        columns = await read_columns(tx, model)
        old_table = model.meta.options.renamed_from
        is_renamed = False
        if not columns and old_table is not None and (old := await read_columns(tx, model, old_table)):
            log.info("renaming table %s to %s", old_table, model.table.name)
            await _run(tx, await table_statements(tx, old_table, model.table.name))
            await note_renamed_table(tx, old_table, model.table.name)
            columns, is_renamed = old, True
        renames = renamed_columns(model, columns)
        for new, old_column in renames.items():
            log.info("renaming column %s.%s to %s", model.table.name, old_column, new)
            await _run(tx, await column_statements(tx, model.table.name, old_column, new))
            await note_change(tx, model.table.name, "rename", {"column": old_column, "new": new})
        if is_renamed or renames:
            await _rename_indexes(tx, model, renames)


def renamed_columns(model: ModelSql, columns: Columns) -> dict[str, str]:
    """New column → old, where the table has the old and not the new, in the order to rename them.

    The old name is free again after that, for a new column or for the next that is renamed.
    """
    renames: dict[str, str] = {}
    old_names = set(columns)
    waiting = [field for field in model.meta.fields if field.renamed_from is not None]
    while field := next(
        (f for f in waiting if f.column not in old_names and f.renamed_from in old_names), None
    ):
        waiting.remove(field)
        assert field.renamed_from is not None
        renames[field.column] = field.renamed_from
        old_names.remove(field.renamed_from)
    return renames


def columns_when_renamed(model: ModelSql, columns: Columns) -> Columns:
    """The columns of a table by the names they have once `renamed_columns` are renamed."""
    new_names = {old: new for new, old in renamed_columns(model, columns).items()}
    return {new_names.get(name, name): column for name, column in columns.items()}


async def _rename_indexes(tx: Tx, model: ModelSql, renames: Mapping[str, str]) -> None:
    """Give indexes that we made the names they would be made with today."""
    existing = await read_indexes(tx, model)
    for old, new in index_renames(model, existing, renames).items():
        await _run(tx, await index_statements(tx, old, new))


def index_renames(model: ModelSql, existing: Iterable[str], renames: Mapping[str, str]) -> dict[str, str]:
    """Old name → new, of the indexes of a table that was renamed or whose columns were, in their order.

    `renames` are new columns → old.
    """
    waiting: list[tuple[str, str]] = []
    tables = [name for name in (model.table.name, model.meta.options.renamed_from) if name is not None]
    for index in model.table.indexes:
        columns = [decimal_column(column.name) for column in index.columns]
        old_columns = [renames.get(column, column) for column in columns]
        prefix, new = "uq" if index.unique else "idx", str(index.name)
        if new == index_name(prefix, model.table.name, *columns):
            waiting += [(index_name(prefix, table, *old_columns), new) for table in tables]
    pairs: dict[str, str] = {}
    old_names, new_names = set(existing), set[str]()
    while pair := next((p for p in waiting if p[0] in old_names and p[1] not in old_names | new_names), None):
        old, new = pair
        pairs[old] = new
        old_names.remove(old)  # free for the next
        new_names.add(new)
    return pairs


async def _run(tx: Tx, statements: Iterable[str]) -> None:
    for statement in statements:
        await tx.execute(Sql(statement))


# -- statements


async def table_statements(run: Executor, old: str, new: str) -> list[str]:
    """The statements that rename a table."""
    rename = f"ALTER TABLE {quote(old, run.dialect)} RENAME TO {quote(new, run.dialect)}"
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        return [*await derived_triggers(run, old), *await search_tables(run, old), rename]
    pairs = [(f"{old}_pkey", f"{new}_pkey")]
    pairs.append((index_name("idx", old, VECTOR), index_name("idx", new, VECTOR)))
    return [rename, *(f'ALTER INDEX IF EXISTS "{a}" RENAME TO "{b}"' for a, b in pairs)]


async def column_statements(run: Executor, table: str, old: str, new: str) -> list[str]:
    """The statements that rename a column, with its order keys."""
    place = quote(table, run.dialect)

    def rename(a: str, b: str) -> str:
        names = quote(a, run.dialect), quote(b, run.dialect)
        return f"ALTER TABLE {place} RENAME COLUMN {names[0]} TO {names[1]}"

    if by_dialect(run.dialect, sqlite=False, postgres=True):
        return [rename(old, new), *await _vector_comment(run, table, old, new)]
    statements = [rename(old, new)]  # SQLite writes the new name into triggers and indexes too
    keys = await run.fetch(
        Sql("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, order_column(old)))
    )
    return [*statements, rename(order_column(old), order_column(new))] if keys else statements


async def _vector_comment(run: Executor, table: str, old: str, new: str) -> list[str]:
    """The search column follows a renamed one by itself; what it is made of is noted in its comment."""
    place = quote(table, run.dialect)
    row = await run.fetch_one(Sql(_VECTOR_COMMENT, (place, VECTOR)))
    if row is None or row[0] is None:
        return []
    head, bracket, names = str(row[0]).partition("(")
    text = head + bracket + re.sub(rf"(?<![\w$]){re.escape(old)}(?![\w$])", new, names)
    return [f"COMMENT ON COLUMN {place}.{VECTOR} IS '{text.replace(chr(39), chr(39) * 2)}'"]


async def search_column_statements(run: Executor, table: str, column: str) -> list[str]:
    """Statements that drop the search column of PostgreSQL, where it is made of this column.

    A column that is not there comes of a rename before it, which only a preview has not run.
    """
    place = quote(table, run.dialect)
    if await run.fetch_one(Sql(_HAS_COLUMN, (place, column))) is None:
        return [f"ALTER TABLE {place} DROP COLUMN IF EXISTS {VECTOR}"]
    row = await run.fetch_one(Sql(_VECTOR_COMMENT, (place, VECTOR)))
    head, _, names = str(row[0] if row is not None else "").partition("(")
    is_made_of = head.startswith(SEARCH_COMMENT) and column in names.removesuffix(")").split(", ")
    return [f"ALTER TABLE {place} DROP COLUMN {VECTOR}"] if is_made_of else []


async def index_statements(run: Executor, old: str, new: str) -> list[str]:
    """The statements that rename an index; SQLite makes it again."""
    if by_dialect(run.dialect, sqlite=False, postgres=True):
        return [f"ALTER INDEX {quote(old, run.dialect)} RENAME TO {quote(new, run.dialect)}"]
    row = await run.fetch_one(Sql("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (old,)))
    if row is None:
        return []
    text = _INDEX_NAME.sub(lambda match: match[1] + quote(new, run.dialect), str(row[0]), count=1)
    return [f"DROP INDEX {quote(old, run.dialect)}", text]


async def derived_triggers(run: Executor, table: str, column: str | None = None) -> list[str]:
    """Statements that drop the triggers of SQLite which keep order keys and search from a column."""
    names = {f"{table}{ending}" for ending in _DERIVED_TRIGGERS}
    return [
        f"DROP TRIGGER {_name(name)}"
        for name, text in await read_triggers(run, table)
        if name in names and (column is None or _name(column) in text)
    ]


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
