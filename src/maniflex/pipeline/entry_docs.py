"""What an entry of the catalogue adds to the API description of the routes it acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EntryDocs:
    """The parts of OpenAPI operations that an entry is the reason for."""

    # Name → scheme. A caller needs one of those that the entries of a route name.
    security: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: Sequence[Mapping[str, Any]] = ()
    refusals: Mapping[int, Sequence[str]] = field(default_factory=dict)  # status → codes
    answer_headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of successes
    answers: Mapping[int, str] = field(default_factory=dict)  # further answers without a body
    page_meta: Mapping[str, Any] | None = None  # the schema of a counted page's `meta`, in its place
    body: Mapping[str, Any] | None = None  # the schema of successes, in the place of the usual envelope


def header_parameter(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
    """A request header, as a parameter of an operation."""
    return {
        "name": name,
        "in": "header",
        "description": description,
        "required": required,
        "schema": {"type": "string"},
    }


def answer_header(description: str) -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": "string"}}
