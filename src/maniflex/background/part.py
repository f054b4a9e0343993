"""What every part of durable work offers to the server: runs, outbox, schedules, scheduled fields, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from maniflex._service import Service
from maniflex.background.environment import Environment
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql


class Part(Protocol):
    """One kind of durable work."""

    def models(self) -> Sequence[type[Model]]:
        """Its tables; none when the application does not use it."""

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        """What its tables need beyond what a model declares."""

    def problems(self) -> list[str]:
        """The mistakes in its declarations, one sentence each."""

    def attach(self, environment: Environment) -> None:
        """The server is sealed: here is its database."""

    def services(self) -> Sequence[Service]:
        """What works in the background of a serving process."""
