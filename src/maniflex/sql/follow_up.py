"""An insert and the write that follows from its row, in one statement. Of PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from maniflex.model.meta import Kind
from maniflex.sql.codec import value_to_expect
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql
from maniflex.sql.statement_cache import Compiled
from maniflex.sql.tables import quote

_PLACE = re.compile(r"\$(\d+)")
# Equal values of these kinds may be written differently, and JSON cannot be compared otherwise.
_COMPARED_AS_TEXT = (Kind.JSON, Kind.DECIMAL)


def row_to_expect(model: ModelSql, insert: Sql) -> Sequence[Any] | None:
    """The row, in Python's types, that the insert will give back; None when that is not certain."""
    sent = dict(zip(_insertion(model, insert).order, insert.params, strict=True))
    row = []
    for field in model.meta.fields:
        value = sent[field.name]
        if value is not None:
            is_certain, value = value_to_expect(field.kind, value)
            if not is_certain:
                return None
        row.append(value)
    return row


def insert_with(model: ModelSql, insert: Sql, follow_up: Sql) -> Sql:
    """Both in one statement that gives back the new row, stored as it was sent.

    It fails, with a division by zero, unless each of them changes one row.
    """
    key = ("insert_with", insert.text, follow_up.text)
    statement = model.shapes.get(key, _insert_with, model, insert, follow_up.text)
    return Sql(statement.text, (*insert.params, *follow_up.params))


def _insertion(model: ModelSql, insert: Sql) -> Compiled:
    return model.shapes.get(("insertion", insert.text), model.shapes.find, insert.text)


def _insert_with(model: ModelSql, insert: Sql, follow_up: str) -> Compiled:
    order = _insertion(model, insert).order
    shifted = _PLACE.sub(lambda place: f"${int(place[1]) + len(insert.params)}", follow_up)
    fields = model.meta.fields
    same = [_is_as_sent(model, f.column, f.kind, order.index(f.name)) for f in fields]
    text = _TEXT.format(insert=insert.text, follow_up=shifted, same=" AND ".join(same))
    return Compiled(text, order)


def _is_as_sent(model: ModelSql, column: str, kind: Kind, place: int) -> str:
    cast = "::text" if kind in _COMPARED_AS_TEXT else ""
    return f"written.{quote(column, model.dialect)}{cast} IS NOT DISTINCT FROM ${place + 1}{cast}"


_TEXT = """
WITH written AS ({insert}), followed AS ({follow_up})
SELECT written.* FROM (SELECT count(*) AS changes FROM followed) AS counted LEFT JOIN written ON true
 WHERE 1 / CASE WHEN counted.changes = 1 AND {same} THEN 1 ELSE 0 END = 1"""
