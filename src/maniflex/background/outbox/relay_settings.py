"""The handlers, rules and clock that the dispatcher of a relay and its couriers share."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from maniflex._clock import Clock
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.handlers import MessageHandlers
from maniflex.background.outbox.outcomes import Policy


@dataclass(frozen=True, slots=True)
class Relay:
    """How one relay delivers: to whom, by which rules and by which clock."""

    handlers: MessageHandlers
    policy: Policy
    clock: Clock
    logger: logging.Logger
    metrics: Metrics
