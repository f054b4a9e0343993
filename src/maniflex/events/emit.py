"""Which events the writes of a model make: `events=Emit(...)` of a class, or `server.events.emit(...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Made = Callable[[str, dict[str, Any]], Any]  # of the operation and the record by the names of the API


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """The options of the events of a model; `docs/events/publishing.md` says what each means."""

    operations: Any = None  # None: every write
    type: str | Callable[[str, dict[str, Any]], str] | None = None
    subject: str | Callable[[str, dict[str, Any]], str] | None = None
    tenant: str | None = None  # the field that has the tenant
    schema_version: int = 0
    data: Literal["record", "id"] | Callable[[dict[str, Any]], Any] = "record"
    fields: Sequence[str] | None = None
    scope: Sequence[str] = ()  # hidden fields that conditions of subscribers may ask about
