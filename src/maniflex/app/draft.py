"""An application on its way to a sealed server: its declarations, and the parts built of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._clock import Clock
from maniflex.app.durable import Durable
from maniflex.app.internal_tables import InternalTables
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.features.actions import Action
from maniflex.features.search import GlobalSearch
from maniflex.http.layers import Layer
from maniflex.http.probes import Health
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import Registry
from maniflex.openapi.serve import Description
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.observation import Observation
from maniflex.pipeline.registration import Pipeline
from maniflex.pipeline.routes import RouteBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an application has said by the time it is sealed."""

    config: Config
    clock: Clock
    logger: logging.Logger
    registry: Registry
    internal_tables: InternalTables
    pipeline: Pipeline
    actions: Sequence[Action]
    layers: Sequence[Layer]
    observers: Sequence[Callable[[Observation], Any]]
    computed: Mapping[type[Model], Sequence[Computed]]
    search: GlobalSearch | None
    durable: Durable
    health: Health
    title: str  # of the API description, when no setting names it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDraft:
    """What features are given to check the declaration and to make their routes."""

    declaration: Declaration
    models: Sequence[ModelMeta]  # none when they could not be read
    is_readable: bool  # whether they could; without them, every mention of a model would look wrong
    adapters: Sequence[Adapter]
    routes: RouteBuilder
    description: Description

    @property
    def stored_models(self) -> list[ModelMeta]:
        """The models that have a database, which a mistake in an address can take from them."""
        return [meta for meta in self.models if meta.cls in self.routes.runtime.stores]
