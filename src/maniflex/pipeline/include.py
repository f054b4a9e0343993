"""Related records as they go into an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex.db.includes import IncludedRow, Related
from maniflex.model.base import Model
from maniflex.pipeline.serializer import Serializer
from maniflex.pipeline.transforms import Transform

Changing = list[tuple[type[Model], list[dict[str, Any]]]]


def serialize_related(
    serializers: Mapping[type[Model], Serializer],
    transforms: Mapping[type[Model], Sequence[Transform]],
    related: Related,
    changing: Changing,
) -> dict[str, Any]:
    """By relation name, each record in the shape its own model's answers have.

    Records of models with transforms are appended to `changing`, to be changed before they are written.
    """
    return {
        name: _serialize_entries(serializers, transforms, entry, changing)
        if isinstance(entry, list)
        else _serialize_entries(serializers, transforms, [entry], changing)[0]
        for name, entry in related.items()
    }


def _serialize_entries(
    serializers: Mapping[type[Model], Serializer],
    transforms: Mapping[type[Model], Sequence[Transform]],
    entries: Sequence[IncludedRow],
    changing: Changing,
) -> list[Any]:
    """Records of one model."""
    if not entries:
        return []
    model = entries[0].store.meta.cls
    serializer = serializers[model]
    if model in transforms:
        records = [serializer.fields(entry.row) for entry in entries]
        changing.append((model, records))
        for record, entry in zip(records, entries, strict=True):
            record.update(serialize_related(serializers, transforms, entry.related, changing))
        return records
    struct_of = serializer.struct_of
    return [
        {
            **serializer.fields(entry.row),
            **serialize_related(serializers, transforms, entry.related, changing),
        }
        if entry.related
        else struct_of(entry.row)
        for entry in entries
    ]
