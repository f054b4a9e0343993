"""Reads of one model: by id, pages with their count, keyset pages, counts, and related records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex._limits import DEFAULT_LIMIT
from maniflex.model.meta import FieldMeta, Kind, RelationKind, RelationMeta
from maniflex.query.query import Cursor, Filter, Query, Sort
from maniflex.sql import search
from maniflex.sql.decimal_order import has_order_key
from maniflex.sql.model import ModelSql
from maniflex.sql.operators import list_value, one_of
from maniflex.sql.statement import LookupText, Sql
from maniflex.sql.statement_cache import Compiled, compile_statement
from maniflex.sql.where import Scope, join, leaves, scope_conditions, shape, values, where


class Listing(NamedTuple):
    """A statement for a page, the fields its rows have, and how they are decoded."""

    sql: Sql
    fields: tuple[FieldMeta, ...]
    decode: Callable[[Sequence[Any]], Sequence[Any]] | None


def one(
    model: ModelSql,
    record_id: str,
    scope: Scope = (),
    *,
    for_update: bool = False,
    versioned: bool = False,
    wait: bool = False,
) -> Sql:
    """The live row of that id inside the scope; with `for_update`, locked until the transaction ends.

    With `versioned`, the last column is the version of the row; a lock that another transaction
    holds is not waited for, unless `wait` says so.
    """
    skip = versioned and not wait
    if not scope:
        key: tuple[Any, ...] = ("one", for_update, versioned, skip)
        statement = model.shapes.get(key, _one, model, (), for_update, versioned, skip)
        return Sql(statement.text, (record_id,))
    key = ("one", for_update, versioned, skip, shape((), scope))
    statement = model.shapes.get(key, _one, model, scope, for_update, versioned, skip)
    return statement.bind({**values(model, (), scope, statement.order), "id": record_id})


def _one(model: ModelSql, scope: Scope, for_update: bool, versioned: bool, skip: bool) -> Compiled:
    conditions = [*model.live(), *scope_conditions(model, model.table, scope)]
    columns = [*model.columns, model.version] if versioned else model.columns
    statement = sa.select(*columns).where(model.id == sa.bindparam("id"), *conditions)
    if for_update:
        statement = statement.with_for_update(skip_locked=skip)
    lookup = compile_statement(statement, model.dialect)
    # The id of a query model is no key of anything.
    return lookup if model.readonly else replace(lookup, text=LookupText(lookup.text))


def version(
    model: ModelSql, record_id: str, *, hold: bool = False, wait: bool = False, live: bool = True
) -> Sql:
    """The version of the live row of that id (or, not `live`, of any), and whether this transaction wrote it.

    With `hold`, the row is locked, and left out if another transaction holds it; with `wait` it is not.
    """
    key = ("version", hold, wait, live)
    return model.shapes.get(key, _version, model, hold, wait, live).bind({"id": record_id})


def _version(model: ModelSql, hold: bool, wait: bool, live: bool) -> Compiled:
    statement = sa.select(model.version, own_version(model)).select_from(model.table)
    statement = statement.where(model.id == sa.bindparam("id"), *(model.live() if live else ()))
    if hold:
        statement = statement.with_for_update(key_share=True, skip_locked=not wait)
    return compile_statement(statement, model.dialect)


def own_version(model: ModelSql) -> sa.ColumnElement[bool]:
    """Whether this transaction wrote the row."""
    # A version is the last 32 bits of the number of the transaction that wrote it.
    return sa.cast(model.version, sa.Text) == sa.literal_column("(txid_current() & 4294967295)::text")


def page(model: ModelSql, query: Query, *, versioned: bool = False) -> Listing:
    """One page of a list; without a cursor, the last column of every row is the total over all pages.

    With `versioned`, the column behind the fields is the version of the row.
    """
    if versioned:
        return _listing(model, query, versioned=True)
    first = query.unchanged_template()
    if first is None:
        return _listing(model, query)
    if first.prepared is None:
        first.prepared = _listing(model, first)
    listing: Listing = first.prepared
    return listing


def all_rows(model: ModelSql, query: Query, fields: tuple[FieldMeta, ...], most: int) -> Listing:
    """These fields of every row the list would show, up to `most` of them, without a count."""
    whole = query.copy()
    whole.page, whole.limit, whole.includes, whole.select = 1, most, (), fields
    return _listing(model, whole, counted=False)


def _listing(model: ModelSql, query: Query, *, counted: bool = True, versioned: bool = False) -> Listing:
    fields = page_fields(model, query)
    # The common page size stands in the text, so that Postgres can plan for it.
    size = query.limit if query.limit is None or query.limit == DEFAULT_LIMIT else "any"
    if query.cursor is not None:
        size = "any"
    later = query.page > 1 and query.limit is not None
    key = (
        "page",
        size,
        later,
        shape(query.filters, query.forced),
        tuple([(s.field.name, s.descending, tuple([r.name for r in s.path])) for s in query.sorts]),
        None if query.select is None else tuple([f.name for f in fields]),
        query.search is not None,
        _cursor_shape(query.cursor),
        counted,
        versioned,
    )
    statement = model.shapes.get(key, _page, model, query, fields, size, later, counted, versioned)
    arguments = values(model, query.filters, query.forced, statement.order)
    limit = query.limit or 0
    arguments["limit"] = limit + 1 if query.cursor is not None else limit
    arguments["offset"] = (query.page - 1) * limit
    if query.cursor is not None and query.cursor.after is not None:
        arguments["after"] = model.encode_comparable(query.cursor.field, query.cursor.after[0])
        arguments["after_id"] = query.cursor.after[1]
    if query.search is not None:
        arguments["q"] = search.query_text(model, query.search)
    decode = model.decode if query.select is None else model.decoder(fields)
    return Listing(statement.bind(arguments), fields, decode)


def page_fields(model: ModelSql, query: Query) -> tuple[FieldMeta, ...]:
    """The fields in rows of the query's pages: the selected ones, and those includes and cursors need."""
    if query.select is None:
        return model.meta.fields
    names = {"id", *(f.name for f in query.select)}
    names |= {
        i.relation.key
        for i in query.includes
        if i.relation.kind is RelationKind.BELONGS_TO and i.relation.key
    }
    if query.cursor is not None:
        names.add(query.cursor.field.name)
    return tuple(f for f in model.meta.fields if f.name in names)


