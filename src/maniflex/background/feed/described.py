"""The types of events that an application is known to publish, with what can be said of their data.

Those of writes of models that emit, of `server.events.declare`, and of ends of runs and jobs with a handler
here. Descriptions of the API are made of them. Types that a function makes are known to nobody beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from maniflex.background.feed.capture import SUFFIXES, ModelEvents
from maniflex.background.payload_types import PayloadType
from maniflex.db.redacted import Redaction
from maniflex.db.write_seam import ChangeKind
from maniflex.events.emit import Emit
from maniflex.events.event import Event
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.query.query import find_field

_WHAT = {
    ChangeKind.CREATE: "created",
    ChangeKind.UPDATE: "changed",
    ChangeKind.DELETE: "deleted",
    ChangeKind.RESTORE: "restored",
}


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event that the application declares."""

    type: str
    payload: PayloadType | None
    title: str
    description: str
    audience: Any
    example: Any


@dataclass(frozen=True, slots=True)
class DescribedType:
    """A type of events, and of what its data are made."""

    type: str
    title: str
    description: str = ""
    audience: Any = None  # of an event without a model
    model: ModelMeta | None = None
    fields: Sequence[FieldMeta] | None = None  # of the model's data; None: a function makes them
    payload: Any = None  # the type of the data of an event without a model
    example: Any = None
    ending: str = ""  # of the end of a run or a job: succeeded, failed …


class TypeFamily(Protocol):
    """Types of events that the framework publishes for the application, such as ends of runs."""

    prefix: str

    def find_type(self, event: Event) -> EventType | None:
        """What is said of the type of an event of this application, if it is one of these."""

    def describe(self) -> Iterable[DescribedType]:
        """The types that are known beforehand."""


def describe_types(
    own_types: Iterable[EventType],
    emits: Iterable[tuple[ModelMeta, Emit, Iterable[ChangeKind]]],
    families: Iterable[TypeFamily],
) -> list[DescribedType]:
    """All that is known, by type; what the application declares of one comes first."""
    types = [describe_declared(one) for one in own_types]
    for meta, options, kinds in emits:
        types += describe_emits(meta, options, kinds)
    for family in families:
        types += family.describe()
    return sorted({one.type: one for one in reversed(types)}.values(), key=lambda one: one.type)


def describe_declared(one: EventType) -> DescribedType:
    """What the application says of a type of its own."""
    payload = None if one.payload is None else one.payload.declared
    title = one.title or one.type
    return DescribedType(one.type, title, one.description, one.audience, payload=payload, example=one.example)


def describe_emits(meta: ModelMeta, options: Emit, kinds: Iterable[ChangeKind]) -> Iterator[DescribedType]:
    """The types of the events of one model."""
    present_kinds = [kind for kind in kinds if kind is not ChangeKind.RESTORE or meta.soft_delete is not None]
    for kind in ChangeKind:
        if kind not in present_kinds:
            continue
        for type in ModelEvents(meta, options, [kind]).types():
            title = f"{meta.name} {SUFFIXES[kind]}"
            text = f"A record of {meta.name} was {_WHAT[kind]}."
            yield DescribedType(type, title, text, model=meta, fields=_fields_of(meta, options))


def _fields_of(meta: ModelMeta, options: Emit) -> list[FieldMeta] | None:
    if callable(options.data):
        return None
    told_fields = [field for _, field in Redaction(meta).kept]
    if options.data == "id":
        return [field for field in told_fields if field.name == "id"]
    if options.fields is None:
        return told_fields
    names = {field.name for name in options.fields if (field := find_field(meta, name)) is not None}
    return [field for field in told_fields if field.name in names]
