"""What a sealed server hands to its durable parts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from maniflex._clock import Clock
from maniflex._service import Service
from maniflex.background.metrics import Metrics
from maniflex.background.runs.engine import RunEngine
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.errors import DatabaseError, DeclarationError, RequestError, Timeout
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql


@dataclass(frozen=True, slots=True)
class Environment:
    """The database, the clock and the neighbours."""

    adapter: Adapter
    clock: Clock
    config: Config
    logger: logging.Logger
    stores: Mapping[type[Model], Store]
    runs: RunEngine
    metrics: Metrics = field(default_factory=Metrics)


# The parts of durable work: runs, outbox, schedules, scheduled fields, jobs.
#
# `Part` is what the server asks of each. A `DeclaredPart` keeps the order of things: declarations come
# before the server is sealed, work comes after.


class Part(Protocol):
    """One kind of durable work."""

    def models(self) -> Sequence[type[Model]]:
        """Its tables; none when the application does not use it."""
        return ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        """What its tables need beyond what a model declares."""
        return ()

    def problems(self) -> list[str]:
        """The mistakes in its declarations, one sentence each."""
        return []

    def attach(self, environment: Environment) -> None:
        """The server is sealed: here is its database."""

    def services(self) -> Sequence[Service]:
        """What works in the background of a serving process."""
        return ()


AT_START = 3  # times that the start waits for whoever has locked the database


async def begin_at_start(what: str, begin: Callable[[], Awaitable[None]], logger: logging.Logger) -> None:
    """Write what has to stand there before anything is published; the loops of the part try again."""
    for _ in range(AT_START):
        try:
            await begin()
            return
        except DatabaseError:  # migrations that are to come make the tables
            return
        except RequestError as error:  # somebody else writes
            if not (error.retryable or isinstance(error, Timeout)):
                raise
            last_error = error
    logger.warning("%s: this start could not write down who takes events: %s", what, last_error)


class DeclaredPart(Part):
    """A part that is declared before the server is sealed, and at work from then on."""

    too_late: ClassVar[str] = ""  # the message for a declaration after that
    too_early: ClassVar[str]  # the message for work before that
    not_used: ClassVar[str] = ""  # the message for work on a part that nothing was declared for

    def __init__(self) -> None:
        self._enabled = False
        self._environment: Environment | None = None

    @property
    def is_used(self) -> bool:
        """Whether the application uses this part."""
        return self._enabled

    def require_open(self) -> None:
        """Refuse a declaration that comes too late."""
        if self._environment is not None:
            raise DeclarationError(self.too_late)

    def require_sealed(self) -> Environment:
        """The environment of a part that is at work."""
        if self._environment is None:
            raise DeclarationError(self.too_early)
        if not self.is_used:
            raise DeclarationError(self.not_used)
        return self._environment

    def attach(self, environment: Environment) -> None:
        self._environment = environment
