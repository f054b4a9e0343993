"""What a client asks of a list, as a value: no strings left to parse, no SQL yet."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Query:
    """Paging, filters and order of one list; middleware may read and extend it."""

    model: ModelMeta
    page: int = 1
    limit: int | None = DEFAULT_LIMIT  # None: no paging, for code that wants them all
    filters: list[Compare] = field(default_factory=list)
    sorts: list[Sort] = field(default_factory=list)

    def add_filter(self, name: str, value: Any, op: str = Op.EQ) -> None:
        """Narrow the list further; unlike a client, code may use any field."""
        try:
            operator = Op(op)
        except ValueError:
            raise InvalidQuery(f"there is no operator {op!r}") from None
        self.filters.append(Compare(self._field(name), operator, value))

    def add_sort(self, name: str, direction: str = "asc") -> None:
        """Sort by one more field, after those already there."""
        if direction not in ("asc", "desc"):
            raise InvalidQuery(f"sort direction {direction!r} is neither 'asc' nor 'desc'")
        self.sorts.append(Sort(self._field(name), direction == "desc"))

    def _field(self, name: str) -> FieldMeta:
        found = self.model.field(name)
        if found is None:
            raise InvalidQuery(f"{self.model.name} has no field {name!r}")
        return found
