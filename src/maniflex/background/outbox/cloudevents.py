"""A message as a CloudEvent 1.0: one JSON object, or HTTP headers beside the bare payload.

The record that the message is about becomes `subject`, or the key where there is none; the key is also
`partitionkey` (an extension of the specification) for brokers that keep order by it. `maniflex.events` writes
the forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniflex._json import decode
from maniflex.events import cloudevents
from maniflex.events.event import Event

if TYPE_CHECKING:
    from maniflex.background.outbox.message import Message

CONTENT_TYPE = cloudevents.STRUCTURED


def structured_event(message: Message, source: str) -> dict[str, Any]:
    """The whole event as one object, sent as `application/cloudevents+json`."""
    texts = cloudevents.attributes(_event_of(message, source))
    return {**texts, "datacontenttype": cloudevents.DATA_TYPE, "data": decode(message.stored)}


def headers(message: Message, source: str) -> dict[str, str]:
    """The event's attributes as HTTP headers; the body is `message.raw`."""
    attributes, _ = cloudevents.binary(_event_of(message, source))
    return attributes


def _event_of(message: Message, source: str) -> Event:
    if not source:
        raise ValueError("a CloudEvent has a source: a URI of whoever sends it, such as /shop/orders")
    return Event.restore(
        type=message.kind,
        id=message.id,
        source=source,
        time=message.created_at,
        subject=message.about or message.key or None,
        key=message.key or None,
    )
