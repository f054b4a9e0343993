"""Related records as they go into an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.db.related import Entry, Related
from maniflex.pipeline.runtime import Runtime


def shown(runtime: Runtime, related: Related) -> dict[str, Any]:
    """By relation name, each record in the shape its own model's answers have."""
    return {
        name: _all_shown(runtime, entry) if isinstance(entry, list) else _all_shown(runtime, [entry])[0]
        for name, entry in related.items()
    }


def _all_shown(runtime: Runtime, entries: Sequence[Entry]) -> list[Any]:
    """Records of one model."""
    if not entries:
        return []
    wire = runtime.wires[entries[0].store.meta.cls]
    shaped = wire.shaped
    return [
        {**wire.fields(entry.row), **shown(runtime, entry.related)} if entry.related else shaped(entry.row)
        for entry in entries
    ]
