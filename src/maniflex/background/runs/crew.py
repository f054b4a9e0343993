"""The workers of a process: one for all types, and one for those with a concurrency of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from maniflex.background.runs.worker import RunWorker

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work


def make_crew(work: Work, prefixes: Sequence[str], concurrency: int | None) -> list[RunWorker]:
    """Workers that take the types of these prefixes, each type by one of them."""
    general = RunWorker(work, prefixes=prefixes, concurrency=concurrency, leave=work.separate)
    ranges = work.handlers.ranges(prefixes or work.environment.config.worker_type_prefixes)
    separate: dict[int, list[str]] = defaultdict(list)
    for type, room in work.separate.items():
        if any(low <= type < high for low, high in ranges):
            separate[room].append(type)
    return [general, *(RunWorker(work, types=types, concurrency=room) for room, types in separate.items())]
