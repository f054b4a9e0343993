"""What bound a record when one of its versions was written: a stamp in each row of its history.

A snapshot says to which record a record belonged, not whose that one was, and it does not have hidden fields.
A scope asks for both, so what scopes compare there is written with the version, in its transaction, and is
never looked up later: owners change, and parents are deleted. `binding` of a row is an object of the places,
`{"invoice.tenant_id": {"then": "a", "before": "a"}}`; `before` is of the state that an update found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from maniflex.model.meta import FieldMeta, Kind, RelationMeta
from maniflex.query.query import Compare
from maniflex.sql.operators import Condition, test
from maniflex.sql.snapshot import has_name, value_at
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import quote

THEN, BEFORE = "then", "before"
# Kinds that the database writes to JSON as they are compared afterwards.
_KINDS = frozenset({Kind.TEXT, Kind.INT, Kind.BOOL, Kind.UUID})


class BindingPlace(NamedTuple):
    """A field that scopes compare and snapshots do not tell, and the relations that lead to it."""

    path: tuple[RelationMeta, ...]
    field: FieldMeta

    @property
    def name(self) -> str:
        return ".".join([*(relation.name for relation in self.path), self.field.name])

    @property
    def own_name(self) -> str:
        """The field of the record itself that it begins with."""
        return self.path[0].key or "" if self.path else self.field.name

    @property
    def is_written(self) -> bool:
        """Whether rows of a history have it: not what their snapshots tell, nor what JSON cannot hold."""
        return self.field.kind in _KINDS and (bool(self.path) or self.field.secret)


def binding_from_values(history: Any, values: str) -> str:
    """The object as SQL, out of `values`: the record's own fields as JSON, `{"invoice_id": {"then": …}}`."""
    as_text = by_dialect(history.dialect, sqlite=_sqlite_member, postgres=_postgres_member)

    def own_value(place: BindingPlace, side: str) -> str:
        return as_text(values, place.own_name, side, is_key=bool(place.path))

    nothing = by_dialect(history.dialect, sqlite=values, postgres=f"{values}::json")
    return _object(history, own_value) or nothing


def binding_from_columns(history: Any, model: Any, source: str) -> str:
    """The object as SQL, out of a row of the model in `source`, which is as it was before too."""

    def own_value(place: BindingPlace, side: str) -> str:
        column = model.meta.by_name[place.own_name].column
        return f"{quote(source, model.dialect)}.{quote(column, model.dialect)}"

    return _object(history, own_value) or by_dialect(history.dialect, sqlite="NULL", postgres="NULL::json")


def _object(history: Any, own_value: Callable[[BindingPlace, str], str]) -> str:
    function = by_dialect(history.dialect, sqlite="json_object", postgres="json_build_object")
    members = []
    for place in history.binding_places:
        sides = [f"'{side}', {_value(history, place, own_value(place, side))}" for side in (THEN, BEFORE)]
        members.append(f"'{place.name}', {function}({', '.join(sides)})")
    return f"{function}({', '.join(members)})" if members else ""


def _value(history: Any, place: BindingPlace, own: str) -> str:
    """The value at the end of the path that begins with the key `own`."""
    if not place.path:
        return own

    def name(text: str) -> str:
        return quote(text, history.dialect)

    parents = [history.peer(relation.target) for relation in place.path]
    tables = f"{name(parents[0].table.name)} AS b0"
    for i, (relation, parent) in enumerate(zip(place.path[1:], parents[1:], strict=True), 1):
        key = parents[i - 1].meta.by_name[relation.key or ""].column
        tables += (
            f" JOIN {name(parent.table.name)} AS b{i} ON b{i}.{name(parent.id.name)} = b{i - 1}.{name(key)}"
        )
    last = f"b{len(parents) - 1}.{name(place.field.column)}"
    return f"(SELECT {last} FROM {tables} WHERE b0.{name(parents[0].id.name)} = {own})"


def _sqlite_member(values: str, name: str, side: str, *, is_key: bool) -> str:
    return f"json_extract({values}, '$.\"{name}\".{side}')"


def _postgres_member(values: str, name: str, side: str, *, is_key: bool) -> str:
    """A key as text, any other value as JSON."""
    return f"({values}::json -> '{name}' {'->>' if is_key else '->'} '{side}')"


def bound_then(
    binding: Any, dialect: Dialect, path: Sequence[RelationMeta], item: Compare, name: str, side: str = THEN
) -> Condition:
    """That the record was bound as the comparison asks; not so where its history does not say by what."""
    place = BindingPlace(tuple(path), item.field)
    value = value_at(item.field, binding, dialect, place.name, side)
    return sa.and_(has_name(place.name, binding, dialect), test(dialect, value, item, name))
