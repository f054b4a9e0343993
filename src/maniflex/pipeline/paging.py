"""The rows and the `meta` block of a keyset page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.port import Row
from maniflex.model.meta import FieldMeta
from maniflex.query import cursor
from maniflex.query.query import Query


def trim_page(rows: Sequence[Row], query: Query) -> tuple[Sequence[Row], bool]:
    """The page without the row that was read only to know whether there are more."""
    limit = query.limit or 0
    more = len(rows) > limit
    rows = rows[:limit]
    backwards = query.cursor is not None and query.cursor.backwards
    return (list(reversed(rows)) if backwards else rows), more


def cursor_meta(
    query: Query, ends: tuple[Row, Row] | None, fields: Sequence[FieldMeta], more: bool
) -> dict[str, Any]:
    """Where the walk goes on from the first and last row of a page, as far as there is anything."""
    at = query.cursor
    assert at is not None
    places = {f.name: i for i, f in enumerate(fields)}

    def token(row: Row, *, backwards: bool) -> str:
        return cursor.write(query, row[places[at.field.name]], row[places["id"]], backwards=backwards)

    meta: dict[str, Any] = {"limit": query.limit}
    if ends is None:  # no row that a token could go on from: everything there was is gone
        return {**meta, "has_more": False}
    onwards = more if not at.backwards else at.after is not None
    if onwards:
        meta["next_cursor"] = token(ends[1], backwards=False)
    meta["has_more"] = onwards
    before = more if at.backwards else at.after is not None
    if before:
        meta["prev_cursor"] = token(ends[0], backwards=True)
    return meta
