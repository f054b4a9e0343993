"""Reads of one model: by id, lists with their count, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from maniflex.model.meta import FieldMeta
from maniflex.query.limits import DEFAULT_LIMIT
from maniflex.query.operators import Op
from maniflex.query.tree import Compare, Query
from maniflex.sql.model import ModelSql
from maniflex.sql.shapes import Compiled, compile_statement
from maniflex.sql.statement import Sql


def one(model: ModelSql, record_id: str, *, for_update: bool = False) -> Sql:
    """The live row of that id; with `for_update`, locked until the transaction ends."""
    compiled = model.shapes.get(("one", for_update), _one, model, for_update)
    return Sql(compiled.text, (record_id,))


def _one(model: ModelSql, for_update: bool) -> Compiled:
    statement = sa.select(*model.columns).where(model.id == sa.bindparam("id"), *model.live())
    if for_update:
        statement = statement.with_for_update()
    return compile_statement(statement, model.dialect)


def page(model: ModelSql, query: Query) -> Sql:
    """One page of a list; the last column of every row is the total over all pages."""
    first = query.unchanged()
    if first is None:
        return _bound_page(model, query)
    if first.prepared is None:
        first.prepared = _bound_page(model, first)
    prepared: Sql = first.prepared
    return prepared


def _bound_page(model: ModelSql, query: Query) -> Sql:
    # The common page size stands in the text, so that Postgres can plan for it.
    size = query.limit if query.limit is None or query.limit == DEFAULT_LIMIT else "any"
    later = query.page > 1 and query.limit is not None
    sorts = tuple([(s.field.name, s.descending) for s in query.sorts])
    key = ("page", size, later, _shape(query.filters), sorts)
    compiled = model.shapes.get(key, _page, model, query, size, later)
    values = _values(model, query.filters)
    values["limit"] = query.limit
    values["offset"] = (query.page - 1) * (query.limit or 0)
    return compiled.bind(values)


def _page(model: ModelSql, query: Query, size: int | str | None, later: bool) -> Compiled:
    total = sa.select(sa.func.count()).select_from(model.table).where(*_where(model, query.filters))
    statement = sa.select(*model.columns, total.scalar_subquery().label("total"))
    statement = statement.where(*_where(model, query.filters)).order_by(*_order(model, query))
    if size is not None:
        inline = isinstance(size, int)
        statement = statement.limit(
            sa.literal_column(str(size)) if inline else sa.bindparam("limit", type_=sa.Integer())
        )
        # Said even where it is nothing, because SQLAlchemy adds a parameter of its own on SQLite.
        statement = statement.offset(
            sa.bindparam("offset", type_=sa.Integer()) if later else sa.literal_column("0")
        )
    return compile_statement(statement, model.dialect)


def count(model: ModelSql, filters: Sequence[Compare]) -> Sql:
    """How many live rows match."""
    return model.shapes.get(("count", _shape(filters)), _count, model, filters).bind(_values(model, filters))


def _count(model: ModelSql, filters: Sequence[Compare]) -> Compiled:
    statement = sa.select(sa.func.count()).select_from(model.table).where(*_where(model, filters))
    return compile_statement(statement, model.dialect)


def _shape(filters: Sequence[Compare]) -> tuple[tuple[str, Op, bool], ...]:
    return tuple([(f.field.name, f.op, f.value is None) for f in filters])


def _values(model: ModelSql, filters: Sequence[Compare]) -> dict[str, Any]:
    return {f"f{i}": model.encode(f.field, f.value) for i, f in enumerate(filters) if f.value is not None}


def _where(model: ModelSql, filters: Sequence[Compare]) -> list[sa.ColumnElement[bool]]:
    asks_for_deleted = any(_is_marker(model, f.field) for f in filters)
    conditions = [] if asks_for_deleted else model.live()
    for i, f in enumerate(filters):
        column = model.column(f.field)
        conditions.append(column.is_(None) if f.value is None else column == sa.bindparam(f"f{i}"))
    return conditions


def _is_marker(model: ModelSql, field: FieldMeta) -> bool:
    return model.meta.soft_delete is not None and model.meta.soft_delete.field == field.name


def _order(model: ModelSql, query: Query) -> list[sa.ColumnElement[Any]]:
    keys: list[sa.ColumnElement[Any]] = [
        model.column(s.field).desc() if s.descending else model.column(s.field).asc() for s in query.sorts
    ]
    # Nulls come first ascending on SQLite and last on Postgres: say it, where there can be any.
    keys = [
        (key.nulls_last() if s.descending else key.nulls_first()) if s.field.nullable else key
        for key, s in zip(keys, query.sorts, strict=True)
    ]
    if not any(s.field.name == "id" for s in query.sorts):
        keys.append(model.id.desc() if query.sorts and query.sorts[-1].descending else model.id.asc())
    return keys
