"""Statements on the histories of versioned models: the one that adds rows, and the past as a table.

A version is numbered in the statement that adds it, under the lock of the record's row; `timestamp` never
goes back within a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex._json import encode_json
from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import FieldMeta, Kind
from maniflex.query.query import Compare, Filter, Query, leaves
from maniflex.sql.bindings import binding_from_values, bound_then, has_stamp, is_told
from maniflex.sql.codec import encode_datetime
from maniflex.sql.decimal_order import has_order_key, order_column
from maniflex.sql.history_layouts import Layouts, is_unknown, newest_layout, value_then
from maniflex.sql.model import ModelSql
from maniflex.sql.operators import Condition, test
from maniflex.sql.select import sort_key
from maniflex.sql.statement import (
    Compiled,
    Dialect,
    NamedStatement,
    Sql,
    by_dialect,
    compile_statement,
    statement_of,
)
from maniflex.sql.tables import column_type, quote
from maniflex.sql.where import Scope, named_leaves, rules_on, scope_conditions, shape, values, where
from maniflex.sql.write import OF_WRITE

_COLUMNS = "id record_id version operation actor_id tenant_id timestamp request_id source reason diff"
WRITTEN = [*_COLUMNS.split(), "snapshot", "binding", "schema_version"]  # what a version has when it is added


class HistoryEntry(NamedTuple):
    """One row to add. `step` is 1, or 2 behind a baseline that is added with it."""

    id: str
    record_id: str
    step: int
    operation: str
    timestamp: datetime
    source: str
    diff: str
    snapshot: str | None
    own_values: str | None = None  # of the fields by which the record is bound


Author = tuple[str | None, str | None, str | None, str | None]  # id, tenant and request, and the reason


def append(model: ModelSql, entries: Sequence[HistoryEntry], author: Author, *, known: bool) -> Sql:
    """Add versions of different records in one statement; gives back whose were added.

    With `known`, only those of records that have a history already.
    """
    if len(entries) == 1:
        [entry] = entries
        statement = model.shapes.get(("append_one", known), _append_one, model, known)
        encode = model.encoders["timestamp"]
        moment = entry.timestamp if encode is None else encode(entry.timestamp)
        return Sql(statement.text, (*author, *entry[:4], moment, *entry[5:]))
    statement = model.shapes.get(("append", known), _append, model, known)
    rows = by_dialect(model.dialect, sqlite=_rows_as_json, postgres=_rows_as_lists)(entries)
    return Sql(statement.text, (*author, *rows))


def _rows_as_json(entries: Sequence[HistoryEntry]) -> tuple[Any, ...]:
    return (encode_json([(*e[:4], encode_datetime(e.timestamp), *e[5:]) for e in entries]),)


def _rows_as_lists(entries: Sequence[HistoryEntry]) -> tuple[Any, ...]:
    return tuple(map(list, zip(*entries, strict=True)))


def _append(model: ModelSql, known: bool) -> Compiled:
    text = by_dialect(model.dialect, sqlite=_SQLITE_APPEND, postgres=_POSTGRES_APPEND)
    condition = "WHERE r.last IS NOT NULL" if known else "WHERE true"
    binding = binding_from_values(model, "r.own_values")
    return Compiled(text.format(condition=condition, binding=binding, **_names(model)), ())


def _append_one(model: ModelSql, known: bool) -> Compiled:
    text = by_dialect(model.dialect, sqlite=_SQLITE_ONE, postgres=_POSTGRES_ONE)
    join = "JOIN" if known else "LEFT JOIN"
    binding = binding_from_values(model, by_dialect(model.dialect, sqlite="?13", postgres="$13"))
    return Compiled(text.format(join=join, binding=binding, of_write=OF_WRITE, **_names(model)), ())


def _names(model: ModelSql) -> dict[str, str]:
    columns = ", ".join(quote(name, model.dialect) for name in WRITTEN)
    return {"table": quote(model.table.name, model.dialect), "columns": columns, "layout": own_layout(model)}


def own_layout(history: ModelSql) -> str:
    """The number of the layout that this process writes, as SQL."""
    own = None if history.layouts is None else history.layouts.own
    null = by_dialect(history.dialect, sqlite="NULL", postgres="NULL::bigint")
    return null if own is None else by_dialect(history.dialect, sqlite=str(own), postgres=f"{own}::bigint")


_SQLITE_ONE = """
INSERT INTO {table} ({columns})
SELECT ?5, ?6, coalesce(last.version, 0) + ?7, ?8, ?1, ?2, max(?9, coalesce(last.timestamp, ?9)), ?3, ?10, ?4,
       ?11, ?12, {binding}, {layout}
  FROM (SELECT 1) {join} (SELECT version, timestamp FROM {table} WHERE record_id = ?6
                           ORDER BY version DESC LIMIT 1) AS last ON true
