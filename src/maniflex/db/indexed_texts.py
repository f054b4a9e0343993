"""How long a text in an index may be, which no database says in the same way: PostgreSQL refuses a long
one by how well it can be compressed, SQLite never does. Here it is one limit, and the field is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maniflex.errors import ValidationFailed
from maniflex.model.messages import detail
from maniflex.model.meta import ModelMeta
from maniflex.sql.tables import longest_indexed


class IndexedTexts:
    """The limits of one model's texts, known before the first write."""

    def __init__(self, meta: ModelMeta) -> None:
        limits = {} if meta.options.query is not None else longest_indexed(meta)
        # A character has four bytes at the most, so short texts need not be looked at.
        self._limits = tuple((name, most // 4, most) for name, most in limits.items())
        self.can_change = any(name != "id" for name in limits)
        self._meta = meta

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse values that are too long for the indexes they stand in."""
        for name, surely_fits, most in self._limits:
            value = values.get(name)
            if value is not None and len(value) > surely_fits and _size(value) > most:
                raise self._refusal(values)

    def _refusal(self, values: Mapping[str, Any]) -> ValidationFailed:
        too_long = [
            (self._meta.by_name[name], most)
            for name, _, most in self._limits
            if values.get(name) is not None and _size(values[name]) > most
        ]
        details = [
            detail(field.api, "index_length", f"must have at most {most} bytes, because it is indexed")
            for field, most in too_long
            if not field.hidden
        ]
        return ValidationFailed(details=details or None)


def _size(value: str | bytes) -> int:
    return len(value if isinstance(value, bytes) else value.encode())
