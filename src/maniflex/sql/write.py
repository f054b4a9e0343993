"""Writes of one model: insert, update, increment, delete. Each is one statement that checks itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from maniflex.model.meta import Kind, Lock
from maniflex.sql.model import ModelSql
from maniflex.sql.shapes import Compiled, compile_statement
from maniflex.sql.statement import Dialect, Sql


def insert(model: ModelSql, values: Mapping[str, Any], *, ignore_existing: bool = False) -> Sql:
    """A new row from a value for every field; gives the stored row back."""

    def compiled() -> Compiled:
        row: dict[str, Any] = {f.column: sa.bindparam(f.name) for f in model.meta.fields}
        statement = _inserter(model, ignore_existing).values(row).returning(*model.columns)
        return compile_statement(statement, model.dialect)

    return model.shapes.get(("insert", ignore_existing), compiled).bind(_encoded(model, values))


def _inserter(model: ModelSql, ignore_existing: bool) -> Any:
    if not ignore_existing:
        return sa.insert(model.table)
    if model.dialect is Dialect.SQLITE:
        from sqlalchemy.dialects.sqlite import insert as inserter
    else:
        from sqlalchemy.dialects.postgresql import insert as inserter  # type: ignore[assignment]  # same shape
    return inserter(model.table).on_conflict_do_nothing(index_elements=[model.id])


def update(model: ModelSql, record_id: str, changes: Mapping[str, Any]) -> Sql:
    """Change fields of a live, unlocked row; gives it back, or nothing when there is no such row."""
    names = tuple(changes)

    def compiled() -> Compiled:
        row: dict[str, Any] = {model.meta.by_name[n].column: sa.bindparam(f"v_{n}") for n in names}
        statement = sa.update(model.table).values(row).where(*_writable(model)).returning(*model.columns)
        return compile_statement(statement, model.dialect)

    values = {f"v_{name}": value for name, value in _encoded(model, changes).items()}
    return _bind(model, ("update", names), compiled, values, record_id)


def increment(model: ModelSql, record_id: str, deltas: Mapping[str, Any], stamps: Mapping[str, Any]) -> Sql:
    """Add to numeric fields inside the statement, within their declared bounds."""
    names = tuple(deltas)

    def compiled() -> Compiled:
        row: dict[str, Any] = {model.meta.by_name[n].column: sa.bindparam(f"v_{n}") for n in stamps}
        conditions = _writable(model)
        for name in names:
            field = model.meta.by_name[name]
            column = model.column(field)
            after = column + sa.bindparam(f"v_{name}", type_=column.type)
            row[field.column] = after
            if model.dialect is Dialect.SQLITE and field.kind is Kind.INT:
                # SQLite turns a sum beyond 64 bits into a float; Postgres refuses it by itself.
                conditions.append(sa.func.typeof(after) == sa.literal_column("'integer'"))
            if field.min is not None:
                conditions.append(after >= sa.literal_column(str(field.min)))
            if field.max is not None:
                conditions.append(after <= sa.literal_column(str(field.max)))
        statement = sa.update(model.table).values(row).where(*conditions).returning(*model.columns)
        return compile_statement(statement, model.dialect)

    values = {f"v_{name}": value for name, value in {**deltas, **_encoded(model, stamps)}.items()}
    return _bind(model, ("increment", names), compiled, values, record_id)


def delete(model: ModelSql, record_id: str, stamps: Mapping[str, Any]) -> Sql:
    """Remove an unlocked row, or mark it with `stamps` when the model deletes softly."""

    def compiled() -> Compiled:
        if stamps:
            row: dict[str, Any] = {model.meta.by_name[n].column: sa.bindparam(f"v_{n}") for n in stamps}
            statement: Any = sa.update(model.table).values(row)
        else:
            statement = sa.delete(model.table)
        return compile_statement(statement.where(*_writable(model)), model.dialect)

    values = {f"v_{name}": value for name, value in _encoded(model, stamps).items()}
    return _bind(model, ("delete", tuple(stamps)), compiled, values, record_id)


def _encoded(model: ModelSql, values: Mapping[str, Any]) -> dict[str, Any]:
    encoders = model.encoders
    return {
        name: value if value is None or (convert := encoders[name]) is None else convert(value)
        for name, value in values.items()
    }


def _bind(model: ModelSql, key: Any, compiled: Any, values: dict[str, Any], record_id: str) -> Sql:
    values["id_"] = record_id
    for i, lock in enumerate(model.meta.locks):
        values[f"lock{i}"] = model.encode(model.meta.by_name[lock.field], lock.value)
    found: Compiled = model.shapes.get(key, compiled)
    return found.bind(values)


def _writable(model: ModelSql) -> list[sa.ColumnElement[bool]]:
    """The live row of the id, in none of the states that lock it."""
    conditions: list[sa.ColumnElement[bool]] = [model.id == sa.bindparam("id_"), *model.live()]
    conditions += [_unlocked(model, i, lock) for i, lock in enumerate(model.meta.locks)]
    return conditions


def _unlocked(model: ModelSql, i: int, lock: Lock) -> sa.ColumnElement[bool]:
    column = model.column(model.meta.by_name[lock.field])
    return column.is_distinct_from(sa.bindparam(f"lock{i}"))
