"""Walks along a field that holds the id of another row of the same table: down to descendants, up to
ancestors.

A row has one parent, so a walk down can meet a row twice only by coming back to its root, which is
left out; a walk up is a single line, so one that runs in a circle costs no more than its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from maniflex.model.meta import FieldMeta
from maniflex.query.query import Filter
from maniflex.sql.model import ModelSql
from maniflex.sql.select import asks_for_deleted
from maniflex.sql.statement import Sql
from maniflex.sql.statement_cache import Compiled, compile_statement
from maniflex.sql.where import Scope, shape, values, where


def tree(
    model: ModelSql,
    root_id: str,
    parent: FieldMeta,
    *,
    down: bool,
    depth: int,
    filters: Sequence[Filter] = (),
    scope: Scope = (),
    versioned: bool = False,
) -> Sql:
    """Every row that can be reached from the root through matching live rows, once; last, how far off.

    With `versioned`, the column behind the fields is the version of the row.
    """
    key = ("tree", parent.name, down, shape(filters, scope), versioned)
    statement = model.shapes.get(key, _tree, model, parent, down, filters, scope, versioned)
    arguments = values(model, filters, scope, statement.order)
    return statement.bind({**arguments, "$root": root_id, "$depth": depth})


def _tree(
    model: ModelSql,
    parent: FieldMeta,
    down: bool,
    filters: Sequence[Filter],
    scope: Scope,
    versioned: bool,
) -> Compiled:
    live = not asks_for_deleted(model, filters)
    root: Any = sa.bindparam("$root")
    first, each = model.table.alias(), model.table.alias()
    id_, up = model.id.name, parent.column
    start = sa.select(
        first.c[id_].label("id"), first.c[up].label("up"), sa.literal_column("0").label("depth")
    )
    walk = start.where(first.c[id_] == root, *where(model, first, filters, scope, live=live))
    steps: Any = walk.cte("walk", recursive=True)
    tie = each.c[up] == steps.c.id if down else each.c[id_] == steps.c.up
    step = sa.select(each.c[id_], each.c[up], steps.c.depth + sa.literal_column("1"))
    step = step.where(
        tie,
        each.c[id_] != root,
        steps.c.depth < sa.bindparam("$depth", type_=sa.Integer()),
        *where(model, each, filters, scope, live=live),
    )
    steps = steps.union_all(step)
    nearest = (
        sa.select(steps.c.id, sa.func.min(steps.c.depth).label("depth")).group_by(steps.c.id).subquery("met")
    )
    columns = [*model.columns, model.version] if versioned else model.columns
    statement = sa.select(*columns, nearest.c.depth).where(model.id == nearest.c.id)
    return compile_statement(statement.order_by(nearest.c.depth, model.id), model.dialect)
