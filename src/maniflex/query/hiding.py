"""Which fields a caller may not see, as the readers of queries ask: field by field, when a client names one.

Most callers have nothing hidden from them, and most models have no such fields; then it is `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from maniflex.model.meta import FieldMeta


class Hiding(Protocol):
    """What is hidden from one caller."""

    def hides(self, field: FieldMeta) -> bool:
        """Whether the caller may not see the values of the field."""

    def closes(self, field: FieldMeta) -> bool:
        """Whether the caller may not even compare them or sort by them."""


class _Nothing:
    def hides(self, field: FieldMeta) -> bool:
        return False

    def closes(self, field: FieldMeta) -> bool:
        return False


NOTHING: Hiding = _Nothing()


class AskedFields:
    """Hides nothing, and notes which of some fields a query is about."""

    def __init__(self, fields: Collection[FieldMeta]) -> None:
        self._fields = fields
        self.asked: dict[FieldMeta, None] = {}

    def hides(self, field: FieldMeta) -> bool:
        if field in self._fields:
            self.asked[field] = None
        return False

    closes = hides


class Undetermined(Exception):
    """Whether a field is hidden has to be worked out first."""

    def __init__(self, field: FieldMeta) -> None:
        super().__init__(field.name)
        self.field = field
