"""Reads of one model besides pages: by id, versions, counts, related records, key orders, aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind, RelationKind, RelationMeta
from maniflex.model.texts import TEXT
from maniflex.query.aggregate import Aggregation, Fn, Key, Measure
from maniflex.query.query import Filter, Sort, leaves, left_out, search_shape
from maniflex.sql import search
from maniflex.sql.codec import decoder
from maniflex.sql.decimal_order import has_order_key, number_of
from maniflex.sql.model import BoundLookup, ModelSql
from maniflex.sql.operators import list_value, one_of, test
from maniflex.sql.statement import Compiled, LookupText, Sql, by_dialect, compile_statement
from maniflex.sql.where import Scope, join, parameters, scope_conditions, shape, values, where

_MOST_LOOKUPS = 512
Lookup = tuple[Scope, bool, bool, bool]


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
    lookup = (scope, for_update, versioned, skip)
    bound = model.lookups.get(lookup)
    if bound is None:
        bound = _bind_lookup(model, lookup)
    text, before, after = bound
    return Sql(text, (*before, record_id, *after))


def _bind_lookup(model: ModelSql, lookup: Lookup) -> BoundLookup:
    """The statement with the values of the scope in their places; callers with one scope share it."""
    scope, for_update, versioned, skip = lookup
    key = ("one", for_update, versioned, skip, shape((), scope))
    statement = model.shapes.get(key, _one, model, scope, for_update, versioned, skip)
    arguments = statement.bind({**values(model, (), scope, statement.order), "id": None}).params
    place = statement.order.index("id")
    bound = (statement.text, arguments[:place], arguments[place + 1 :])
    if len(model.lookups) >= _MOST_LOOKUPS:
        model.lookups.pop(next(iter(model.lookups)), None)
    model.lookups[lookup] = bound
    return bound


def _one(model: ModelSql, scope: Scope, for_update: bool, versioned: bool, skip: bool) -> Compiled:
    conditions = [*model.live(), *scope_conditions(model, model.table, scope)]
    columns = [*model.columns, model.version] if versioned else model.columns
    statement = sa.select(*columns).where(model.id == sa.bindparam("id"), *conditions)
    if for_update:
        statement = statement.with_for_update(skip_locked=skip)
    lookup = compile_statement(statement, model.dialect)
    # The id of a query model is no key of anything.
    return lookup if model.readonly else replace(lookup, text=LookupText(lookup.text))


def kept_one(model: ModelSql, record_id: str, filters: Sequence[Filter] = (), scope: Scope = ()) -> Sql:
    """The row of that id inside filters and scope, also one that is marked as deleted."""
    key = ("kept_one", shape(filters, scope))
    statement = model.shapes.get(key, _kept_one, model, filters, scope)
    return statement.bind({**values(model, filters, scope, statement.order), "id": record_id})


def _kept_one(model: ModelSql, filters: Sequence[Filter], scope: Scope) -> Compiled:
    conditions = [model.id == sa.bindparam("id"), *where(model, model.table, filters, scope, live=False)]
    return compile_statement(sa.select(*model.columns).where(*conditions), model.dialect)


def kept_many(model: ModelSql, record_ids: Sequence[str]) -> Sql:
    """The rows of these ids, also those that are marked as deleted."""
    statement = model.shapes.get(("kept_many",), _kept_many, model)
    return statement.bind({"ids": list_value(model.dialect, record_ids)})


def _kept_many(model: ModelSql) -> Compiled:
    statement = sa.select(*model.columns).where(one_of(model.dialect, model.id, "ids"))
    return compile_statement(statement, model.dialect)


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


def count(
    model: ModelSql,
    filters: Sequence[Filter],
    scope: Scope = (),
    text: str | None = None,
    most: int | None = None,
) -> Sql:
    """How many live rows match, and match the search text if there is one; rows beyond `most` are not met."""
    key = ("count", shape(filters, scope), search_shape(text), most is None)
    statement = model.shapes.get(key, _count, model, filters, scope, text, most is not None)
    arguments = {**values(model, filters, scope, statement.order), "most": most}
    if text is not None:
        arguments["q"] = search.query_text(model, text)
    return statement.bind(arguments)


def _count(
    model: ModelSql, filters: Sequence[Filter], scope: Scope, text: str | None, is_capped: bool
) -> Compiled:
    live = not asks_for_deleted(model, filters)
    conditions = where(model, model.table, filters, scope, live=live)
    if text is not None:
        conditions.append(search.matches(model, left_out(text)))
    if is_capped:
        rows: sa.Select[Any] = (
            sa.select(sa.literal_column("1").label("one")).select_from(model.table).where(*conditions)
        )
        rows = rows.limit(sa.bindparam("most", type_=sa.Integer())).offset(sa.literal_column("0"))
        return compile_statement(sa.select(sa.func.count()).select_from(rows.subquery()), model.dialect)
    statement = sa.select(sa.func.count()).select_from(model.table).where(*conditions)
    return compile_statement(statement, model.dialect)


def asks_for_deleted(model: ModelSql, filters: Sequence[Filter]) -> bool:
    """Whether a filter names the deletion marker: then deleted rows are meant to be seen."""
    marker = model.meta.soft_delete
    return marker is not None and any(f.field.name == marker.field and not f.path for f in leaves(filters))


def every_field(model: ModelSql) -> list[Sort]:
    """The order of rows that have no id: by all their fields, as they are declared."""
    return [Sort(f) for f in model.meta.fields if f.kind not in (Kind.JSON, Kind.BYTES)]


def sort_key(
    model: ModelSql, sort: Sort, scope: Scope, table: FromClause | None = None
) -> sa.ColumnElement[Any]:
    """What rows are ordered by; nulls come first in ascending order on either database."""
    value: Any
    if sort.path:
        value = _related_value(model, model.table, sort.path, sort.field, scope)
        if not model.uses_order_keys and has_order_key(sort.field, model.dialect):
            value = value.collate("decimal")  # a subquery does not inherit it from its column
    else:
        value = model.comparison_column(sort.field, table)
    key: sa.ColumnElement[Any] = value.desc() if sort.descending else value.asc()
    if not sort.field.nullable and not sort.path and table is None:
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
        statement = statement.order_by(*[sort_key(target, s, ()) for s in every_field(target)])
    if capped:
        most = sa.bindparam("most", type_=sa.Integer())
        statement = statement.limit(most).offset(sa.literal_column("0"))
    return compile_statement(statement, target.dialect)


# All rows of a table in small pages, deleted ones too: for code that looks at every record there is.


_AFTER = "$after"
_IDS = "$ids"
_MOST = "$most"


def rows_behind(model: ModelSql, after: str, most: int) -> Sql:
    """The first rows whose id comes behind `after`, in the order of ids."""
    return model.shapes.get(("rows_behind",), _rows_behind, model).bind({_AFTER: after, _MOST: most})


def _rows_behind(model: ModelSql) -> Compiled:
    statement = sa.select(*model.columns).where(model.id > sa.bindparam(_AFTER, type_=model.id.type))
    statement = statement.order_by(model.id).limit(sa.bindparam(_MOST, type_=sa.Integer()))
    statement = statement.offset(sa.literal_column("0"))
    return compile_statement(statement, model.dialect)


def rows_among(model: ModelSql, ids: Sequence[str]) -> Sql:
    """The rows of these ids, not locked."""
    statement = model.shapes.get(("rows_among",), _rows_among, model)
    return statement.bind({_IDS: list_value(model.dialect, ids)})


def _rows_among(model: ModelSql) -> Compiled:
    statement = sa.select(*model.columns).where(one_of(model.dialect, model.id, _IDS))
    return compile_statement(statement, model.dialect)


# Aggregates of one model. Numbers are exact on both databases, down to the last digit.
#
# Sums and averages are decimals inside the statement, so that `having` and the order see the same values
# everywhere: numeric on Postgres, order keys (`decimal_order`) on SQLite, made by functions that every
# connection has (`db/sqlite/connect.py`). Floats are added as they are written (0.1 + 0.2 is 0.3), because
# a sum that depends on the order of rows is not the same twice.


# Fraction digits of an average; floats need room for the smallest there is.
DIGITS = 16
_FLOAT_DIGITS = 400
_SPARE = 100  # so that rounding twice is rounding once

Decode = Callable[[Sequence[Any]], dict[str, Any]]


class AggregateStatement(NamedTuple):
    """A statement for an aggregate, and how its rows are read."""

    sql: Sql
    decode: Decode


def aggregate(model: ModelSql, aggregation: Aggregation, scope: Scope = ()) -> AggregateStatement:
    """The groups of the live rows inside the scope."""
    key = (
        "aggregate",
        tuple([k.field.name for k in aggregation.keys]),
        tuple([(m.fn, m.field.name if m.field else None) for m in aggregation.measures]),
        shape(aggregation.filters, scope),
        tuple([(h.place, h.test.op, h.test.value is None) for h in aggregation.having]),
        aggregation.order,
        aggregation.limit is not None,
        search_shape(aggregation.search),
    )
    statement = model.shapes.get(key, _aggregate, model, aggregation, scope)
    arguments = values(model, aggregation.filters, scope, statement.order)
    for i, having in enumerate(aggregation.having):
        arguments.update(parameters(model, having.test, f"h{i}"))
    arguments["limit"] = aggregation.limit
    if aggregation.search is not None:
        arguments["q"] = search.query_text(model, aggregation.search)
    return AggregateStatement(statement.bind(arguments), _decoder(model, aggregation))


def _aggregate(model: ModelSql, aggregation: Aggregation, scope: Scope) -> Compiled:
    live = not asks_for_deleted(model, aggregation.filters)
    conditions = where(model, model.table, aggregation.filters, scope, live=live)
    if aggregation.search is not None:
        conditions.append(search.matches(model, left_out(aggregation.search)))
    keys = [model.comparison_column(key.field) for key in aggregation.keys]
    measures = [_measure(model, m) for m in aggregation.measures]
    columns = [column.label(f"c{i}") for i, column in enumerate([*keys, *measures])]
    statement = sa.select(*columns).select_from(model.table).where(*conditions)
    if keys:
        statement = statement.group_by(*keys)
    for i, having in enumerate(aggregation.having):
        statement = statement.having(test(model.dialect, measures[having.place], having.test, f"h{i}"))
    statement = statement.order_by(*_order(aggregation, [*keys, *measures]))
    if aggregation.limit is not None:
        statement = statement.limit(sa.bindparam("limit", type_=sa.Integer())).offset(sa.literal_column("0"))
    return compile_statement(statement, model.dialect)


def _order(aggregation: Aggregation, columns: Sequence[Any]) -> list[sa.ColumnElement[Any]]:
    """What was asked for, then the keys, so that groups always come in one order."""
    ordered_places = {place for place, _ in aggregation.order}
    rest = [(place, False) for place in range(len(aggregation.keys)) if place not in ordered_places]
    return [
        columns[place].desc().nulls_last() if down else columns[place].asc().nulls_first()
        for place, down in (*aggregation.order, *rest)
    ]


def _measure(model: ModelSql, measure: Measure) -> Any:
    field = measure.field
    if field is None:
        return sa.func.count()
    comparable = model.comparison_column(field)
    column = comparable if TEXT in field.extra else model.column(field)
    match measure.fn:
        case Fn.COUNT:
            return sa.func.count(column)
        case Fn.COUNT_DISTINCT:
            return sa.func.count(sa.distinct(comparable))
        case Fn.MIN | Fn.MAX:
            extreme: Any = sa.func.min(comparable) if measure.fn is Fn.MIN else sa.func.max(comparable)
            if not model.uses_order_keys and has_order_key(field, model.dialect):
                return extreme.collate("decimal")  # what a function gives does not inherit it
            return extreme
        case Fn.SUM | Fn.AVG:
            total = by_dialect(model.dialect, sqlite=_total_on_sqlite, postgres=_total_on_postgres)
            return total(model, measure.fn, field, column)


def _total_on_sqlite(model: ModelSql, fn: Fn, field: FieldMeta, column: Any) -> Any:
    text = _sqlite_number(fn, field, column)
    return sa.func.decimal_order(text) if model.uses_order_keys else text.collate("decimal")


def _total_on_postgres(model: ModelSql, fn: Fn, field: FieldMeta, column: Any) -> Any:
    total = _postgres_sum(field, column)
    if fn is Fn.SUM:
        return total
    digits = _digits(field)
    exact = sa.func.round(total, sa.literal_column(str(digits + _SPARE)))
    return sa.func.round(exact / sa.func.count(column), sa.literal_column(str(digits)))


def _digits(field: FieldMeta) -> int:
    return _FLOAT_DIGITS if field.kind is Kind.FLOAT else DIGITS


def _sqlite_number(fn: Fn, field: FieldMeta, column: Any) -> Any:
    digits: sa.ColumnElement[int] = sa.literal_column(str(_digits(field)))
    text: Any
    if field.kind is Kind.INT:
        halves = [
            sa.func.sum(column.op(">>")(sa.literal_column("32"))),
            sa.func.sum(column.op("&")(sa.literal_column("4294967295"))),
        ]
        if fn is Fn.SUM:
            text = sa.func.whole_sum(*halves, type_=sa.Text())
        else:
            text = sa.func.whole_avg(*halves, sa.func.count(column), digits, type_=sa.Text())
    elif fn is Fn.SUM:
        text = sa.func.exact_sum(column, type_=sa.Text())
    else:
        text = sa.func.exact_avg(column, digits, type_=sa.Text())
    return text


def _postgres_sum(field: FieldMeta, column: Any) -> Any:
    if field.kind is Kind.FLOAT:  # by way of text, which has all digits; a cast of its own keeps 15
        column = sa.cast(sa.cast(column, sa.Text()), sa.Numeric())
    return sa.func.sum(column, type_=sa.Numeric())


def _decoder(model: ModelSql, aggregation: Aggregation) -> Decode:
    names = aggregation.names
    readers = [_key_reader(model, k) for k in aggregation.keys]
    readers += [_reader(model, m) for m in aggregation.measures]

    def decode(row: Sequence[Any]) -> dict[str, Any]:
        return {
            name: value if value is None or read is None else read(value)
            for name, value, read in zip(names, row, readers, strict=True)
        }

    return decode


def _key_reader(model: ModelSql, key: Key) -> Callable[[Any], Any] | None:
    return _stored_value_reader(key.field.kind, model)


def _reader(model: ModelSql, measure: Measure) -> Callable[[Any], Any] | None:
    if measure.field is None or measure.fn in (Fn.COUNT, Fn.COUNT_DISTINCT):
        return None
    if measure.fn in (Fn.MIN, Fn.MAX):
        return _stored_value_reader(measure.field.kind, model)
    number = _decimal_reader(model)
    if measure.field.kind is Kind.FLOAT:
        return lambda value: _as_float(number(value), measure.alias)
    whole = measure.fn is Fn.SUM and measure.field.kind is Kind.INT
    return (lambda value: int(number(value))) if whole else number


def _decimal_reader(model: ModelSql) -> Callable[[Any], Decimal]:
    return number_of if model.uses_order_keys else plain


def _stored_value_reader(kind: Kind, model: ModelSql) -> Callable[[Any], Any] | None:
    match kind:
        case Kind.DECIMAL:
            return _decimal_reader(model)
        case Kind.FLOAT:
            return lambda value: float(value) + 0.0  # one zero: groups do not tell the two apart
        case _:
            return decoder(kind, model.dialect)


def plain(value: Any) -> Decimal:
    """A decimal without zeros at its end: 1.0 and 1.00 are one group, and either may stand for it.

    >>> plain("1.50"), plain("200"), plain("-0.0")
    (Decimal('1.5'), Decimal('200'), Decimal('0'))
    """
    text = value if isinstance(value, str) else format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return Decimal("0" if text in ("-0", "") else text)


def _as_float(value: Any, alias: str) -> float:
    number = float(value)
    if not isfinite(number):
        raise InvalidQuery(f"{alias}: the result is larger than a number can be")
    return number + 0.0


# Walks along a field that holds the id of another row of the same table: down to descendants, up to
# ancestors.
#
# A row has one parent, so a walk down can meet a row twice only by coming back to its root, which is left
# out; a walk up is a single line, so one that runs in a circle costs no more than its depth.


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
