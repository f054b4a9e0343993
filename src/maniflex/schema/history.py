"""The layouts of histories in the database: under which names and types the versions of a model were written.

One small table for each database, a row for each layout of a versioned model and for each change of its
columns. The start notes the layout that it writes; the start and migrations note what they rename, drop, add
and convert. `sql/history_layouts.py` reads the past with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from maniflex.db.current import reading
from maniflex.db.past_rows import newest_number, read_entries
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.errors import DeclarationError
from maniflex.model.meta import Kind
from maniflex.schema.read import has_table
from maniflex.sql.history_layouts import HISTORY_SCHEMA, Layouts, SchemaEntry, layout_of
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, StatementCache, by_dialect
from maniflex.sql.tables import quote

_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {HISTORY_SCHEMA} (number BIGINT NOT NULL PRIMARY KEY,"
    " table_name TEXT NOT NULL, history TEXT NOT NULL, noted_at TEXT NOT NULL, what TEXT NOT NULL,"
    " content TEXT NOT NULL)"
)
History = tuple[ModelSql, ModelSql]  # a versioned model and its history


async def make_layout_table(run: Executor) -> None:
    """Make the table of layouts unless it is there."""
    await run.execute(Sql(_SCHEMA))


async def note_layouts(
    adapter: Adapter, histories: Sequence[History], now: datetime, *, makes_table: bool
) -> None:
    """Note how this process writes each history, and tell its statements."""
    if not histories or await _use_noted_layouts(reading(adapter), histories):
        return
    async with adapter.transaction() as tx:
        if not await has_table(tx, HISTORY_SCHEMA):
            if not makes_table:
                raise DeclarationError(
                    f"{adapter.label} has no table {HISTORY_SCHEMA!r}, which says how the histories of"
                    f" {', '.join(model.meta.name for model, _ in histories)} are written; run"
                    " `maniflex migrate up`, or start once with auto_migrate=True"
                )
            await make_layout_table(tx)
        await _lock(tx)
        for model, history in histories:
            await _note_layout(tx, model, history, now)
        await _use_noted_layouts(tx, histories)


async def _use_noted_layouts(run: Executor, histories: Sequence[History]) -> bool:
    """Tell the statements of histories the numbers of their layouts; False if one of them has none yet.

    A start that finds all of them writes nothing, so that it needs no right to, and waits for nobody.
    """
    if not await has_table(run, HISTORY_SCHEMA):
        return False
    newest = await newest_number(run)
    entries = [await read_entries(run, model.table.name) for model, _ in histories]
    numbers = [_own_number(model, entry) for (model, _), entry in zip(histories, entries, strict=True)]
    if None in numbers:
        return False
    for (model, history), entry, own in zip(histories, entries, numbers, strict=True):
        await _require_same_table(run, model, history)
        history.layouts = Layouts(model.meta, entry, own, newest)
        model.shapes, history.shapes = StatementCache(), StatementCache()  # versions have its number
    return True


def _own_number(model: ModelSql, entries: Sequence[SchemaEntry]) -> int | None:
    """The number of the layout that the model has now, if it was noted before."""
    fields = layout_of(model.meta)
    for layout in reversed([entry for entry in entries if entry.what == "layout"]):
        if layout.content["fields"] == fields and not _is_changed_since(layout, entries):
            return int(layout.number)
    return None


async def _lock(tx: Tx) -> None:
    """Let no other process note anything until this transaction ends; on SQLite only one writes anyway."""
    if by_dialect(tx.dialect, sqlite=False, postgres=True):
        await tx.execute(Sql(f"LOCK TABLE {HISTORY_SCHEMA} IN SHARE ROW EXCLUSIVE MODE"))


async def _note_layout(tx: Tx, model: ModelSql, history: ModelSql, now: datetime) -> None:
    """Note the layout that the model has now, unless it was before."""
    names = model.table.name, history.table.name
    entries = await read_entries(tx, model.table.name)
    if _own_number(model, entries) is not None:
        return
    content: dict[str, Any] = {"fields": layout_of(model.meta)}
    if any(entry.what == "layout" for entry in entries):
        await _require_same_table(tx, model, history)
        for what, change in _implied_changes(model, entries):
            await _insert(tx, names, what, change, now)
    elif await has_table(tx, history.table.name):
        row = await tx.fetch_one(Sql(f"SELECT 1 FROM {quote(history.table.name, tx.dialect)} LIMIT 1"))
        content["older"] = row is not None
    await _insert(tx, names, "layout", content, now)


def _is_changed_since(layout: SchemaEntry, entries: Sequence[SchemaEntry]) -> bool:
    columns = {field[1] for field in layout.content["fields"]}
    return any(
        entry.number > layout.number and entry.what != "layout" and entry.content.get("column") in columns
        for entry in entries
        if entry.what != "fill"
    )


def columns_now(entries: Sequence[SchemaEntry]) -> dict[str, Kind]:
    """The columns of the last layout and their kinds, after all changes since."""
    last = next((entry for entry in reversed(entries) if entry.what == "layout"), None)
    if last is None:
        return {}
    columns = {column: Kind(kind) for _, column, kind, _ in last.content["fields"]}
    for entry in entries:
        column = entry.content.get("column", "")
        if entry.number <= last.number or column not in columns:
            continue
        if entry.what == "rename":
            columns[entry.content["new"]] = columns.pop(column)
        elif entry.what in ("add", "drop"):
            del columns[column]
        elif entry.what == "retype":
            columns[column] = Kind(entry.content["kind"])
    return columns


def _implied_changes(model: ModelSql, entries: Sequence[SchemaEntry]) -> list[tuple[str, dict[str, Any]]]:
    """Changes that were made by other tools: declared renames, and types whose conversion nobody noted."""
    columns = columns_now(entries)
    own_columns = {field.column for field in model.meta.fields}
    changes: list[tuple[str, dict[str, Any]]] = []
    for field in model.meta.fields:
        old = field.renamed_from
        if field.column not in columns and old in columns and old not in own_columns:
            changes.append(("rename", {"column": old, "new": field.column}))
            columns[field.column] = columns.pop(old)
        if field.column in columns and columns[field.column] is not field.kind:
            content = {"column": field.column, "kind": field.kind.value, "certain": False}
            changes.append(("retype", content))
    return changes


async def _require_same_table(run: Executor, model: ModelSql, history: ModelSql) -> None:
    """Refuse to begin a new history while the versions of these records are in another table."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    row = await run.fetch_one(
        Sql(
            f"SELECT history FROM {HISTORY_SCHEMA} WHERE table_name = {mark} AND what = 'layout'"
            " ORDER BY number DESC LIMIT 1",
            (model.table.name,),
        )
    )
    old = history.table.name if row is None else str(row[0])
    if old == history.table.name or not await has_table(run, old):
        return
    raise DeclarationError(
        f"{model.meta.name}: the versions of its records are in the table {old!r}, and its history would be"
        f" {history.table.name!r}; keep it with history_table={old!r}, or rename the table"
    )


