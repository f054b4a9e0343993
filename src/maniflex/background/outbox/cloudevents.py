"""A message as a CloudEvent 1.0: one JSON object, or HTTP headers beside the bare payload.

The record that the message is about becomes `subject`, or the key where there is none; the key is also
`partitionkey` (an extension of the specification) for brokers that keep order by it.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING, Any

from maniflex._json import decode

if TYPE_CHECKING:
    from maniflex.background.outbox.message import Message

CONTENT_TYPE = "application/cloudevents+json"
_DATA_TYPE = "application/json"
_UNSAFE = re.compile(r'[^\x21-\x7e]|["%]')


def structured_event(message: Message, source: str) -> dict[str, Any]:
    """The whole event as one object, sent as `application/cloudevents+json`."""
    return {
        **_attributes(message, source),
        "datacontenttype": _DATA_TYPE,
        "data": decode(message.stored),
    }


def headers(message: Message, source: str) -> dict[str, str]:
    """The event's attributes as HTTP headers; the body is `message.raw`."""
    event_headers = {
        f"ce-{name}": _percent_encode(value) for name, value in _attributes(message, source).items()
    }
    return {"content-type": _DATA_TYPE, **event_headers}


def _attributes(message: Message, source: str) -> dict[str, str]:
    if not source:
        raise ValueError("a CloudEvent has a source: a URI of whoever sends it, such as /shop/orders")
    attributes = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": message.kind,
        "time": message.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    if subject := message.about or message.key:
        attributes["subject"] = subject
    if message.key:
        attributes["partitionkey"] = message.key
    return attributes


def _percent_encode(value: str) -> str:
    """A header value as the HTTP binding wants it: everything unusual percent-encoded."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)