def _cursor_shape(cursor: Cursor | None) -> tuple[Any, ...] | None:
    if cursor is None:
        return None
    return (cursor.field.name, cursor.descending, cursor.backwards, cursor.after is not None)


def _page(
    model: ModelSql,
    query: Query,
    fields: tuple[FieldMeta, ...],
    size: int | str | None,
    later: bool,
    counted: bool,
    versioned: bool,
) -> Compiled:
    conditions = where(
        model, model.table, query.filters, query.forced, live=not asks_for_deleted(model, query.filters)
    )
    columns: list[Any] = [model.read_column(f) for f in fields]
    if versioned:
        columns.append(model.version)
    source, relevance = _search(model, query, conditions)
    if query.cursor is None:
        total = sa.select(sa.func.count()).select_from(source).where(*conditions).correlate(None)
        if counted:
            columns.append(total.scalar_subquery().label("total"))
        statement = sa.select(*columns).select_from(source).where(*conditions)
        statement = statement.order_by(*relevance, *_order(model, query))
    else:
        statement = sa.select(*columns).where(*conditions, *_after(model, query.cursor))
        statement = statement.order_by(*_walk_order(model, query.cursor))
    if size is not None:
        statement = statement.limit(
            sa.literal_column(str(size))
            if isinstance(size, int)
            else sa.bindparam("limit", type_=sa.Integer())
        )
        # Said even where it is nothing, because SQLAlchemy adds a parameter of its own on SQLite.
        statement = statement.offset(
            sa.bindparam("offset", type_=sa.Integer()) if later else sa.literal_column("0")
        )
    return compile_statement(statement, model.dialect)


def _search(
    model: ModelSql, query: Query, conditions: list[sa.ColumnElement[bool]]
) -> tuple[FromClause, list[sa.ColumnElement[Any]]]:
    """Narrow the conditions to matches of the search; gives the source of rows and the order by relevance."""
    if query.search is None:
        return model.table, []
    if query.cursor is not None or query.sorts:
        conditions.append(search.matches(model))
        return model.table, []
    hits = search.ranked_matches(model, query.forced)
    conditions += hits.conditions
    return hits.source, [hits.order]


def _after(model: ModelSql, cursor: Cursor) -> list[sa.ColumnElement[bool]]:
    if cursor.after is None:
        return []
    here: Any = sa.tuple_(model.comparison_column(cursor.field), model.id)
    there = sa.tuple_(sa.bindparam("after"), sa.bindparam("after_id"))
    return [here < there if cursor.descending != cursor.backwards else here > there]


def _walk_order(model: ModelSql, cursor: Cursor) -> list[sa.ColumnElement[Any]]:
    columns = (model.comparison_column(cursor.field), model.id)
    down = cursor.descending != cursor.backwards
    return [column.desc() if down else column.asc() for column in columns]


def count(model: ModelSql, filters: Sequence[Filter], scope: Scope = (), text: str | None = None) -> Sql:
    """How many live rows match, and match the search text if there is one."""
    key = ("count", shape(filters, scope), text is not None)
    statement = model.shapes.get(key, _count, model, filters, scope, text is not None)
    arguments = values(model, filters, scope, statement.order)
    if text is not None:
        arguments["q"] = search.query_text(model, text)
    return statement.bind(arguments)


