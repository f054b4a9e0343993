"""Related records as they go into an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.includes import IncludedRow, Related
from maniflex.pipeline.runtime import Runtime


def serialize_related(runtime: Runtime, related: Related) -> dict[str, Any]:
    """By relation name, each record in the shape its own model's answers have."""
    return {
        name: _serialize_entries(runtime, entry)
        if isinstance(entry, list)
        else _serialize_entries(runtime, [entry])[0]
        for name, entry in related.items()
    }


def _serialize_entries(runtime: Runtime, entries: Sequence[IncludedRow]) -> list[Any]:
    """Records of one model."""
    if not entries:
        return []
    serializer = runtime.serializers[entries[0].store.meta.cls]
    struct_of = serializer.struct_of
    return [
        {**serializer.fields(entry.row), **serialize_related(runtime, entry.related)}
        if entry.related
        else struct_of(entry.row)
        for entry in entries
    ]