RETURNING record_id"""
_POSTGRES_ONE = """
INSERT INTO {table} ({columns})
SELECT $5::text, $6::text, coalesce(last.version, 0) + $7::bigint, $8::text, $1::text, $2::text,
       greatest($9::timestamptz, last.timestamp), $3::text, $10::text, $4::text, $11::json, $12::json,
       {binding}, {layout}
  FROM {of_write} {join} (SELECT version, timestamp FROM {table} WHERE record_id = $6
                                  ORDER BY version DESC LIMIT 1) AS last ON true
RETURNING record_id"""
_SQLITE_APPEND = """
INSERT INTO {table} ({columns})
SELECT r.id, r.record_id, coalesce(r.last, 0) + r.step, r.operation, ?1, ?2,
       max(r.moment, coalesce(r.last_moment, r.moment)), ?3, r.source, ?4, r.diff, r.snapshot, {binding},
       {layout}
  FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS record_id,
               json_extract(value, '$[2]') AS step, json_extract(value, '$[3]') AS operation,
               json_extract(value, '$[4]') AS moment, json_extract(value, '$[5]') AS source,
               json_extract(value, '$[6]') AS diff, json_extract(value, '$[7]') AS snapshot,
               json_extract(value, '$[8]') AS own_values,
               (SELECT h.version FROM {table} AS h WHERE h.record_id = json_extract(value, '$[1]')
                 ORDER BY h.version DESC LIMIT 1) AS last,
               (SELECT h.timestamp FROM {table} AS h WHERE h.record_id = json_extract(value, '$[1]')
                 ORDER BY h.version DESC LIMIT 1) AS last_moment
          FROM json_each(?5)) AS r
 {condition}
RETURNING record_id"""
_POSTGRES_APPEND = """
INSERT INTO {table} ({columns})
SELECT r.id, r.record_id, coalesce(r.last, 0) + r.step, r.operation, $1, $2,
       greatest(r.moment, r.last_moment), $3, r.source, $4, r.diff::json, r.snapshot::json, {binding},
       {layout}
  FROM (SELECT entry.*, h.version AS last, h.timestamp AS last_moment
          FROM unnest($5::text[], $6::text[], $7::bigint[], $8::text[], $9::timestamptz[], $10::text[],
                      $11::text[], $12::text[], $13::text[])
               AS entry(id, record_id, step, operation, moment, source, diff, snapshot, own_values)
          LEFT JOIN LATERAL (SELECT version, timestamp FROM {table} AS own
                              WHERE own.record_id = entry.record_id ORDER BY own.version DESC LIMIT 1) AS h
            ON true) AS r
 {condition}
