"""The seam for tracing: what spans are made around. `maniflex.ext.otel` stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from maniflex.db.statements import StatementObserver
from maniflex.pipeline.exchange import App


class Tracing(Protocol):
    """Makes spans; an application without it pays nothing for any of them."""

    def layer(self, app: App) -> App:
        """The application with a span around each request."""

    def step(self, label: str) -> AbstractContextManager[Any]:
        """A span around a step or a middleware."""

    def statements(self, database: str, system: str) -> StatementObserver:
        """An observer that makes a span of each statement."""

    def run(self, run: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """A span around one attempt of a run; it is told what came of it."""

    def message(self, message: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """A span around one delivery of a message; likewise."""