def _count(model: ModelSql, filters: Sequence[Filter], scope: Scope, searching: bool) -> Compiled:
    live = not asks_for_deleted(model, filters)
    conditions = where(model, model.table, filters, scope, live=live)
    if searching:
        conditions.append(search.matches(model))
    statement = sa.select(sa.func.count()).select_from(model.table).where(*conditions)
    return compile_statement(statement, model.dialect)


def asks_for_deleted(model: ModelSql, filters: Sequence[Filter]) -> bool:
    """Whether a filter names the deletion marker: then deleted rows are meant to be seen."""
    marker = model.meta.soft_delete
    return marker is not None and any(f.field.name == marker.field and not f.path for f in leaves(filters))


def _order(model: ModelSql, query: Query) -> list[sa.ColumnElement[Any]]:
    keys = [_sort_key(model, s, query.forced) for s in query.sorts]
    if model.id is None:
        keys += [_sort_key(model, s, ()) for s in _every_field(model)]
    elif not any(s.field.name == "id" and not s.path for s in query.sorts):
        keys.append(model.id.desc() if query.sorts and query.sorts[-1].descending else model.id.asc())
    return keys


def _every_field(model: ModelSql) -> list[Sort]:
    """The order of rows that have no id: by all their fields, as they are declared."""
    return [Sort(f) for f in model.meta.fields if f.kind not in (Kind.JSON, Kind.BYTES)]


def _sort_key(model: ModelSql, sort: Sort, scope: Scope) -> sa.ColumnElement[Any]:
    value: Any
    if sort.path:
        value = _related_value(model, model.table, sort.path, sort.field, scope)
        if not model.uses_order_keys and has_order_key(sort.field, model.dialect):
            value = value.collate("decimal")  # a subquery does not inherit it from its column
    else:
        value = model.comparison_column(sort.field)
    key: sa.ColumnElement[Any] = value.desc() if sort.descending else value.asc()
    if not sort.field.nullable and not sort.path:
        return key
    # Nulls come first ascending on SQLite and last on Postgres: say it, where there can be any.
    return key.nulls_last() if sort.descending else key.nulls_first()


def _related_value(
    model: ModelSql, table: FromClause, path: tuple[RelationMeta, ...], field: FieldMeta, scope: Scope
) -> sa.ColumnElement[Any]:
    """The field of the record the path leads to, or null: a subquery, so that no row is repeated."""
    conditions: list[sa.ColumnElement[bool]] = []
    for relation in path:
        model, table, ties = join(model, table, relation, scope)
        conditions += ties
    related_row = sa.select(model.comparison_column(field, table)).where(*conditions)
    # One at the most: the id of a query model is only as unique as its SELECT makes it.
    related_row = related_row.limit(sa.literal_column("1")).offset(sa.literal_column("0"))
    value: sa.ColumnElement[Any] = related_row.scalar_subquery()
    return value


def related_rows(
    model: ModelSql,
    relation: RelationMeta,
    target: ModelSql,
    keys: Sequence[str],
    scope: Scope,
    most: int | None = None,
    *,
    versioned: bool = False,
) -> Sql:
    """The records a relation leads to from any of `keys`, at most `most`; the last column says from which.

    `model` owns the relation; for a junction the middle table must live with the target. With
    `versioned`, the column behind the fields is the version of the row.
    """
    key = ("related", model.meta.name, relation.name, shape((), scope), most is None, versioned)
    statement = target.shapes.get(
        key, _related_rows, model, relation, target, scope, most is not None, versioned
    )
    arguments = values(target, (), scope, statement.order)
    return statement.bind({**arguments, "keys": list_value(target.dialect, keys), "most": most})


def _related_rows(
    model: ModelSql,
    relation: RelationMeta,
    target: ModelSql,
    scope: Scope,
    capped: bool,
    versioned: bool,
) -> Compiled:
    conditions = [*target.live(), *scope_conditions(target, target.table, scope)]
    if relation.kind is RelationKind.MANY_TO_MANY:
        middle = target.peer(relation.through or "")
        between = middle.table.alias()
        origin = middle.at(between, relation.key or "")
        conditions += [
            middle.at(between, relation.far_key or "") == target.id,
            *middle.live(between),
            *scope_conditions(middle, between, scope),
        ]
    elif relation.kind is RelationKind.HAS_MANY:
        origin = target.at(target.table, relation.key or "")
    else:
        origin = target.id
    conditions.append(one_of(target.dialect, origin, "keys"))
    columns = [*target.columns, target.version] if versioned else target.columns
    statement = sa.select(*columns, origin.label("origin")).where(*conditions)
    if target.id is not None:
        statement = statement.order_by(target.id)
    else:
        statement = statement.order_by(*[_sort_key(target, s, ()) for s in _every_field(target)])
    if capped:
        most = sa.bindparam("most", type_=sa.Integer())
        statement = statement.limit(most).offset(sa.literal_column("0"))
    return compile_statement(statement, target.dialect)
