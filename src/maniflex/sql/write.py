"""Writes of one model: insert, update, increment, delete. Each is one statement that checks itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from maniflex.model.meta import Kind
from maniflex.sql.model import ID, LOCK, ModelSql
from maniflex.sql.shapes import Compiled, compile_statement
from maniflex.sql.statement import Dialect, Sql


def insert(model: ModelSql, values: Mapping[str, Any], *, ignore_existing: bool = False) -> Sql:
    """A new row from a value for every field; gives the stored row back."""
    return model.shapes.get(("insert", ignore_existing), _insert, model, ignore_existing).bind(
        _encoded(model, values)
    )


def _insert(model: ModelSql, ignore_existing: bool) -> Compiled:
    row: dict[str, Any] = {f.column: sa.bindparam(f.name) for f in model.meta.fields}
    statement: Any = sa.insert(model.table)
    if ignore_existing:
        dialect: Any = sqlite if model.dialect is Dialect.SQLITE else postgresql
        statement = dialect.insert(model.table).on_conflict_do_nothing(index_elements=[model.id])
    return compile_statement(statement.values(row).returning(*model.columns), model.dialect)


def update(model: ModelSql, record_id: str, changes: Mapping[str, Any]) -> Sql:
    """Change fields of a live, unlocked row; gives it back, or nothing when there is no such row."""
    names = tuple(changes)
    compiled = model.shapes.get(("update", names), _update, model, names)
    return compiled.bind({**_encoded(model, changes), ID: record_id, **model.lock_values})


def _update(model: ModelSql, names: tuple[str, ...]) -> Compiled:
    statement = sa.update(model.table).values(_assigned(model, names)).where(*_writable(model))
    return compile_statement(statement.returning(*model.columns), model.dialect)


def increment(model: ModelSql, record_id: str, deltas: Mapping[str, Any], stamps: Mapping[str, Any]) -> Sql:
    """Add to numeric fields inside the statement, within their declared bounds."""
    names = tuple(deltas)
    compiled = model.shapes.get(("increment", names), _increment, model, names, tuple(stamps))
    return compiled.bind({**deltas, **_encoded(model, stamps), ID: record_id, **model.lock_values})


def _increment(model: ModelSql, names: tuple[str, ...], stamps: tuple[str, ...]) -> Compiled:
    row = _assigned(model, stamps)
    conditions = _writable(model)
    for name in names:
        field = model.meta.by_name[name]
        column = model.column(field)
        after = column + sa.bindparam(name, type_=column.type)
        row[field.column] = after
        if model.dialect is Dialect.SQLITE and field.kind is Kind.INT:
            # SQLite turns a sum beyond 64 bits into a float; Postgres refuses it by itself.
            conditions.append(sa.func.typeof(after) == sa.literal_column("'integer'"))
        elif model.dialect is Dialect.SQLITE:
            conditions.append(sa.func.abs(after) <= sa.literal_column(repr(sys.float_info.max)))
        if field.nullable:
            conditions.append(column.is_not(None))
        if field.min is not None:
            conditions.append(after >= sa.literal_column(str(field.min)))
        if field.max is not None:
            conditions.append(after <= sa.literal_column(str(field.max)))
    statement = sa.update(model.table).values(row).where(*conditions).returning(*model.columns)
    return compile_statement(statement, model.dialect)


def delete(model: ModelSql, record_id: str, stamps: Mapping[str, Any]) -> Sql:
    """Remove an unlocked row, or mark it with `stamps` when the model deletes softly."""
    names = tuple(stamps)
    compiled = model.shapes.get(("delete", names), _delete, model, names)
    return compiled.bind({**_encoded(model, stamps), ID: record_id, **model.lock_values})


def _delete(model: ModelSql, names: tuple[str, ...]) -> Compiled:
    statement: Any = sa.delete(model.table)
    if names:
        statement = sa.update(model.table).values(_assigned(model, names))
    return compile_statement(statement.where(*_writable(model)), model.dialect)


def _assigned(model: ModelSql, names: tuple[str, ...]) -> dict[str, Any]:
    return {model.meta.by_name[name].column: sa.bindparam(name) for name in names}


def _encoded(model: ModelSql, values: Mapping[str, Any]) -> Mapping[str, Any]:
    if model.all_plain:
        return values
    encoders = model.encoders
    return {
        name: value if value is None or (convert := encoders[name]) is None else convert(value)
        for name, value in values.items()
    }


def _writable(model: ModelSql) -> list[sa.ColumnElement[bool]]:
    """The live row of the id, in none of the states that lock it."""
    conditions: list[sa.ColumnElement[bool]] = [model.id == sa.bindparam(ID), *model.live()]
    for i, lock in enumerate(model.meta.locks):
        column = model.column(model.meta.by_name[lock.field])
        conditions.append(column.is_distinct_from(sa.bindparam(f"{LOCK}{i}")))
    return conditions
