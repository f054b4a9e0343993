"""What of a row may leave for history, audit, events, logs and caches: everything but its secrets.

The only home of that rule (hidden, writeonly and encrypted fields never leave). Values keep the types that
the database step gives; stored JSON is kept as its text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from maniflex.db.port import Row
from maniflex.db.write_seam import Change, ChangeKind
from maniflex.model.meta import FieldMeta, Kind, ModelMeta


class Redaction:
    """The rule for the rows of one model, which come in the order of `meta.fields`."""

    def __init__(self, meta: ModelMeta) -> None:
        self.kept: tuple[tuple[int, FieldMeta], ...] = tuple(
            (i, f) for i, f in enumerate(meta.fields) if not f.secret
        )
        self.dropped = tuple(i for i, f in enumerate(meta.fields) if f.secret)
        self._names = [(i, f.api, f.kind is Kind.JSON) for i, f in self.kept]

    def __call__(self, row: Row) -> dict[str, Any]:
        """The values that may leave, by API name."""
        return {name: as_json(row[i]) if is_json else row[i] for i, name, is_json in self._names}


def redact_row(meta: ModelMeta, row: Row) -> dict[str, Any]:
    """The values of a row that may leave, by API name."""
    return Redaction(meta)(row)


def as_json(text: str | bytes | None) -> Any:
    """Stored JSON, to be written as it is."""
    return None if text is None else msgspec.Raw(text if isinstance(text, bytes) else text.encode())


# What a change did to a row, field by field, without its secrets: for history and audit.
#
# `id`, `created_at`, `updated_at` and the mark of deletion are in no difference. Values are compared, not
# their spellings: the order of keys and `1` or `1.0` make none.


Difference = dict[str, tuple[Any, Any]]  # by API name: the value before and the one after
_decode = msgspec.json.Decoder().decode


class Differences:
    """The differences that changes make to the rows of one model."""

    def __init__(self, meta: ModelMeta, without: Collection[str] = ()) -> None:
        marker = meta.soft_delete
        untold = {"id", "created_at", "updated_at", marker.field if marker else "id", *without}
        kept = [(i, f) for i, f in Redaction(meta).kept if f.name not in untold]
        self.fields = [f for _, f in kept]
        self.places = [(i, f.api, f.kind is Kind.JSON) for i, f in kept]

    def of(self, change: Change) -> Difference:
        """All fields that have a value for a row that came or went; those that differ for an update."""
        before, after = change.before, change.after
        if change.operation is ChangeKind.UPDATE and before is not None and after is not None:
            return self.between(before, after)
        if change.operation is ChangeKind.DELETE:
            return {} if before is None else {name: (value, None) for name, value in self.values(before)}
        return {} if after is None else {name: (None, value) for name, value in self.values(after)}

    def values(self, row: Row) -> list[tuple[str, Any]]:
        """The fields that have a value."""
        return [
            (name, as_json(row[i]) if is_json else row[i])
            for i, name, is_json in self.places
            if row[i] is not None
        ]

    def between(self, before: Row, after: Row) -> Difference:
        """The fields that differ."""
        difference: Difference = {}
        for i, name, is_json in self.places:
            old, new = before[i], after[i]
            if old == new or (old != old and new != new):
                continue
            if not is_json:
                difference[name] = (old, new)
            elif old is None or new is None or not same_json(_decode(old), _decode(new)):
                difference[name] = (as_json(old), as_json(new))
        return difference


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, however they are spelt: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
