"""The delete of versions that are older than a history keeps them.

A batch is a stretch of ids, which rise with time, so that no pass looks at all of a table at once. The newest
version from before the horizon stays as long as it tells of a time after the horizon: its record is still
there, or has versions since.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

from maniflex.sql.codec import encode_datetime
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_files import NamedStatement, statement_of
from maniflex.sql.tables import quote

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
