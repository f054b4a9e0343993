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
    refusal_headers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # status → headers
    answer_headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of successes
    answers: Mapping[int, str] = field(default_factory=dict)  # further answers without a body
    page_meta: Mapping[str, Any] | None = None  # the schema of a counted page's `meta`, in its place
    body: Mapping[str, Any] | None = None  # the schema of successes, in the place of the usual envelope
    status: int | None = None  # of the success of an action, in the place of the usual ones


def describe_nothing(entry: Any, model: Any, operation: Any) -> EntryDocs | None:
    """The `docs` of an entry that gives the API description nothing to say, on purpose."""
    return None


def header_parameter(name: str, description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    """A request header, as a parameter of an operation; `schema` narrows its text."""
    return _parameter("header", name, description, required, schema)


def query_parameter(name: str, description: str) -> dict[str, Any]:
    """A parameter of the query string."""
    return _parameter("query", name, description, False, {})


def cookie_parameter(name: str, description: str) -> dict[str, Any]:
    """A cookie, as a parameter of an operation."""
    return _parameter("cookie", name, description, False, {})


def _parameter(
    place: str, name: str, description: str, required: bool, schema: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "description": description,
        "required": required,
        "schema": {"type": "string", **schema},
    }


def answer_header(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": kind}}


# Of an entry that reads the body of an action itself.
BODY_REFUSALS: Mapping[int, Sequence[str]] = {400: ["BODY_READ_ERROR"], 413: ["BODY_READ_ERROR"]}
RETRY_AFTER = answer_header("In how many seconds to ask again.", "integer")
