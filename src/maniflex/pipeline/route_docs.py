"""What the documentation says of a route beyond what its model and operation say already.

An endpoint may have a `RouteDocs`; it works the same without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RouteDocs:
    """The texts, types and parameters of one endpoint; types are annotations, schemas JSON Schema."""

    name: str = ""  # becomes the operationId
    summary: str = ""
    description: str = ""
    tags: Sequence[str] = ()
    deprecated: bool = False
    request: Any = None  # the type of the body
    response: Any = None  # the type of `data`
    request_schema: Mapping[str, Any] | None = None  # wins over `request`
    data_schema: Mapping[str, Any] | None = None  # wins over `response`
    request_media: str = "application/json"
    takes_form: bool = False  # of a model's own create and update: a form, too
    body_required: bool = True
    body_text: str = "What the operation is given."
    status: int = 200
    is_status_declared: bool = False  # of an action: its status is the only one without `more_answers`
    more_answers: Mapping[int, Any] = field(default_factory=dict)  # of an action: type of the data, or None
    request_body: Mapping[str, Any] | None = None  # of OpenAPI; wins over `request` and `request_schema`
    query: Mapping[str, Any] = field(default_factory=dict)  # name → type of a query parameter
    grammar: Sequence[str] = ()  # parameters of the list grammar it takes: "filter", "sort", …
    parameters: Sequence[Mapping[str, Any]] = ()  # further OpenAPI parameters
    media: Sequence[str] = ()  # what it answers with, when that is not JSON
    answers: Mapping[int, Mapping[str, Any] | None] | None = None  # JSON without an envelope, by status
    answer_texts: Mapping[int, str] = field(default_factory=dict)  # what an answer is, by status
    errors: Sequence[int] = ()  # statuses of its refusals, in addition to those of its kind
    codes: Sequence[str] = ()  # error codes that only such operations give
    security: Sequence[Mapping[str, Sequence[str]]] | None = None  # empty: open to everybody
    extensions: Mapping[str, Any] = field(default_factory=dict)  # `x-` keys of the operation
    hidden: bool = False  # not part of the API: pages, scripts and styles

    def of_head(self) -> RouteDocs:
        """The same of HEAD on the path."""
        return replace(self, name=f"head_{self.name}", summary=f"Headers of: {self.summary.lower()}")
