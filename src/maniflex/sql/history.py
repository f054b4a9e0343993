"""Statements on the histories of versioned models: the one that adds rows, and the past as a table.

A version is numbered in the statement that adds it, under the lock of the record's row; `timestamp` never
goes back within a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from maniflex._caller import Caller
from maniflex._json import encode_json
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.bindings import binding_from_columns, binding_from_values
from maniflex.sql.codec import encode_datetime
from maniflex.sql.model import ID, ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_cache import Compiled, compile_statement
from maniflex.sql.statement_files import NamedStatement, statement_of
from maniflex.sql.tables import quote
from maniflex.sql.where import Scope, scope_conditions, shape, values
from maniflex.sql.write import assignments, encode_values, writable

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


class Author(NamedTuple):
    """Who made the changes, and why."""

    actor_id: str | None
    tenant_id: str | None
    request_id: str | None
    reason: str | None


def append(model: ModelSql, entries: Sequence[HistoryEntry], author: Author, *, known: bool) -> Sql:
    """Add versions of different records in one statement; gives back whose were added.

    With `known`, only those of records that have a history already.
    """
    if len(entries) == 1:
        return append_one(model, entries[0], author, known=known)
    statement = model.shapes.get(("append", known), _append, model, known)
    rows = by_dialect(model.dialect, sqlite=_rows_as_json, postgres=_rows_as_lists)(entries)
    return Sql(statement.text, (*author, *rows))


def append_one(model: ModelSql, entry: HistoryEntry, author: Author, *, known: bool) -> Sql:
    """Add one version."""
    statement = model.shapes.get(("append_one", known), _append_one, model, known)
    moment = by_dialect(model.dialect, sqlite=encode_datetime, postgres=_as_it_is)(entry.timestamp)
    return Sql(statement.text, (*author, *entry[:4], moment, *entry[5:]))


def append_with(model: ModelSql, main: Sql, entry: HistoryEntry, author: Author) -> Sql:
    """A write that gives rows back and, if there are any, the version that it makes, in one statement.

    Of PostgreSQL. The caller knows that nobody else can add a version of that record at the same time.
    """
    statement = model.shapes.get(("append_with", main.text), _append_with, model, main)
    return Sql(statement.text, (*main.params, *author, *entry))


def current(model: ModelSql, history: ModelSql, record_id: str, scope: Scope) -> Sql:
    """The live row of that id inside the scope, its version by the database, and whether it has a history."""
    statement = model.shapes.get(("current", shape((), scope)), _current, model, history, scope)
    return statement.bind({**values(model, (), scope, statement.order), "id": record_id})


def _current(model: ModelSql, history: ModelSql, scope: Scope) -> Compiled:
    known = sa.exists().where(history.table.c.record_id == sa.bindparam("id"))
    columns = [*model.columns, model.version, known]
    conditions = [model.id == sa.bindparam("id"), *model.live(), *scope_conditions(model, model.table, scope)]
    return compile_statement(sa.select(*columns).where(*conditions), model.dialect)


def _as_it_is(value: datetime) -> Any:
    return value


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
    return Compiled(text.format(join=join, binding=binding, **_names(model)), ())


def _append_with(model: ModelSql, main: Sql) -> Compiled:
    first = len(main.params)
    places = {f"p{n}": f"${first + n}" for n in range(1, 13)}
    binding = binding_from_values(model, f"${first + 13}")
    return Compiled(_POSTGRES_WITH.format(main=main.text, binding=binding, **places, **_names(model)), ())


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
  FROM (SELECT 1) AS one {join} (SELECT version, timestamp FROM {table} WHERE record_id = $6
                                  ORDER BY version DESC LIMIT 1) AS last ON true
RETURNING record_id"""
_POSTGRES_WITH = """
WITH written AS ({main}), told AS (
INSERT INTO {table} ({columns})
SELECT {p5}::text, {p6}::text, coalesce(last.version, 0) + {p7}::bigint, {p8}::text, {p1}::text, {p2}::text,
       greatest({p9}::timestamptz, last.timestamp), {p3}::text, {p10}::text, {p4}::text, {p11}::json,
       {p12}::json, {binding}, {layout}
  FROM written LEFT JOIN (SELECT version, timestamp FROM {table} WHERE record_id = {p6}
                           ORDER BY version DESC LIMIT 1) AS last ON true)
SELECT * FROM written"""
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


# A delete and the version it makes, without the row leaving the database.
#
# Nothing happens, and nothing is given back, where the record has no history yet or the database would
# write one of its values otherwise than Python: the caller then deletes it as it deletes every other row.


_ENTRY = "$entry"
_MOMENT = "$moment"
_SOURCE = "$source"


class ToldFields(NamedTuple):
    """The fields that the diff of a delete has, and those of its snapshot, if there is one."""

    diff: Sequence[FieldMeta]
    snapshot: Sequence[FieldMeta] | None


