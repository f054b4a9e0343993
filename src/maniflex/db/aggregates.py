"""Queries over many rows at once: aggregates and walks through trees, inside a scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.budget import Budget
from maniflex.db.current import executor
from maniflex.db.port import Tx
from maniflex.db.store import Store
from maniflex.db.unchanged import versions_read
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind
from maniflex.query.aggregate import Aggregation
from maniflex.query.conditions import ConditionReader, Where
from maniflex.query.query import Query
from maniflex.sql.select import aggregate as aggregate_sql
from maniflex.sql.select import tree as tree_sql
from maniflex.sql.where import Scope

DEFAULT_DEPTH = 100
MOST_DEPTH = 10_000
DIRECTIONS = ("descendants", "ancestors")


async def aggregate(
    store: Store,
    aggregation: Aggregation,
    *,
    scope: Scope = (),
    budget: Budget | None = None,
    tx: Tx | None = None,
) -> list[dict[str, Any]]:
    """One row for each group: its keys and what was computed over it."""
    report = aggregate_sql(store.sql, aggregation, scope)
    rows = await executor(store.adapter, tx).fetch(report.sql, budget)
    return [report.decode(row) for row in rows]


async def tree(
    store: Store,
    *,
    root_id: str,
    parent_field: str,
    direction: str = DIRECTIONS[0],
    max_depth: int = 0,
    where: Where | None = None,
    scope: Scope = (),
    hidden: Sequence[FieldMeta] = (),
    tx: Tx | None = None,
) -> list[dict[str, Any]]:
    """The root and the records below (or above) it, nearest first; `_depth` says how far off."""
    reader = ConditionReader(Query(store.meta, store.models))
    parent = reader.field(parent_field, "parent_field")
    if parent.kind is not Kind.TEXT or "id" not in store.meta.by_name:
        problem = f"{parent_field!r} does not hold the id of a {store.meta.name}"
        raise reader.blame(InvalidQuery(f"parent_field: {problem}"))
    if direction not in DIRECTIONS:
        problem = f"{direction!r} is neither {' nor '.join(DIRECTIONS)}"
        raise reader.blame(InvalidQuery(f"direction: {problem}"))
    if type(max_depth) is not int or not 0 <= max_depth <= MOST_DEPTH:
        raise InvalidQuery(f"max_depth: a whole number from 0 to {MOST_DEPTH}")
    run = executor(store.adapter, tx)
    versions = versions_read(store.sql, run)
    statement = tree_sql(
        store.sql,
        root_id,
        parent,
        down=direction == DIRECTIONS[0],
        depth=max_depth or DEFAULT_DEPTH,
        filters=reader.conditions(where),
        scope=scope,
        versioned=versions is not None,
    )
    rows = await run.fetch(statement)
    if versions is not None:
        columns = store.sql.names
        versions.note_rows(rows, columns.index("id"), len(columns))
    decode = store.sql.decode
    # Plain values, which no later step would shape.
    names = [f.name for f in store.meta.fields if f.visible and f not in hidden]
    records = [vars(store.record(row if decode is None else decode(row))) for row in rows]
    return [{**{n: r[n] for n in names}, "_depth": row[-1]} for r, row in zip(records, rows, strict=True)]
