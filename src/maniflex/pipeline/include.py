"""Related records as they go into an answer."""

from __future__ import annotations

from typing import Any

from maniflex.db.related import Entry, Related
from maniflex.pipeline.runtime import Runtime


def shown(runtime: Runtime, related: Related) -> dict[str, Any]:
    """By relation name, each record in the shape its own model's answers have."""
    return {
        name: [_shown(runtime, e) for e in entry] if isinstance(entry, list) else _shown(runtime, entry)
        for name, entry in related.items()
    }


def _shown(runtime: Runtime, entry: Entry) -> Any:
    wire = runtime.wires[entry.store.meta.cls]
    if not entry.related:
        return wire.shaped(entry.row)
    return {**wire.fields(entry.row), **shown(runtime, entry.related)}