async def _insert(
    tx: Tx, names: tuple[str, str], what: str, content: Mapping[str, Any], now: datetime
) -> None:
    number = await newest_number(tx) + 1
    marks = by_dialect(tx.dialect, sqlite="?, ?, ?, ?, ?, ?", postgres="$1, $2, $3, $4, $5, $6")
    values = (number, *names, now.astimezone(UTC).isoformat(), what, json.dumps(content))
    await tx.execute(
        Sql(
            f"INSERT INTO {HISTORY_SCHEMA} (number, table_name, history, noted_at, what, content)"
            f" VALUES ({marks})",
            values,
        )
    )


# -- what the start and migrations do to columns


async def note_change(tx: Tx, table: str, what: str, content: Mapping[str, Any]) -> None:
    """Note a change of a column, if the table is one whose records are versioned."""
    entries, names = await _read_layouts(tx, table)
    if names is None:
        return
    is_same = what == "retype" and columns_now(entries).get(content["column"]) in (None, content["kind"])
    if not is_same:
        await _insert(tx, names, what, content, datetime.now(UTC))


async def note_dropped_table(tx: Tx, table: str) -> None:
    """Note that all columns of a table are gone: what is made under its name later is another table."""
    entries, _ = await _read_layouts(tx, table)
    for column in columns_now(entries):
        await note_change(tx, table, "drop", {"column": column})


async def note_renamed_table(tx: Tx, old: str, new: str) -> None:
    """Let everything that was noted of a table, or of a history, stand under its new name.

    What was noted of a former table of that name is nobody's then: its drops would bind the renamed table.
    """
    if await has_table(tx, HISTORY_SCHEMA):
        await _lock(tx)
        await _rename_entries(tx, "table_name", new, _NOBODY)
        for column in ("table_name", "history"):
            await _rename_entries(tx, column, old, new)


# Entries are never deleted: their numbers rise, and processes see by the last one whether they know all.
_NOBODY = ""


async def _rename_entries(tx: Tx, column: str, old: str, new: str) -> None:
    marks = by_dialect(tx.dialect, sqlite=("?", "?"), postgres=("$1", "$2"))
    text = f"UPDATE {HISTORY_SCHEMA} SET {column} = {marks[0]} WHERE {column} = {marks[1]}"
    await tx.execute(Sql(text, (new, old)))


async def _read_layouts(tx: Tx, table: str) -> tuple[list[SchemaEntry], tuple[str, str] | None]:
    """The layouts noted of a versioned table, and the names of table and history; none of other tables."""
    if not await has_table(tx, HISTORY_SCHEMA):
        return [], None
    await _lock(tx)
    entries = await read_entries(tx, table)
    mark = by_dialect(tx.dialect, sqlite="?", postgres="$1")
    text = f"SELECT history FROM {HISTORY_SCHEMA} WHERE table_name = {mark} ORDER BY number DESC LIMIT 1"
    row = await tx.fetch_one(Sql(text, (table,)))
    return entries, None if row is None else (table, str(row[0]))


async def copy_entries(source: Executor, target: Tx) -> None:
    """Give a copy of a database the layouts of its histories; their numbers stand in the versions."""
    if not await has_table(source, HISTORY_SCHEMA):
        return
    columns = "number, table_name, history, noted_at, what, content"
    rows = await source.fetch(Sql(f"SELECT {columns} FROM {HISTORY_SCHEMA} ORDER BY number"))
    await make_layout_table(target)
    await target.execute(Sql(f"DELETE FROM {HISTORY_SCHEMA}"))
    marks = by_dialect(target.dialect, sqlite="?, ?, ?, ?, ?, ?", postgres="$1, $2, $3, $4, $5, $6")
    for row in rows:
        await target.execute(Sql(f"INSERT INTO {HISTORY_SCHEMA} ({columns}) VALUES ({marks})", tuple(row)))
