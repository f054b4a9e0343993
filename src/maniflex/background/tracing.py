"""The seam for spans around durable work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

NoteOutcome = Callable[[Any], None]


class WorkTracing(Protocol):
    """Makes spans of attempts and deliveries; what they came to is told before the block ends."""

    def run(self, run: Any) -> AbstractContextManager[NoteOutcome]:
        """A span around one attempt of a run."""

    def message(self, message: Any) -> AbstractContextManager[NoteOutcome]:
        """A span around one delivery of a message."""
