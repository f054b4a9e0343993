"""The tables of webhooks, as ordinary models: who is told of events, what is on its way, what was tried.

Their statements are in `background/sql`; a model here is how REST, filters, OpenAPI and code read them.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of


class EndpointStatus(StrEnum):
    """Whether an endpoint is told of events."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class DeliveryStatus(StrEnum):
    """What became of a delivery; `common/webhooks.sql` draws how one follows from the other."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BodyFormat(StrEnum):
    """How the body is written: as Standard Webhooks suggest, or as a CloudEvent."""

    STANDARD = "standard"
    CLOUDEVENTS = "cloudevents"


class Ordering(StrEnum):
    """What waits for what: deliveries about one subject, all of the endpoint, or none."""

    RECORD = "record"
    ENDPOINT = "endpoint"
    NONE = "none"


class Signing(StrEnum):
    """By which kind of key deliveries are signed."""

    HMAC = "hmac"
    ED25519 = "ed25519"


class WebhookEndpoint(Model, table="webhook_endpoint"):
    """A URL that is told of events; of one that code declares, the row has no secret and no headers."""

    __table_rules__: ClassVar = TableRules(
        checks={
            "webhook_endpoint_status_check": is_one_of("status", tuple(EndpointStatus)),
            "webhook_endpoint_ordering_check": is_one_of("ordering", tuple(Ordering)),
        }
    )

    url: str
    patterns: list[str] = field(default_factory=list)
    description: str | None = field(default=None)
    format: BodyFormat = field(default=BodyFormat.STANDARD)
    ordering: Ordering = field(default=Ordering.RECORD)
    signing: Signing = field(default=Signing.HMAC, immutable=True)
    headers: str | None = field(default=None, hidden=True)  # JSON, sealed like the secrets
    timeout: int = field(default=15)
    status: EndpointStatus = field(default=EndpointStatus.ENABLED, filterable=True, sortable=True)
    disabled_at: datetime | None = field(default=None, readonly=True)
    disabled_reason: str | None = field(default=None, readonly=True)
    secret: str | None = field(default=None, hidden=True)
    public_key: str | None = field(default=None, readonly=True)
    old_secret: str | None = field(default=None, hidden=True)  # signs along until `old_until`
    old_until: datetime | None = field(default=None, readonly=True)
    actor_id: str | None = field(default=None, filterable=True, relation=None, readonly=True)
    tenant_id: str | None = field(default=None, filterable=True, relation=None, readonly=True)
    is_declared: bool = field(default=False, readonly=True, filterable=True)  # by code
    served_at: datetime | None = field(default=None, readonly=True)  # by a process with its code
    paused_until: datetime | None = field(default=None, readonly=True)  # it asked for less
    failing_since: datetime | None = field(default=None, readonly=True)


class WebhookDelivery(Model, table="webhook_delivery"):
    """An event on its way to an endpoint. It names the event and holds no copy."""

    __append_only__: ClassVar = True
    __table_rules__: ClassVar = TableRules(
        checks={"webhook_delivery_status_check": is_one_of("status", tuple(DeliveryStatus))}
    )

    seq: int = field(default=0, hidden=True)  # the order in which they were made
    endpoint_id: str = field(filterable=True, relation=None)
    event_id: str = field(filterable=True, relation=None)  # of the row of the feed
    type: str = field(filterable=True)
    status: DeliveryStatus = field(default=DeliveryStatus.PENDING, filterable=True, sortable=True)
    attempt_count: int = field(default=0, sortable=True)
    retry_at: datetime = field(filterable=True, sortable=True)  # not before
    delivered_at: datetime | None = field(default=None, filterable=True, sortable=True)
    last_status: int | None = field(default=None, filterable=True)
    last_error: str | None = field(default=None)
    actor_id: str | None = field(default=None, relation=None, hidden=True)  # of the endpoint
    tenant_id: str | None = field(default=None, relation=None, hidden=True)
    tries: int = field(default=0, hidden=True)  # attempts since it was made, or sent again by hand
    line: str | None = field(default=None, hidden=True)  # those of one line go one after another
    is_visible: bool = field(default=False, hidden=True)  # its owner may see the event
    lease: str | None = field(default=None, hidden=True)
    lease_until: datetime | None = field(default=None, hidden=True)


class WebhookAttempt(
    Model,
    table="webhook_attempt",
    headless=True,
    indices=[Index(("delivery_id", "number"), name="webhook_attempt_idx")],
):
    """One request to an endpoint, and what came back."""

    __append_only__: ClassVar = True

    delivery_id: str = field(relation=None)
    number: int
    duration_ms: int
    status: int | None = field(default=None)
    error: str | None = field(default=None)
    answer: str | None = field(default=None)  # its first kilobyte
