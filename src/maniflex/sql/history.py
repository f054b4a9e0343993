"""Statements on the histories of versioned models: the one that adds rows, and the past as a table.

A version is numbered in the statement that adds it, under the lock of the record's row; `timestamp` never
goes back within a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from maniflex.sql.codec import encode_datetime, encode_json
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.statement_cache import Compiled
from maniflex.sql.tables import quote

_WRITTEN = (
    "id record_id version operation actor_id tenant_id timestamp request_id source reason diff snapshot"
)


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
    statement = model.shapes.get(("append", known), _append, model, known)
    rows = by_dialect(model.dialect, sqlite=_rows_as_json, postgres=_rows_as_lists)(entries)
    return Sql(statement.text, (*author, *rows))


def _rows_as_json(entries: Sequence[HistoryEntry]) -> tuple[Any, ...]:
    return (encode_json([(*e[:4], encode_datetime(e.timestamp), *e[5:]) for e in entries]),)


def _rows_as_lists(entries: Sequence[HistoryEntry]) -> tuple[Any, ...]:
    return tuple(map(list, zip(*entries, strict=True)))


def _append(model: ModelSql, known: bool) -> Compiled:
    table = quote(model.table.name, model.dialect)
    text = by_dialect(model.dialect, sqlite=_SQLITE_APPEND, postgres=_POSTGRES_APPEND)
    condition = "WHERE r.last IS NOT NULL" if known else "WHERE true"
    columns = ", ".join(quote(name, model.dialect) for name in _WRITTEN.split())
    return Compiled(text.format(table=table, columns=columns, condition=condition), ())


_SQLITE_APPEND = """
INSERT INTO {table} ({columns})
SELECT r.id, r.record_id, coalesce(r.last, 0) + r.step, r.operation, ?1, ?2,
       max(r.moment, coalesce(r.last_moment, r.moment)), ?3, r.source, ?4, r.diff, r.snapshot
  FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS record_id,
               json_extract(value, '$[2]') AS step, json_extract(value, '$[3]') AS operation,
               json_extract(value, '$[4]') AS moment, json_extract(value, '$[5]') AS source,
               json_extract(value, '$[6]') AS diff, json_extract(value, '$[7]') AS snapshot,
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
       greatest(r.moment, r.last_moment), $3, r.source, $4, r.diff::json, r.snapshot::json
  FROM (SELECT entry.*, h.version AS last, h.timestamp AS last_moment
          FROM unnest($5::text[], $6::text[], $7::bigint[], $8::text[], $9::timestamptz[], $10::text[],
                      $11::text[], $12::text[])
               AS entry(id, record_id, step, operation, moment, source, diff, snapshot)
          LEFT JOIN LATERAL (SELECT version, timestamp FROM {table} AS own
                              WHERE own.record_id = entry.record_id ORDER BY own.version DESC LIMIT 1) AS h
            ON true) AS r
 {condition}
RETURNING record_id"""
