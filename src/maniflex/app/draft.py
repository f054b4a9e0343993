"""An application on its way to a sealed server: its declarations, and the parts built of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maniflex._clock import Clock
from maniflex.app.databases import Databases
from maniflex.app.durable import Durable
from maniflex.config import Config
from maniflex.doctor.check import Ignore
from maniflex.encryption.keyring import Keyring
from maniflex.features.actions import Action
from maniflex.features.search import GlobalSearch
from maniflex.http.layers import Layer
from maniflex.http.probes import Health
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, ModelOptions, RelationKind
from maniflex.model.registry import Registry
from maniflex.openapi.serve import Description
from maniflex.pipeline.entry import Placement
from maniflex.pipeline.observation import Observation, Tracing
from maniflex.pipeline.registration import Pipeline
from maniflex.pipeline.routes import RouteBuilder
from maniflex.pipeline.rules.transforms import Computed

if TYPE_CHECKING:
    from maniflex.admin.declare import Admin
    from maniflex.admin.panel import Panel
    from maniflex.doctor.check import Subject
    from maniflex.features.batch import BatchRoute
    from maniflex.features.rollups import RollupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an application has said by the time it is sealed."""

    config: Config
    clock: Clock
    logger: logging.Logger
    background_logger: logging.Logger
    registry: Registry
    internal_tables: InternalTables
    pipeline: Pipeline
    actions: Sequence[Action]
    layers: Sequence[Layer]
    observers: Sequence[Callable[[Observation], Any]]
    computed: Mapping[type[Model], Sequence[Computed]]
    search: GlobalSearch | None
    batch: BatchRoute | None
    rollups: Sequence[RollupSpec]
    durable: Durable
    health: Health
    admin: Admin | None
    warnings: list[str]  # of this start so far, where they are collected
    tracing: Tracing | None
    access_control: str  # what decides before the server who may call it; empty: nothing does
    doctor_subject: Callable[[], Subject]  # once the server is sealed
    ignores: Sequence[Ignore]  # what the application silences of the doctor, and why
    keys: Keyring  # of encrypted fields
    title: str  # of the API description, when no setting names it
    without_extras: bool = False  # for the doctor, who names packages that lack and looks at everything else


@dataclass(slots=True, kw_only=True)
class ServerDraft:
    """What features are given to check the declaration and to make their routes."""

    declaration: Declaration
    models: Sequence[ModelMeta]  # none when they could not be read
    is_readable: bool  # whether they could; without them, every mention of a model would look wrong
    databases: Databases
    placement: Placement  # of the entries
    routes: RouteBuilder
    description: Description
    panel: Panel | None = None  # once its routes are made

    @property
    def stored_models(self) -> list[ModelMeta]:
        """The models that have a database, which a mistake in an address can take from them."""
        return [meta for meta in self.models if meta.cls in self.routes.runtime.stores]


# The tables that features keep for themselves, such as runs and schedules; they have guards of their own.


class InternalTables:
    """Registers each of them once, however often the server is sealed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._models: set[type[Model]] = set()

    def register(self, model: type[Model], options: ModelOptions | None) -> None:
        if model not in self._models:
            self._registry.register(model, *(() if options is None else (options,)))
            self._models.add(model)

    def add_registered(self, models: Sequence[ModelMeta]) -> None:
        """Those of catalogue entries, which are registered by their entries."""
        self._models.update(meta.cls for meta in models if meta.is_internal)

    @property
    def models(self) -> frozenset[type[Model]]:
        """Those that are registered."""
        return frozenset(self._models)

    def relation_problems(self, models: Sequence[ModelMeta]) -> Iterator[str]:
        """Relations into internal tables: what comes along with another record passes no guard of theirs."""
        names = {cls.__name__ for cls in self._models}
        for meta in (meta for meta in models if meta.cls not in self._models):
            for relation in meta.relations.values():
                if not {relation.target, relation.through} & names:
                    continue
                if relation.kind is RelationKind.BELONGS_TO:
                    hint = f"{meta.name}.{relation.key}: keep the id as a plain field: relation=None"
                else:
                    hint = f"{meta.name}.{relation.name}: leave it out, and look the records up by id"
                yield f"{hint}; no model refers to {relation.target}, whose guard it would go around"
