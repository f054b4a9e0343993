"""What a sealed server hands to its durable parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from maniflex._clock import Clock
from maniflex.background.metrics import Metrics
from maniflex.background.runs.engine import RunEngine
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.model.base import Model


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
