"""One attempt: the request that is sent, and what the delivery becomes by what came back.

`make_request` gives the bytes that are signed and sent; `settle` is pure, so every branch of it is a line of
a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import random
from typing import Any

import msgspec

from maniflex._json import encode_plain
from maniflex._webhook_signatures import hex_digest, sign
from maniflex.background.webhooks.endpoint import Destination
from maniflex.background.webhooks.model import BodyFormat, DeliveryStatus
from maniflex.events import cloudevents
from maniflex.events.event import Event

AGENT = "maniflex-webhooks"
PAUSES = tuple(
    timedelta(**{unit: amount})
    for amount, unit in (
        *((5, "seconds"), (5, "minutes"), (30, "minutes")),
        *((amount, "hours") for amount in (2, 5, 10, 14, 20, 24)),
    )
)
LONGEST_WAIT = timedelta(hours=24)  # that an endpoint may ask for
MOST_KEPT = 1024  # bytes of an answer
_TOO_MANY, _UNAVAILABLE, _GONE = 429, 503, 410


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """What is sent: the bytes that are signed, and the headers."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What came back of an attempt: a status, or an error."""

    status: int | None = None
    error: str | None = None
    answer: str | None = None
    retry_after: timedelta | None = None
    timed_out: bool = False
    duration: timedelta = timedelta(0)

    def taking(self, duration: timedelta) -> AttemptOutcome:
        """The same, after this time."""
        return replace(self, duration=duration)

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class DeliveryChange:
    """What the delivery becomes, and what its endpoint does."""

    status: DeliveryStatus
    retry_at: datetime | None = None
    pause_until: datetime | None = None  # of the whole endpoint
    is_gone: bool = False


def make_request(endpoint: Destination, id: str, event: Event, now: datetime) -> WebhookRequest:
    """The request about an event, whose id is the same in all attempts."""
    body, content_type = make_body(endpoint.format, event)
    timestamp = int(now.timestamp())
    headers = {
        **endpoint.headers,
        "Content-Type": content_type,
        "User-Agent": AGENT,
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
    }
    if endpoint.secrets:
        headers["webhook-signature"] = sign(endpoint.keys, id, timestamp, body)
    if endpoint.legacy_signature and endpoint.secrets:
        digest = hex_digest(endpoint.secrets[0].encode(), body)
        headers["X-Webhook-Signature"] = f"sha256={digest}"
    if event.traceparent:
        headers["traceparent"] = event.traceparent
    return WebhookRequest(body, headers)


def make_body(format: BodyFormat, event: Event) -> tuple[bytes, str]:
    """The body, and its type."""
    if format is BodyFormat.CLOUDEVENTS:
        return cloudevents.structured_bytes(event), cloudevents.STRUCTURED
    values: dict[str, Any] = {"type": event.type, "timestamp": cloudevents.utc_text(event.time)}
    if event.dataref is not None:
        values["dataref"] = event.dataref
    values["data"] = msgspec.Raw(encode_plain(event.data).encode())
    return msgspec.json.encode(values), "application/json"


def settle(
    outcome: AttemptOutcome, tries: int, now: datetime, *, jitter: float | None = None
) -> DeliveryChange:
    """What becomes of a delivery by its latest attempt, the `tries`-th since it was made or sent again."""
    if outcome.is_success:
        return DeliveryChange(DeliveryStatus.DELIVERED)
    wait_asked_for = outcome.retry_after if outcome.status in (_TOO_MANY, _UNAVAILABLE) else None
    pause_until = now + wait_asked_for if wait_asked_for is not None and outcome.status == _TOO_MANY else None
    if outcome.status == _GONE:
        return DeliveryChange(DeliveryStatus.CANCELLED, is_gone=True)
    if tries > len(PAUSES):
        return DeliveryChange(DeliveryStatus.FAILED, pause_until=pause_until)
    spread = 0.9 + 0.2 * (random() if jitter is None else jitter)
    wait = PAUSES[tries - 1] * spread if wait_asked_for is None else wait_asked_for
    return DeliveryChange(DeliveryStatus.PENDING, now + wait, pause_until)


def read_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """How long the other side asks us to wait: seconds or a date; None where it does not say."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return max(timedelta(0), min(moment - now, LONGEST_WAIT))
