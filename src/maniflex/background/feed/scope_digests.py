"""Digests of hidden fields that stand beside an event, for conditions of equality to be asked about.

`Emit(scope=("team_id",))` keeps no value of the field anywhere: only an HMAC of model, field and value, under
a key that was made with the feed and never leaves it. Whoever is bound to a team is shown the events of its
records, also of those that are deleted by now, and nobody learns which team that is.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.query.operators import Op
from maniflex.query.query import Compare, Forced, Narrowed, leaves

SIZE = 16  # bytes of a digest


class ScopeDigests:
    """Makes and compares digests, once the key of the feed is known."""

    def __init__(self) -> None:
        self.key: bytes | None = None

    def digest(self, meta: ModelMeta, field: FieldMeta, value: Any) -> str | None:
        """The digest of a value of a field; None without a key."""
        if self.key is None:
            return None
        text = "\0".join((meta.name, field.name, _canonical(field, value)))
        return b64encode(hmac.digest(self.key, text.encode(), "sha256")[:SIZE]).decode()

    def of_fields(self, meta: ModelMeta, values: Iterable[tuple[FieldMeta, Any]]) -> dict[str, str]:
        """The digests of these values by the names of their fields."""
        digests = ((field.name, self.digest(meta, field, value)) for field, value in values)
        return {name: digest for name, digest in digests if digest is not None}

    def tells(
        self, rule: Forced | Narrowed, meta: ModelMeta, digests: Mapping[str, str] | None
    ) -> bool | None:
        """Whether a condition held for the record of an event; None where its digests do not tell."""
        condition = rule.on(meta)
        if condition is None or not digests:
            return None
        verdicts = [self._tells(item, meta, digests) for item in leaves((condition,))]
        if True in verdicts:
            return True
        return None if None in verdicts else False

    def _tells(self, item: Compare, meta: ModelMeta, digests: Mapping[str, str]) -> bool | None:
        digest = None if item.path else digests.get(item.field.name)
        if digest is None or item.op not in (Op.EQ, Op.IN):
            return None
        wanted = item.value if item.op is Op.IN else [item.value]
        return any(
            one is not None and hmac.compare_digest(digest, self.digest(meta, item.field, one) or "")
            for one in wanted
        )


def _canonical(field: FieldMeta, value: Any) -> str:
    """One text for all values that compare as equal, however a database or a condition spells them."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "null"
    if field.kind is Kind.BOOL:
        return f"bool:{bool(value)}"
    if isinstance(value, int | float | Decimal):
        return f"number:{Decimal(str(value)).normalize():f}"
    if isinstance(value, datetime):
        return f"time:{value.astimezone(UTC).isoformat()}"
    return f"{type(value).__name__}:{value}"
