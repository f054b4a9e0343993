"""The outcomes of a delivery, and how each changes the row of the message."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from maniflex._clock import Backoff, Clock
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.handlers import MessageHandlers
from maniflex.background.outbox.model import ClaimedMessage, MessageChange, MessageStatus

SLOW_AFTER = timedelta(seconds=1)
MOST_ASIDE = 64


@dataclass(frozen=True, slots=True)
class Delivered:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class DeliveryFailed:
    """The handler raised."""

    error: str


@dataclass(frozen=True, slots=True)
class Hopeless:
    """No further attempt can succeed; `raw` is what a payload was that is not JSON."""

    reason: str
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class HandedBack:
    """It was not tried, or not to its end, for no fault of its own."""


Outcome = Delivered | DeliveryFailed | Hopeless | HandedBack


@dataclass(frozen=True, slots=True)
class Policy:
    """How a relay works."""

    owner: str
    batch: int
    concurrency: int
    max_attempts: int
    backoff: Backoff
    lease: timedelta
    grace: timedelta = timedelta(seconds=30)  # to write down what was done, without a caller's deadline
    slow_after: timedelta = SLOW_AFTER  # a handler that takes longer holds up its own key only
    most_aside: int = MOST_ASIDE  # handlers that do, before the relay claims nothing more


def change(
    message: ClaimedMessage, outcome: DeliveryFailed | Hopeless | HandedBack, policy: Policy, now: datetime
) -> MessageChange:
    """The change of the message's row. Pure, so every branch is a one-line test."""
    match outcome:
        case DeliveryFailed(error) if message.attempts < policy.max_attempts:
            retry_at = now + policy.backoff(message.attempts)
            return MessageChange(
                message.id, MessageStatus.PENDING, retry_at, last_error=error, key=message.key
            )
        case DeliveryFailed(error):
            return MessageChange(message.id, MessageStatus.DEAD, last_error=error)
        case Hopeless(reason, raw):
            return MessageChange(message.id, MessageStatus.DEAD, last_error=reason, raw=raw)
        case HandedBack():
            return MessageChange(message.id, MessageStatus.PENDING, unspent=1)
        case _:
            assert_never(outcome)


# The handlers, rules and clock that the dispatcher of a relay and its couriers share.


@dataclass(frozen=True, slots=True)
class Relay:
    """How one relay delivers: to whom, by which rules and by which clock."""

    handlers: MessageHandlers
    policy: Policy
    clock: Clock
    logger: logging.Logger
    metrics: Metrics
