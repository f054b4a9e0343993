"""An event: something that happened, with its type, its subject and its data.

It is a CloudEvent 1.0; `cloudevents.py` writes and reads its forms. An event that code makes is checked
here; one that was read from the database or a broker is taken as it is (`Event.restored`).

>>> Event("order.placed", {"total": 7}, subject="order/7").key
'order/7'
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Self

from maniflex._ids import new_id
from maniflex._json import encode, is_text
from maniflex.errors import ValidationFailed
from maniflex.events.patterns import type_problem

DEFAULT_SOURCE = "/maniflex"
OPERATIONS = frozenset({"created", "updated", "deleted", "restored"})
CONTROL = "$"  # types that begin so are entries of the framework, which reach no subscriber

# The attributes of the specification, and our extensions, by their names on the wire.
CORE_NAMES = frozenset(
    {
        *("specversion", "id", "source", "type", "time", "subject"),
        *("datacontenttype", "dataschema", "data", "data_base64"),
    }
)
EXTENSIONS: Mapping[str, str] = {  # attribute of `Event` → name on the wire
    "model": "model",
    "operation": "operation",
    "record_id": "recordid",
    "actor_id": "actorid",
    "tenant_id": "tenantid",
    "traceparent": "traceparent",
    "schema_version": "schemaver",
    "changed": "changed",
    "key": "partitionkey",
    "position": "sequence",
    "dataref": "dataref",
    "erased": "erased",
}
DEAD_LETTER_NAMES = ("originalid", "originaltype", "deadletterreason")
RESERVED = CORE_NAMES | frozenset(EXTENSIONS.values()) | frozenset(DEAD_LETTER_NAMES)
_HEADER_NAME = re.compile(r"[a-z0-9]{1,20}")
_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
LONGEST_TEXT = 1024  # of a subject, a key or a source


@dataclass(frozen=True, slots=True)
class Event:
    """One event; equal to another one with the same values."""

    type: str
    data: Any = None
    id: str = field(default_factory=new_id, kw_only=True)
    source: str = field(default=DEFAULT_SOURCE, kw_only=True)
    subject: str | None = field(default=None, kw_only=True)
    time: datetime = field(default_factory=lambda: datetime.now(UTC), kw_only=True)
    key: str | None = field(default=None, kw_only=True)  # orders; the subject where there is none
    model: str | None = field(default=None, kw_only=True)
    operation: str | None = field(default=None, kw_only=True)
    record_id: str | None = field(default=None, kw_only=True)
    actor_id: str | None = field(default=None, kw_only=True)
    tenant_id: str | None = field(default=None, kw_only=True)
    traceparent: str | None = field(default=None, kw_only=True)
    schema_version: int = field(default=0, kw_only=True)
    changed: Sequence[str] | None = field(default=None, kw_only=True)  # names of fields, as the API has them
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # extension attributes of others
    dataref: str | None = field(default=None, kw_only=True)  # where the data is, if they are too large
    position: int | None = field(default=None, kw_only=True)  # in the feed, once it is known
    erased: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            sentence = "; ".join(f"{name} {message}" for name, message in problems)
            details = [{"field": name, "message": f"{name} {message}"} for name, message in problems]
            raise ValidationFailed(f"the event cannot be made: {sentence}", details)
        if self.key is None and self.subject is not None:
            object.__setattr__(self, "key", self.subject)

    @classmethod
    def restore(cls, **values: Any) -> Self:
        """An event that was made before, by us or by others, without judging it again."""
        event = object.__new__(cls)
        put = object.__setattr__
        for name in _NAMES:
            put(event, name, values[name] if name in values else _default(name))
        return event

    @classmethod
    def restore_values(cls, values: Sequence[Any]) -> Self:
        """An event that was made before, of the values of all its fields in their order."""
        event = object.__new__(cls)
        deque(map(object.__setattr__, repeat(event), _NAMES, values), maxlen=0)  # thousands are read a second
        return event

    @property
    def trace_id(self) -> str | None:
        """The trace that the event was made in, read from `traceparent`."""
        match = _TRACE_ID.fullmatch(self.traceparent or "")
        return None if match is None else match[1]

    def with_position(self, position: int) -> Event:
        """The same event at its place in the feed."""
        return Event.restore(**{**_values(self), "position": position})

    def with_type(self, type: str) -> Event:
        """The same event under another type."""
        return self if type == self.type else Event.restore(**{**_values(self), "type": type})

    def with_data(self, data: Any, changed: Sequence[str] | None) -> Event:
        """The same event as one viewer may see it."""
        return Event.restore(**{**_values(self), "data": data, "changed": changed})

    def as_dead_letter(self, type: str, reason: str) -> Event:
        """The event that tells that this one could not be handled, with a fresh id."""
        headers = {
            **self.headers,
            "originalid": self.id,
            "originaltype": self.type,
            "deadletterreason": reason,
        }
        fresh = Event(type)
        own_values = {"type": type, "id": fresh.id, "time": fresh.time, "headers": headers, "position": None}
        return Event.restore(**{**_values(self), **own_values})


_FIELDS = {one.name: one for one in fields(Event)}
_NAMES = tuple(_FIELDS)


def _default(name: str) -> Any:
    one = _FIELDS[name]
    return one.default_factory() if callable(one.default_factory) else one.default


def _values(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in _NAMES}


def _problems(event: Event) -> list[tuple[str, str]]:
    problems = []
    type_trouble = type_problem(event.type)
    if type_trouble is not None:
        problems.append(("type", type_trouble))
    time: object = event.time
    if not isinstance(time, datetime) or time.tzinfo is None:
        problems.append(("time", "must say its time zone"))
    if event.operation is not None and event.operation not in OPERATIONS:
        problems.append(("operation", f"is one of {', '.join(sorted(OPERATIONS))}"))
    problems += [(name, "must be a text") for name in ("id", "source") if not _is_full_text(event, name)]
    for name in _TEXTS:
        value = getattr(event, name)
        if value is not None and not (is_text(value) and 0 < len(value) <= LONGEST_TEXT):
            problems.append((name, f"must be a text of at most {LONGEST_TEXT} characters"))
    if event.headers:
        problems += header_problems(event.headers)
    return problems


def _is_full_text(event: Event, name: str) -> bool:
    value = getattr(event, name)
    return bool(value) and is_text(value)


_TEXTS = ("subject", "key", "model", "record_id", "actor_id", "tenant_id", "traceparent", "dataref")


def encode_data(data: Any) -> str:
    """The data as JSON text; `ValidationFailed` names the place of a value that no JSON can hold."""
    try:
        return encode(data, "data")
    except ValidationFailed as problem:
        place, message = _innermost_problem(data, "data") or ("data", str(problem.message))
        text = f"{place} {message}" if place not in message else message
        raise ValidationFailed(text, [{"field": place, "message": text}]) from None


def _innermost_problem(value: Any, path: str) -> tuple[str, str] | None:
    """The path of the innermost value that cannot be JSON, and why."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{path}.{key}", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{place}]", part) for place, part in enumerate(value)]
    for place, part in parts:
        try:
            encode(part, "value")
        except ValidationFailed as problem:
            message = str(problem.message).removeprefix("the value ")
            return _innermost_problem(part, place) or (place, message)
    return None


def header_problems(headers: Any) -> list[tuple[str, str]]:
    """What is wrong with extra extension attributes, each by its name."""
    if not isinstance(headers, Mapping):
        return [("headers", "must be names with texts")]
    problems = []
    for name, value in headers.items():
        where = f"headers.{name}"
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            problems.append((where, "must be 1 to 20 small letters and digits"))
        elif name in RESERVED:
            problems.append((where, "is an attribute that events have already"))
        elif not is_text(value):
            problems.append((where, "must have a text"))
    return problems
