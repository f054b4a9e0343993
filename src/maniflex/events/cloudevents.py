"""Events as CloudEvents 1.0, written and read: as one JSON object, or as headers beside the bare data.

The structured form is `application/cloudevents+json`. In the binary form the attributes are headers: `ce-`
with percent-encoding for HTTP and NATS, `ce_` for Kafka, `cloudEvents_` for AMQP. `read` takes either by
its content type. Attributes that nobody here knows survive in `Event.headers`. What cannot be read is
`UnreadableEvent`, with the reason.

>>> write_structured(Event("order.placed", id="1", time=datetime(2026, 1, 1, tzinfo=UTC)))["time"]
'2026-01-01T00:00:00Z'
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from maniflex._json import decode
from maniflex.events.event import EXTENSIONS, Event, encode_data

STRUCTURED = "application/cloudevents+json"
DATA_TYPE = "application/json"
SPEC_VERSION = "1.0"
POSITION_DIGITS = 20
_UNSAFE = re.compile(r'[^\x21-\x7e]|["%]')
_IS_JSON = re.compile(r"(?:application|text)/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


class UnreadableEvent(Exception):
    """What came from outside is no CloudEvent; the message says why."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How one protocol writes attributes as headers."""

    prefix: str
    write: Callable[[str], str]
    read: Callable[[str], str]


def percent_encode(value: str) -> str:
    """A header value as the HTTP binding wants it: everything unusual percent-encoded."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def _as_it_is(value: str) -> str:
    return value


HTTP = NATS = Binding("ce-", percent_encode, unquote)
KAFKA = Binding("ce_", _as_it_is, _as_it_is)
AMQP = Binding("cloudEvents_", _as_it_is, _as_it_is)


def attributes(event: Event) -> dict[str, str]:
    """All attributes but the data, as texts; those without a value are left out."""
    texts = {
        "specversion": SPEC_VERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": utc_text(event.time),
    }
    if event.subject is not None:
        texts["subject"] = event.subject
    for attribute, name in EXTENSIONS.items():
        value = getattr(event, attribute)
        if value is None or value is False or (attribute == "schema_version" and not value):
            continue
        texts[name] = _extension_text(attribute, value)
    return {**event.headers, **texts}


def _extension_text(attribute: str, value: Any) -> str:
    match attribute:
        case "position":
            return f"{value:0{POSITION_DIGITS}d}"
        case "changed":
            return ",".join(value)
        case "erased":
            return "true"
        case _:
            return str(value)


def utc_text(moment: datetime) -> str:
    """A time as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


# -- writing


def write_structured(event: Event) -> dict[str, Any]:
    """The whole event as one object."""
    texts = attributes(event)
    if isinstance(event.data, bytes):
        base64_text = base64.b64encode(event.data).decode()
        return {"datacontenttype": "application/octet-stream", **texts, "data_base64": base64_text}
    if event.data is None:
        return {"datacontenttype": DATA_TYPE, **texts}
    return {"datacontenttype": DATA_TYPE, **texts, "data": event.data}


def structured_bytes(event: Event) -> bytes:
    """The same as JSON text."""
    values = write_structured(event)
    if "data" in values:
        values["data"] = msgspec.Raw(encode_data(event.data).encode())
    return msgspec.json.encode(values)


def binary(event: Event, binding: Binding = HTTP) -> tuple[dict[str, str], bytes]:
    """The attributes as headers (with `content-type`), and the bare data."""
    headers = {binding.prefix + name: binding.write(text) for name, text in attributes(event).items()}
    content_type = headers.pop(f"{binding.prefix}datacontenttype", None)
    if isinstance(event.data, bytes):
        return {"content-type": content_type or "application/octet-stream", **headers}, event.data
    body = b"" if event.data is None else encode_data(event.data).encode()
    return {"content-type": content_type or DATA_TYPE, **headers}, body


# -- reading


def read(headers: Mapping[str, str], body: bytes, binding: Binding = HTTP) -> Event:
    """The event of a message in either form; names of headers may be in any case."""
    by_name = {name.lower(): value for name, value in headers.items()}
    content_type = by_name.get("content-type", by_name.get("content_type", ""))
    if content_type.lower().startswith(STRUCTURED):
        return read_structured(body)
    prefix = binding.prefix.lower()
    texts = {
        name.removeprefix(prefix): binding.read(value)
        for name, value in by_name.items()
        if name.startswith(prefix)
    }
    if not texts:
        if not body.lstrip().startswith(b"{"):
            raise UnreadableEvent("it has neither attributes of CloudEvents nor a body that is one")
        return read_structured(body)
    if content_type:
        texts["datacontenttype"] = content_type
    return _event_of(texts, _read_data(body, content_type))


def read_structured(body: bytes | str) -> Event:
    """The event of a JSON text."""
    try:
        values = decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableEvent(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise UnreadableEvent("it is no JSON object")
    data = values.pop("data", None)
    if "data_base64" in values:
        try:
            raw = base64.b64decode(str(values.pop("data_base64")), validate=True)
        except (binascii.Error, ValueError):
            raise UnreadableEvent("data_base64 is not base64") from None
        data = _read_data(raw, str(values.get("datacontenttype") or "application/octet-stream"))
    texts = {name: _text_of(value) for name, value in values.items() if value is not None}
    return _event_of(texts, data)


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read_data(body: bytes, content_type: str) -> Any:
    """What the bytes of data say, as JSON where they are that."""
    if not body:
        return None
    if content_type and not _IS_JSON.fullmatch(content_type):
        return body
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableEvent(f"its data are not JSON: {error}") from None


def _event_of(texts: dict[str, str], data: Any) -> Event:
    version = texts.pop("specversion", SPEC_VERSION)
    if version != SPEC_VERSION:
        raise UnreadableEvent(f"specversion {version!r} is not {SPEC_VERSION}")
    missing = [name for name in ("id", "source", "type") if not texts.get(name)]
    if missing:
        raise UnreadableEvent(f"it has no {' and no '.join(missing)}")
    if _IS_JSON.fullmatch(texts.get("datacontenttype", DATA_TYPE)):
        texts.pop("datacontenttype", None)
    values: dict[str, Any] = {name: texts.pop(name) for name in ("id", "source", "type")}
    values["subject"] = texts.pop("subject", None)
    values["time"] = _read_time(texts.pop("time", None))
    for attribute, name in EXTENSIONS.items():
        if name in texts:
            values[attribute] = _read_extension(attribute, texts.pop(name))
    if values.get("key") is None:
        values["key"] = values["subject"]
    return Event.restore(**values, data=data, headers=texts)


def _read_time(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UnreadableEvent(f"its time {text[:40]!r} is no RFC 3339 time") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _read_extension(attribute: str, text: str) -> Any:
    match attribute:
        case "schema_version" | "position":
            if not text.isdecimal() or len(text) > POSITION_DIGITS:
                raise UnreadableEvent(f"{EXTENSIONS[attribute]} {text[:40]!r} is no whole number")
            return int(text)
        case "changed":
            return tuple(text.split(",")) if text else ()
        case "erased":
            return text == "true"
        case _:
            return text
