"""Conditions as code and JSON bodies write them: a field, an operator, a value.

The same grammar as `filter=` (`parse`), only that values are JSON's or Python's instead of text. A
client may use what is opened to it; code may use any field. Whatever cannot be used is `InvalidQuery`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._limits import Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, RelationMeta
from maniflex.query.operands import known_operator, operand
from maniflex.query.operators import Op, Takes
from maniflex.query.tree import Compare, Query, find_field
from maniflex.query.values import comparable

Where = Mapping[str, Any] | Iterable[Any]


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: a client, bound by `limits` and by what fields are opened for, or code (None)."""

    query: Query
    limits: Limits | None

    def field(self, name: Any, part: str) -> FieldMeta:
        """A field of the model itself."""
        model = self.query.model
        found = None
        if isinstance(name, str):
            found = find_field(model, name) if self.limits is None else model.by_api.get(name)
        if found is None or (self.limits is not None and not is_open(found)):
            raise InvalidQuery(f"{part}: {name!r} is not a field that can be used here")
        return found

    def condition(self, item: Any, part: str = "where") -> Compare:
        """One condition on a field, of the model or at the end of a dotted path."""
        name, word, value = taken_apart(item, part)
        path, found = self._along(name, part)
        known = known_operator(word, found, part)
        if known.takes is Takes.FIELD:
            return Compare(found, known.op, self._other(found, value, path, part), path)
        return Compare(found, known.op, operand(known, found, value, part, self.limits), path)

    def conditions(self, items: Where | None, part: str = "where") -> tuple[Compare, ...]:
        """All conditions of a list, or of a mapping from field to value."""
        pairs: Iterable[Any] = items.items() if isinstance(items, Mapping) else items or ()
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise InvalidQuery(f"{part}: a list of conditions")
        return tuple(self.condition(item, part) for item in pairs)

    def _along(self, name: Any, part: str) -> tuple[tuple[RelationMeta, ...], FieldMeta]:
        if not isinstance(name, str) or "." not in name:
            return (), self.field(name, part)
        *relations, last = name.split(".")
        path, model = self.query.walk(relations, revealing=self.limits is None)
        if self.limits is None:
            found = None if model is None else find_field(model, last)
        else:
            deep = len(relations) > self.limits.path_depth
            found = None if model is None or deep else model.by_api.get(last)
        if found is None or (self.limits is not None and not (is_open(found) and found.filterable)):
            raise InvalidQuery(f"{part}: {name!r} is not a field that can be used here")
        return path, found

    def _other(self, found: FieldMeta, name: Any, path: tuple[RelationMeta, ...], part: str) -> FieldMeta:
        _, other = self._along(".".join([*(r.name for r in path), str(name)]), part)
        if other.kind is not found.kind:
            raise InvalidQuery(f"{part}: {name!r} is not of the same kind")
        return other


def is_open(field: FieldMeta) -> bool:
    """Whether a client may compute with the field."""
    return (field.filterable or field.sortable) and not field.secret and comparable(field)


def taken_apart(item: Any, part: str, first: str = "field") -> tuple[Any, Any, Any]:
    """Name, operator and value of `{"field": …, "operator": …, "value": …}` or of a tuple."""
    if isinstance(item, Mapping):
        unknown = [key for key in item if key not in (first, "operator", "value")]
        if unknown or first not in item:
            raise InvalidQuery(f"{part}: an entry has {first}, operator and value")
        return item[first], item.get("operator", Op.EQ), item.get("value")
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) in (2, 3):
        return (item[0], Op.EQ, item[1]) if len(item) == 2 else (item[0], item[1], item[2])
    raise InvalidQuery(f"{part}: an entry has {first}, operator and value")


def compare(field: FieldMeta, word: Any, value: Any, part: str, limits: Limits | None) -> Compare:
    """A condition on something that is no stored field, such as a computed value."""
    known = known_operator(word, field, part)
    if known.takes is Takes.FIELD:
        raise InvalidQuery(f"{part}: {known.op} compares stored fields only")
    return Compare(field, known.op, operand(known, field, value, part, limits))
