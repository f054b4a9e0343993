"""A message as producers enqueue it and handlers get it.

A message is the same on every delivery, but for its count of attempts and its last error.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.background.outbox import cloudevents
from maniflex.model.base import Model


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be enqueued."""

    kind: str
    payload: Any = None
    key: str | None = None
    about: Model | str | None = None  # the record it tells about
    encrypted: bool | str | None = None  # True, or the id of the key that its payload is stored under


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its `id` stays the same however often it is delivered."""

    id: str
    kind: str
    key: str | None
    payload: Any  # decoded, or an instance of the type the handler asked for
    attempts: int
    created_at: datetime
    stored: str | bytes  # the payload as the database has it
    last_error: str | None = None  # why the attempt before this one failed
    actor_id: str | None = None  # who enqueued it, as far as that was a caller
    tenant_id: str | None = None
    about: str | None = None  # the record it tells about, as `order/<id>`
    trace_id: str | None = None  # the trace it was enqueued in
    traceparent: str | None = None

    @property
    def raw(self) -> bytes:
        """The payload as stored, byte for byte."""
        return self.stored.encode() if isinstance(self.stored, str) else self.stored

    def cloudevent(self, source: str) -> dict[str, Any]:
        """The message in the structured form of CloudEvents 1.0."""
        return cloudevents.structured_event(self, source)