def delete_with_version(
    model: ModelSql,
    history: ModelSql,
    fields: ToldFields,
    record_id: str,
    stamps: Mapping[str, Any],
    scope: Scope,
    version: tuple[str, datetime, Caller],
) -> Sequence[Sql]:
    """What deletes a row, or marks it with `stamps`, and adds its version; the last gives back its id.

    The version has an id of its own, a moment and a caller.
    """
    entry_id, moment, who = version
    names = tuple(stamps)
    stored_moment = by_dialect(model.dialect, sqlite=encode_datetime, postgres=_as_it_is)(moment)
    arguments = {
        _ENTRY: entry_id,
        _MOMENT: stored_moment,
        _SOURCE: who.source.value,
        "$actor_id": who.actor_id,
        "$tenant_id": who.tenant_id,
        "$request_id": who.request_id,
        "$reason": who.reason,
        ID: record_id,
        **model.lock_values,
    }
    if names:
        arguments.update(encode_values(model, stamps))
    key = (names, shape((), scope)) if scope else (names,)
    statements = []
    for make in by_dialect(model.dialect, sqlite=(_add_version, _delete_told), postgres=(_delete_and_tell,)):
        statement = model.shapes.get((make, *key), make, model, history, fields, names, scope)
        if scope:
            arguments.update(values(model, (), scope, statement.order))
        statements.append(statement.bind(arguments))
    return statements


