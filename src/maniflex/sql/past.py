"""The records of a versioned model as they were at a moment: a table made of the snapshots of its history.

Filters, sorts and scopes work on it as on the table itself. A record was there at that moment if its last
version until then is no deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind
from maniflex.query.query import Compare, Filter, Query, leaves
from maniflex.sql.codec import encode_datetime
from maniflex.sql.decimal_order import has_order_key, order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.select import sort_key
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_cache import Compiled, compile_statement
from maniflex.sql.tables import column_type
from maniflex.sql.where import Scope, scope_conditions, shape, values, where

_MOMENT = "$moment"
_RECORD = "$record"
_VERSION, _SNAPSHOT = "history$version", "history$snapshot"  # no column of a model is called like these
_DELETED = HistoryOperation.DELETE.value


def page(
    model: ModelSql,
    history: ModelSql,
    query: Query,
    scope: Scope,
    moment: datetime,
    record_id: str | None = None,
) -> Sql:
    """Version, snapshot and total of the records of one page, as they were; with an id, of that record.

    `scope` must hold of the record as it was, as far as its snapshot tells, and of the record as it is.
    """
    sorts = tuple((s.field.name, s.descending) for s in query.sorts)
    key = ("past", shape(query.filters, scope), sorts, record_id is not None)
    statement = model.shapes.get(key, _page, model, history, query, scope, record_id is not None)
    size = query.limit or 1
    arguments = values(model, query.filters, scope, statement.order)
    at = by_dialect(model.dialect, sqlite=encode_datetime(moment), postgres=moment)
    arguments |= {_MOMENT: at, _RECORD: record_id, "limit": size, "offset": (query.page - 1) * size}
    return statement.bind(arguments)


def _page(model: ModelSql, history: ModelSql, query: Query, scope: Scope, one: bool) -> Compiled:
    past = _past(model, history, one=one)
    marker = model.meta.soft_delete
    tells_deleted = marker is None or not model.meta.by_name[marker.field].secret
    conditions = [
        *where(model, past, query.filters, (), live=tells_deleted),
        *scope_conditions(model, past, scope, only=partial(_is_kept, model.meta)),
    ]
    if scope:
        now = model.table.alias()
        inside = [now.c[model.id.name] == past.c[model.id.name], *scope_conditions(model, now, scope)]
        conditions.append(sa.exists(sa.select(sa.literal_column("1")).where(*inside)))
    statement = sa.select(past.c[_VERSION], past.c[_SNAPSHOT], sa.func.count().over()).where(*conditions)
    order = [sort_key(model, sort, (), past) for sort in query.sorts]
    if not any(sort.field.name == "id" for sort in query.sorts):
        record_id = past.c[model.id.name]
        order.append(record_id.desc() if query.sorts and query.sorts[-1].descending else record_id.asc())
    statement = statement.order_by(*order).limit(sa.bindparam("limit", type_=sa.Integer()))
    statement = statement.offset(sa.bindparam("offset", type_=sa.Integer()))
    return compile_statement(statement, model.dialect)


def _is_kept(meta: ModelMeta, condition: Filter) -> bool:
    """Whether a snapshot has what the condition asks for, or the key by which it asks other records."""
    return all(_is_told(meta, item) for item in leaves((condition,)))


def _is_told(meta: ModelMeta, item: Compare) -> bool:
    if not item.path:
        return not item.field.secret
    first = item.path[0]
    return first.kind is RelationKind.BELONGS_TO and not meta.by_name[first.key or ""].secret


def _past(model: ModelSql, history: ModelSql, *, one: bool) -> FromClause:
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
        replaced: Any = sa.select(sa.literal_column("1")).where(*following, later.c.timestamp <= moment)
        conditions += [row.c.timestamp <= moment, sa.not_(sa.exists(replaced))]
    columns = [column for f in model.meta.fields for column in _columns(f, row, model)]
    columns += [row.c.version.label(_VERSION), row.c.snapshot.label(_SNAPSHOT)]
    return sa.select(*columns).where(*conditions).subquery("past")


def _columns(field: FieldMeta, row: FromClause, model: ModelSql) -> Sequence[sa.ColumnElement[Any]]:
    """The column of a field, and its order key where the table has one."""
    dialect = model.dialect
    kind = column_type(field.kind, dialect)
    if field.name == "id":
        return (row.c.record_id.label(field.column),)
    if field.secret:
        value: Any = sa.type_coerce(sa.null(), kind)
    else:
        write = by_dialect(dialect, sqlite=_sqlite_value, postgres=_postgres_value)
        value = sa.type_coerce(write(field, row.c.snapshot), kind)
    if not has_order_key(field, dialect):
        return (value.label(field.column),)
    return value.label(field.column), sa.func.decimal_order(value).label(order_column(field.column))


def _sqlite_value(field: FieldMeta, snapshot: Any) -> Any:
    value: Any = sa.func.json_extract(snapshot, sa.literal_column(f"""'$."{field.api}"'"""))
    if field.kind in (Kind.DATETIME, Kind.TIME):  # stored with all digits, shown without those that are 0
        whole, end = ("19", "'.000000Z'") if field.kind is Kind.DATETIME else ("8", "'.000000'")
        bare = sa.func.substr(value, sa.literal_column("1"), sa.literal_column(whole))
        has_fraction = sa.func.instr(value, sa.literal_column("'.'")) > sa.literal_column("0")
        return sa.case((has_fraction, value), else_=bare.op("||")(sa.literal_column(end)))
    if field.kind is Kind.JSON:
        return sa.func.nullif(sa.func.json_quote(value), sa.literal_column("'null'"))
    return value


def _postgres_value(field: FieldMeta, snapshot: Any) -> Any:
    name: Any = sa.literal_column(f"'{field.api}'")
    value: Any = sa.type_coerce(snapshot.op("->>")(name), sa.Text())
    if field.kind is Kind.TEXT:
        return value.collate("C")
    if field.kind is Kind.BYTES:
        return sa.func.decode(value, sa.literal_column("'base64'"))
    return sa.cast(value, column_type(field.kind, Dialect.POSTGRES))
