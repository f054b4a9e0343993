"""Statements on the histories of versioned models: the one that adds rows, and the past as a table.

A version is numbered in the statement that adds it, under the lock of the record's row; `timestamp` never
goes back within a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from maniflex._json import encode_json
from maniflex.sql.bindings import binding_from_values
from maniflex.sql.codec import encode_datetime
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_cache import Compiled
from maniflex.sql.statement_files import NamedStatement, statement_of
from maniflex.sql.tables import quote
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
