"""What of a row may leave for history, audit, events, logs and caches: everything but its secrets.

The only home of that rule (hidden, writeonly and encrypted fields never leave). Values keep the types that
the database step gives; stored JSON is kept as its text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from maniflex.db.port import Row
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


def redacted(meta: ModelMeta, row: Row) -> dict[str, Any]:
    """The values of a row that may leave, by API name."""
    return Redaction(meta)(row)


def as_json(text: str | bytes | None) -> Any:
    """Stored JSON, to be written as it is."""
    return None if text is None else msgspec.Raw(text if isinstance(text, bytes) else text.encode())