def _add_version(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """Of SQLite, where nothing can come between two statements of a transaction."""
    row = _version_of(model, history, fields, model.table).where(*writable(model, scope))
    return compile_statement(sa.insert(history.table).from_select(WRITTEN, row), model.dialect)


def _delete_told(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """The statement before has looked at the row and its scope."""
    is_told: Any = sa.literal_column("changes() > 0")  # of the statement before
    statement = _deletion(model, names).where(model.id == sa.bindparam(ID), is_told)
    return compile_statement(statement.returning(model.id), model.dialect)


def _delete_and_tell(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """Of PostgreSQL: two that change the row at once make the same version, and one of them fails."""
    has_history = sa.exists().where(history.table.c.record_id == sa.bindparam(ID))
    exact = exact_conditions([*fields.diff, *(fields.snapshot or ())], model.dialect, model.table.name)
    conditions = [*writable(model, scope), has_history, *map(sa.literal_column, exact)]
    if names:  # what an update gives back is the row afterwards
        before = sa.select(*model.columns).where(*conditions).with_for_update().subquery("before")
        is_same = model.id == before.c[model.id.name]
        written = _deletion(model, names).where(is_same).returning(*before.c).cte("written")
    else:
        written = _deletion(model, names).where(*conditions).returning(*model.columns).cte("written")
    row = _version_of(model, history, fields, written)
    told = sa.insert(history.table).from_select(WRITTEN, row).cte("told")
    return compile_statement(sa.select(written.c[model.id.name]).add_cte(told), model.dialect)


def _deletion(model: ModelSql, names: tuple[str, ...]) -> Any:
    if not names:
        return sa.delete(model.table)
    return sa.update(model.table).values(assignments(model, names))


def _version_of(model: ModelSql, history: ModelSql, fields: ToldFields, source: sa.FromClause) -> Any:
    """The version that the row in `source` makes, if it has one already."""
    columns, dialect, name = history.table.c, model.dialect, str(getattr(source, "name", ""))
    versions = sa.select(columns.version, columns.timestamp).where(columns.record_id == sa.bindparam(ID))
    one: Any = sa.literal_column("1")
    none: Any = sa.literal_column("0")
    last = versions.order_by(columns.version.desc()).limit(one).offset(none).subquery("last")
    moment = sa.bindparam(_MOMENT, type_=columns.timestamp.type)
    latest: Any = by_dialect(dialect, sqlite=sa.func.max, postgres=sa.func.greatest)
    snapshot = "NULL" if fields.snapshot is None else object_text(fields.snapshot, dialect, name)
    as_json = by_dialect(dialect, sqlite="{0}", postgres="({0})::json")
    version: dict[str, Any] = {
        "id": sa.bindparam(_ENTRY, type_=columns.id.type),
        "record_id": sa.bindparam(ID, type_=columns.record_id.type),
        "version": last.c.version + one,
        "operation": sa.literal_column("'delete'"),
        **{field: sa.bindparam(f"${field}", type_=columns[field].type) for field in Author._fields},
        "timestamp": latest(moment, last.c.timestamp),
        "source": sa.bindparam(_SOURCE, type_=columns.source.type),
        "diff": sa.literal_column(as_json.format(old_values_text(fields.diff, dialect, name))),
        "snapshot": sa.literal_column(as_json.format(snapshot)),
        "binding": sa.literal_column(binding_from_columns(history, model, name)),
        "schema_version": sa.literal_column(own_layout(history)),
    }
    columns_told = [version[field].label(f"told_{field}") for field in WRITTEN]
    return sa.select(*columns_told).select_from(source.join(last, sa.true()))


# Rows as JSON objects that the database writes itself, with the values in the form that answers have.
#
# For what is copied inside the database, where a row would only travel to the server to come back as
# text.


MOST_FIELDS = 90  # PostgreSQL takes a hundred arguments of a function

_UTC = "to_char({c} AT TIME ZONE 'UTC', '%s')"
_SECONDS = _UTC % 'YYYY-MM-DD"T"HH24:MI:SS'
_FRACTION = (
    "CASE WHEN extract(microseconds FROM {c})::bigint % 1000000 = 0 THEN '' ELSE to_char({c}, '.US') END"
)

# The JSON text of a value that is not null.
_FORMS: dict[Dialect, dict[Kind, str]] = {
    Dialect.SQLITE: {
        Kind.TEXT: "json_quote({c})",
        Kind.INT: "{c}",
        Kind.FLOAT: "float_json({c})",
        Kind.BOOL: "CASE WHEN {c} THEN 'true' ELSE 'false' END",
        Kind.DECIMAL: "decimal_json({c})",
        Kind.DATETIME: "json_quote(replace({c}, '.000000Z', 'Z'))",
        Kind.DATE: "json_quote({c})",
        Kind.TIME: "json_quote(replace({c}, '.000000', ''))",
        Kind.UUID: "json_quote({c})",
        Kind.BYTES: "bytes_json({c})",
        Kind.JSON: "{c}",
    },
    Dialect.POSTGRES: {
        Kind.TEXT: "to_json({c})::text",
        Kind.INT: "{c}::text",
        Kind.FLOAT: "CASE WHEN {c}::text ~ '^-?[0-9]+$' THEN {c}::text || '.0'"
        " WHEN {c}::text ~ '[fN]' THEN 'null' ELSE {c}::text END",
        Kind.BOOL: "{c}::text",
        Kind.DECIMAL: "'\"' || {c}::text || '\"'",
        Kind.DATETIME: f"'\"' || {_SECONDS} || {_FRACTION} || 'Z\"'",
        # What asyncpg makes of the first and the last day of Python, and back.
        Kind.DATE: "CASE {c} WHEN 'infinity' THEN '\"9999-12-31\"' WHEN '-infinity' THEN '\"0001-01-01\"'"
        " ELSE to_json({c})::text END",
        Kind.TIME: f"'\"' || to_char({{c}}, 'HH24:MI:SS') || {_FRACTION} || '\"'",
        Kind.UUID: "to_json({c})::text",
        Kind.BYTES: "to_json(replace(encode({c}, 'base64'), chr(10), ''))::text",
        Kind.JSON: "{c}::text",
    },
}
# Python writes decimals of more digits with an exponent.
_SHORT_DECIMAL = "({c} IS NULL OR scale({c}) <= 6)"
_ALL_DIGITS = "current_setting('extra_float_digits')::int > 0"  # of floats; whoever runs the database may say


def object_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of these fields of the rows of `source`."""
    members = []
    for field in fields:
        form = _form(field, dialect, source)
        can_be_null = by_dialect(dialect, sqlite=field.nullable, postgres=True)
        text = f"coalesce({form}, 'null')" if can_be_null else form
        members.append((f"{_literal(f'{_key(field)}:')} || {text}", False))
    return _object(members, dialect)


def old_values_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of old and new values of rows that are gone, by field, without fields that are null."""
    members = []
    for field in fields:
        before, after = _literal(f'{_key(field)}:{{"old":'), _literal(',"new":null}')
        members.append((f"{before} || {_form(field, dialect, source)} || {after}", field.nullable))
    return _object(members, dialect)


def exact_conditions(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> list[str]:
    """What has to hold of a row for its values to be written as Python writes them."""
    decimals = [field for field in fields if field.kind is Kind.DECIMAL]
    texts = [_SHORT_DECIMAL.format(c=_column(field, dialect, source)) for field in decimals]
    if any(field.kind is Kind.FLOAT for field in fields):
        texts.append(_ALL_DIGITS)
    return by_dialect(dialect, sqlite=[], postgres=texts)


def _form(field: FieldMeta, dialect: Dialect, source: str) -> str:
    column = _column(field, dialect, source)
    form = f"({_FORMS[dialect][field.kind].format(c=column)})"
    if not field.nullable:  # a null that is there all the same makes the whole text null
        return form
    # SQLite's functions make text of null.
    return by_dialect(dialect, sqlite=f"CASE WHEN {column} IS NOT NULL THEN {form} END", postgres=form)


def _object(members: Sequence[tuple[str, bool]], dialect: Dialect) -> str:
    """An object of these members; those that are said to be left out are so where they are null."""
    after_comma = (
        " || ".join(
            f"coalesce(',' || {member}, '')" if is_left_out else f"',' || {member}"
            for member, is_left_out in members
        )
        or "''"
    )
    all_members = ", ".join(member for member, _ in members)
    return by_dialect(
        dialect,
        sqlite=f"'{{' || substr({after_comma}, 2) || '}}'",
        postgres=f"'{{' || concat_ws(',', {all_members or 'NULL'}) || '}}'",
    )


def _column(field: FieldMeta, dialect: Dialect, source: str) -> str:
    return f"{quote(source, dialect)}.{quote(field.column, dialect)}"


def _key(field: FieldMeta) -> str:
    return msgspec.json.encode(field.api).decode()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
