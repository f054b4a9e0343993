"""What the checks look at: a sealed application, as values. `app` makes it of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from maniflex._clock import Clock
from maniflex.background.outbox.api import Outbox
from maniflex.background.runs.api import Work
from maniflex.background.schedules.api import Schedules
from maniflex.config import Config
from maniflex.db.port import Adapter, Executor
from maniflex.db.store import Store
from maniflex.doctor.finding import Ignore
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.entry import Entry, Placement, Seat
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.model import ModelSql
from maniflex.storage.port import Storage

if TYPE_CHECKING:
    from maniflex.migrations.target import MigrationTarget


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """One method on one path, and whether the application said who may use it."""

    path: str  # with the prefix
    endpoint: Endpoint
    is_decided: bool
    authenticators: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.endpoint.method} {self.path}"

    @property
    def passes_auth(self) -> bool:
        """Whether requests to it pass the auth step; probes and the description have their own guards."""
        is_plain = self.endpoint.method not in ("HEAD", "OPTIONS")
        return is_plain and self.endpoint.mount is Mount.API and self.endpoint.context is Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A sealed application."""

    config: Config
    clock: Clock
    models: tuple[ModelMeta, ...]
    stores: Mapping[type[Model], Store]
    adapters: tuple[Adapter, ...]
    routes: tuple[GuardedRoute, ...]
    placement: Placement
    layers: Sequence[Any]
    actions: Sequence[Action]
    computed: Mapping[type[Model], Sequence[Any]]
    work: Work
    outbox: Outbox
    schedules: Schedules
    storage: Storage | None
    in_process: InProcess
    runtime: Runtime
    migration_targets: Callable[[], list[MigrationTarget]]
    ignores: tuple[Ignore, ...] = ()
    missing_extras: tuple[str, ...] = ()  # sentences of features that do not start without a package

    @property
    def own_models(self) -> list[ModelMeta]:
        """The models of the application, without the framework's tables."""
        return [meta for meta in self.models if not meta.is_internal]

    @property
    def seats(self) -> list[tuple[Entry, Seat]]:
        """Every entry of the catalogue, and where it was registered."""
        return [*self.placement.seats, *self.placement.other_seats]

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach it."""
        return bool(self.config.trusted_proxies) or not is_loopback(self.config.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """One database of the application, open for reading alone."""

    subject: Subject
    adapter: Adapter
    run: Executor
    models: Sequence[ModelSql] = field(default=())  # of this database, query models left out

    @property
    def label(self) -> str:
        return self.adapter.label

    @property
    def is_default(self) -> bool:
        """Whether durable work keeps its tables here."""
        return self.adapter is self.subject.runtime.adapter
