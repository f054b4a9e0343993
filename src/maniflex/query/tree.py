"""What a client asks of a list, as a value: no strings left to parse, no SQL yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.query.limits import DEFAULT_LIMIT
from maniflex.query.operators import Op


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition: a field of the model, an operator and a value of the field's type."""

    field: FieldMeta
    op: Op
    value: Any


@dataclass(frozen=True, slots=True)
class Sort:
    """One sort key."""

    field: FieldMeta
    descending: bool = False


class Query:
    """Paging, filters and order of one list; middleware may read and extend it.

    A query that was asked before starts as a copy of the first, so that what was worked out for it
    can be used again as long as nobody changes the copy.
    """

    __slots__ = ("filters", "limit", "model", "page", "prepared", "sorts", "template")

    def __init__(self, model: ModelMeta, *, page: int = 1, limit: int | None = DEFAULT_LIMIT) -> None:
        self.model = model
        self.page = page
        self.limit = limit  # None: no paging, for code that wants them all
        self.filters: tuple[Compare, ...] = ()
        self.sorts: tuple[Sort, ...] = ()
        self.template: Query | None = None
        self.prepared: Any = None  # whatever a later layer keeps with an unchanged query

    def copy(self) -> Query:
        """The same query, to be changed freely; `unchanged` tells whether it was."""
        made = Query.__new__(Query)
        made.model, made.page, made.limit = self.model, self.page, self.limit
        made.filters, made.sorts, made.template = self.filters, self.sorts, self
        made.prepared = None
        return made

    def unchanged(self) -> Query | None:
        """The query this is a faithful copy of."""
        first = self.template
        if (
            first is not None
            and first.filters is self.filters
            and first.sorts is self.sorts
            and first.page == self.page
            and first.limit == self.limit
        ):
            return first
        return None

    def __repr__(self) -> str:
        return f"<Query {self.model.name} page={self.page} limit={self.limit} {self.filters} {self.sorts}>"

    def add_filter(self, name: str, value: Any, op: str = Op.EQ) -> None:
        """Narrow the list further; unlike a client, code may use any field."""
        try:
            operator = Op(op)
        except ValueError:
            raise InvalidQuery(f"there is no operator {op!r}") from None
        self.filters = (*self.filters, Compare(self._field(name), operator, value))

    def add_sort(self, name: str, direction: str = "asc") -> None:
        """Sort by one more field, after those already there."""
        if direction not in ("asc", "desc"):
            raise InvalidQuery(f"sort direction {direction!r} is neither 'asc' nor 'desc'")
        self.sorts = (*self.sorts, Sort(self._field(name), direction == "desc"))

    def _field(self, name: str) -> FieldMeta:
        found = self.model.field(name)
        if found is None:
            raise InvalidQuery(f"{self.model.name} has no field {name!r}")
        return found
