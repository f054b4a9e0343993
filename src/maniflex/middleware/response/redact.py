"""`response.redact_field`: a field that some callers neither see nor ask about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from maniflex.middleware.response.ranks import REDACT
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.redactions import RedactionRule
from maniflex.pipeline.registration import Middleware, takes
from maniflex.query.query import find_field


def redact_field(field: str, when: Callable[..., Any], *, closes_queries: bool = True) -> RedactField:
    """Take the field out of all records that a caller is shown, where `when(ctx)` is true for them.

    Such a caller cannot filter or sort by it either; `closes_queries=False` allows that.
    """
    return RedactField(field, when, closes_queries)


class RedactField(Entry):
    """Hides one field from some callers, wherever records of its models show."""

    name = "response.redact_field"
    homes: ClassVar = {"response": ANYWHERE}
    needs_routes = False  # actions may show records of any model
    varies_by_caller = True
    names_computed = True
    docs = describe_nothing  # what a caller is not shown depends on who it is; no answer requires a field

    def __init__(self, field: Any, when: Any, closes_queries: Any) -> None:  # types are promises until here
        super().__init__()
        self.fields = (field,)
        self._when = when
        self._closes_queries = closes_queries
        if not isinstance(field, str) or not field:
            self.mistakes.append(f"a field is named by a text, not {field!r}")
        if not callable(when):
            self.mistakes.append(f"{when!r} is not callable")
        elif not takes(when, 1):
            self.mistakes.append("its function is called with (ctx), which it does not take")
        if not isinstance(closes_queries, bool):
            self.mistakes.append(f"closes_queries is True or False, not {closes_queries!r}")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None  # its work is done where records become answers and queries are read

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=REDACT),)

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in seat.models:
            field = find_field(meta, self.fields[0])
            if field is not None and field.name == "id":
                yield f"{meta.name}.id is how its records are found, so it cannot be hidden"
            elif seat.is_named and meta.is_internal:
                yield f"{meta.name} is a table of the framework, whose routes know their callers themselves"
            elif seat.is_named and field is not None and not field.visible:
                yield f"{meta.name}.{field.name} is in no answer, so there is nothing to hide"

    def redactions(self, seat: Seat) -> Iterable[RedactionRule]:
        for meta in seat.models:
            field = find_field(meta, self.fields[0])
            is_shown = field is None or field.visible
            if is_shown and not meta.is_internal:
                key = self.fields[0] if field is None else field.api
                yield RedactionRule(meta.cls, key, field, self._when, self._closes_queries, seat.operations)