RETURNING record_id"""


# The delete of versions that are older than a history keeps them.
#
# A batch is a stretch of ids, which rise with time, so that no pass looks at all of a table at once. The
# newest version from before the horizon stays as long as it tells of a time after the horizon: its record
# is still there, or has versions since.


_SLACK = timedelta(hours=1)  # ids are made by the clocks of processes, which differ
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STRETCH = """
SELECT max(id) FROM (SELECT id FROM {history} WHERE id > :after AND id < :edge ORDER BY id LIMIT :most)
    AS stretch"""
_DELETE = """
DELETE FROM {history} WHERE id > :after AND id <= :last AND timestamp < :horizon AND (
       EXISTS (SELECT 1 FROM {history} AS later WHERE later.record_id = {history}.record_id
                  AND later.version = {history}.version + 1 AND later.timestamp < :horizon)
    OR NOT EXISTS (SELECT 1 FROM {history} AS later WHERE later.record_id = {history}.record_id
                      AND later.version > {history}.version)
       AND NOT EXISTS (SELECT 1 FROM {records} WHERE {records}.{id} = {history}.record_id))"""


def last_of_stretch(history: ModelSql, horizon: datetime, after: str, most: int) -> Sql:
    """The last id of the next `most` versions that may be old enough; null when there are none."""
    milliseconds = (horizon + _SLACK - _EPOCH) // timedelta(milliseconds=1)
    text = f"{max(milliseconds, 0):012x}"
    edge = f"{text[:8]}-{text[8:]}"  # how the ids of that moment begin
    return _statement(_STRETCH, history, history).bind(after=after, edge=edge, most=most)


def delete_old_versions(
    history: ModelSql, records: ModelSql, horizon: datetime, after: str, last: str
) -> Sql:
    """Delete those versions of a stretch that nothing needs any more."""
    moment = by_dialect(history.dialect, sqlite=encode_datetime(horizon), postgres=horizon)
    return _statement(_DELETE, history, records).bind(after=after, last=last, horizon=moment)


def _statement(text: str, history: ModelSql, records: ModelSql) -> NamedStatement:
    names = (history.table.name, records.table.name, records.id.name)
    return _read(text, history.dialect, *names)


@cache
def _read(text: str, dialect: Dialect, history: str, records: str, record_id: str) -> NamedStatement:
    names = {
        "history": quote(history, dialect),
        "records": quote(records, dialect),
        "id": quote(record_id, dialect),
    }
    return statement_of(text.format(**names), dialect)


# The records of a versioned model as they were at a moment: a table made of the snapshots of its history.
#
# Filters, sorts and scopes work on it as on the table itself. A record was there at that moment if its last
# version until then is no deletion.


_MOMENT = "$moment"
_RECORD = "$record"
_STATE = "$state"
# No column of a model is called like these.
_VERSION, _SNAPSHOT, _BINDING = "history$version", "history$snapshot", "history$binding"
_LAYOUT, _WRITTEN_AT, _UNKNOWN = "history$layout", "history$written_at", "history$unknown$"
_DELETED = HistoryOperation.DELETE.value
_ONE: Any = sa.literal_column("1")


class PastPageRow(NamedTuple):
    """One record of a page of the past."""

    version: int
    snapshot: str
    total: int  # of all pages
    layout: int | None
    is_doubtful: int  # there are records whose versions do not tell what filters and sorts ask
    newest_layout: int | None  # of all histories of the database
    written_at: Any  # as the database has it


class PastState(NamedTuple):
    """A record at one of its versions, and what bound it then; both as JSON."""

    snapshot: str
    binding: str | None


def page(
    model: ModelSql,
    history: ModelSql,
    query: Query,
    scope: Scope,
    moment: datetime,
    record_id: str | None = None,
) -> Sql:
    """The records of one page, as they were; with an id, that record: `PastPageRow`.

    `scope` must hold of the record as it was, as far as its snapshot tells, and of the record as it is.
    """
    sorts = tuple((s.field.name, s.descending) for s in query.sorts)
    layouts = history.layouts_of(model)
    past_fields = layouts.newest, layouts.added_until(moment)
    key = ("past", shape(query.filters, scope), sorts, record_id is not None, past_fields)
    asked_rows = _PastQuery(query, scope, moment if past_fields[1] else None)
    statement = model.shapes.get(key, _page, model, history, asked_rows, record_id is not None)
    size = query.limit or 1
    arguments = values(model, query.filters, scope, statement.order)
    at = by_dialect(model.dialect, sqlite=encode_datetime(moment), postgres=moment)
    arguments |= {_MOMENT: at, _RECORD: record_id, "limit": size, "offset": (query.page - 1) * size}
    return statement.bind(arguments)


class _PastQuery(NamedTuple):
    """What decides the text of a page."""

    query: Query
    scope: Scope
    moment: datetime | None  # None where no field came later


def asked_fields(query: Query) -> list[FieldMeta]:
    """The fields that filters and sorts look at."""
    fields = [item.field for item in leaves(query.filters) if not item.path]
    fields += [item.value for item in leaves(query.filters) if isinstance(item.value, FieldMeta)]
    return list(dict.fromkeys([*fields, *(sort.field for sort in query.sorts)]))


def inside(model: ModelSql, record_id: str, state: PastState, filters: Sequence[Filter], scope: Scope) -> Sql:
    """One row if a record that was in a state satisfies the filters and lay in the scope."""
    statement = model.shapes.get(("inside", shape(filters, scope)), _inside, model, filters, scope)
    arguments = values(model, filters, scope, statement.order)
    return statement.bind(arguments | {_RECORD: record_id, _STATE: state.snapshot, _BINDING: state.binding})


def _inside(model: ModelSql, filters: Sequence[Filter], scope: Scope) -> Compiled:
    snapshot, binding = (_json_parameter(name, model.dialect) for name in (_STATE, _BINDING))
    record_id = sa.cast(sa.bindparam(_RECORD), sa.Text())
    columns = (record_id.label("record_id"), snapshot.label("snapshot"), binding.label(_BINDING))
    row = sa.select(*columns).subquery("version")
    now = Layouts(model.meta)  # the state was made of the fields of now
    past = sa.select(*_all_columns(model, row, now), row.c[_BINDING]).subquery("past")
    conditions = [*where(model, past, filters, (), live=False), *_scope_then(model, past, scope)]
    return compile_statement(
        sa.select(sa.literal_column("1")).select_from(past).where(*conditions), model.dialect
    )


def _json_parameter(name: str, dialect: Dialect) -> Any:
    value: Any = sa.bindparam(name)
    return by_dialect(dialect, sqlite=value, postgres=sa.cast(value, column_type(Kind.JSON, dialect)))


def _page(model: ModelSql, history: ModelSql, asked: _PastQuery, one: bool) -> Compiled:
    query, scope, _ = asked
    past = _past(model, history, asked, one=one)
    marker = model.meta.soft_delete
    tells_deleted = marker is None or not model.meta.by_name[marker.field].secret
    conditions = [*(model.live(past) if tells_deleted else ()), *_scope_then(model, past, scope)]
    filters = where(model, past, query.filters, (), live=False)
    doubts = [past.c[name] for f in asked_fields(query) if (name := _UNKNOWN + f.name) in past.c]
    doubt: Any = sa.literal_column("0")
    if doubts:  # such a record is among the rows, whatever the filters say, so that the answer can tell it
        is_doubtful = sa.or_(*doubts)
        doubt = sa.func.max(sa.case((is_doubtful, _ONE), else_=sa.literal_column("0"))).over()
        conditions.append(sa.or_(is_doubtful, sa.and_(sa.true(), *filters)))
    else:
        conditions += filters
    if scope:
        now = model.table.alias()
        inside = [now.c[model.id.name] == past.c[model.id.name], *scope_conditions(model, now, scope)]
        conditions.append(sa.exists(sa.select(sa.literal_column("1")).where(*inside)))
    newest: Any = sa.literal_column(newest_layout() if history.layouts_of(model).numbers else "NULL")
    columns = [past.c[_VERSION], past.c[_SNAPSHOT], sa.func.count().over(), past.c[_LAYOUT], doubt, newest]
    columns.append(past.c[_WRITTEN_AT])
    statement = sa.select(*columns).where(*conditions)
    order = [sort_key(model, sort, (), past) for sort in query.sorts]
    if not any(sort.field.name == "id" for sort in query.sorts):
        record_id = past.c[model.id.name]
        order.append(record_id.desc() if query.sorts and query.sorts[-1].descending else record_id.asc())
    statement = statement.order_by(*order).limit(sa.bindparam("limit", type_=sa.Integer()))
    statement = statement.offset(sa.bindparam("offset", type_=sa.Integer()))
    return compile_statement(statement, model.dialect)


def _scope_then(model: ModelSql, past: FromClause, scope: Scope) -> Iterator[Condition]:
    """The scope on records as they were, as far as their histories tell."""
    for name, condition, _ in rules_on(model, scope):
        items = named_leaves(condition, name)
        if all(is_told(item, item.path) for _, item in items):
            yield sa.or_(*[_leaf_then(model, past, item, leaf_name) for leaf_name, item in items])


def _leaf_then(model: ModelSql, past: FromClause, item: Compare, name: str) -> Condition:
    """A comparison with the record as it was; not so where its version does not tell the field."""
    if has_stamp(item, item.path):
        return bound_then(past.c[_BINDING], model.dialect, item.path, item, name)
    holds = test(model.dialect, model.comparison_column(item.field, past), item, name)
    unknown = _UNKNOWN + item.field.name
    return sa.and_(sa.not_(past.c[unknown]), holds) if unknown in past.c else holds


def _past(model: ModelSql, history: ModelSql, asked: _PastQuery, *, one: bool) -> FromClause:
    row = history.table.alias("version")
    later = history.table.alias("later")
    moment: Any = sa.bindparam(_MOMENT)
    conditions = [row.c.operation != sa.literal_column(f"'{_DELETED}'"), row.c.snapshot.is_not(None)]
    if one:
        last = sa.select(later.c.version).where(
            later.c.record_id == sa.bindparam(_RECORD), later.c.timestamp <= moment
        )
        last = last.order_by(later.c.version.desc()).limit(sa.literal_column("1"))
        last = last.offset(sa.literal_column("0"))
        conditions += [row.c.record_id == sa.bindparam(_RECORD), row.c.version == last.scalar_subquery()]
    else:  # versions have no gaps and their times never go back
        following = [
            later.c.record_id == row.c.record_id,
            later.c.version == row.c.version + sa.literal_column("1"),
        ]
        successor: Any = sa.select(sa.literal_column("1")).where(*following, later.c.timestamp <= moment)
        conditions += [row.c.timestamp <= moment, sa.not_(sa.exists(successor))]
    own = [
        row.c.version.label(_VERSION),
        row.c.snapshot.label(_SNAPSHOT),
        row.c.binding.label(_BINDING),
        row.c.schema_version.label(_LAYOUT),
        row.c.timestamp.label(_WRITTEN_AT),
    ]
    layouts = history.layouts_of(model)
    unknown = _unknown_columns(model, row, layouts, asked)
    columns = _all_columns(model, row, layouts, asked.moment)
    return sa.select(*columns, *own, *unknown).where(*conditions).subquery("past")


def _unknown_columns(
    model: ModelSql, row: FromClause, layouts: Layouts, asked: _PastQuery
) -> Iterator[sa.ColumnElement[Any]]:
    """Whether versions do not tell the fields that are asked for, where that may be."""
    scope_leaves = [
        item for name, rule, _ in rules_on(model, asked.scope) for _, item in named_leaves(rule, name)
    ]
    fields = [*asked_fields(asked.query), *(item.field for item in scope_leaves if not item.path)]
    for field in dict.fromkeys(fields):
        if field.secret or field.name == "id" or layouts.is_plain(field, asked.moment):
            continue
        place = row.c.snapshot, row.c.schema_version, model.dialect
        condition = is_unknown(layouts, field, *place, moment=asked.moment, written_at=row.c.timestamp)
        yield condition.label(_UNKNOWN + field.name)


def _all_columns(
    model: ModelSql, row: FromClause, layouts: Layouts, moment: datetime | None = None
) -> list[sa.ColumnElement[Any]]:
    """The columns of the model's table, out of the snapshot in `row`."""
    return [column for f in model.meta.fields for column in _columns(f, row, model, layouts, moment)]


def _columns(
    field: FieldMeta, row: FromClause, model: ModelSql, layouts: Layouts, moment: datetime | None
) -> Sequence[sa.ColumnElement[Any]]:
    """The column of a field, and its order key where the table has one."""
    dialect = model.dialect
    if field.name == "id":
        return (row.c.record_id.label(field.column),)
    if field.secret:
        value: Any = sa.type_coerce(sa.null(), column_type(field.kind, dialect))
    else:
        number = row.c.get("schema_version")
        written_at = row.c.get("timestamp")
        value = value_then(
            layouts, field, row.c.snapshot, number, dialect, moment=moment, written_at=written_at
        )
    if not has_order_key(field, dialect):
        return (value.label(field.column),)
    return value.label(field.column), sa.func.decimal_order(value).label(order_column(field.column))
