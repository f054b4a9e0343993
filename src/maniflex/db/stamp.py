"""What a forced condition means for a write: the row ends up inside it, or there is no write.

A request's values are brought inside where the condition says what they must be. Code that says
something else is refused. A condition along a path is about the record that the row belongs to:
here its key must be there, and the statement checks the record (`sql.where.parents_inside`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from maniflex.errors import ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query.query import AnyOf, Compare, Forced, Scope, fixed_values, holds, is_for_reading


def stamp(
    model: ModelMeta, scope: Scope, values: MutableMapping[str, Any], *, only_present: bool = False
) -> None:
    """Bring values about to be written inside the scope; on update only those that are written."""
    for item in fixed_values(model, scope):
        if item.field.name in values or not only_present:
            values[item.field.name] = item.value
    check(model, scope, values, only_present=only_present)


def drop_settled(model: ModelMeta, scope: Scope, changes: MutableMapping[str, Any]) -> None:
    """Take out of an update what the scope of its statement settles: a row inside has these values already,
    and an update that says nothing else changes nothing."""
    for item in fixed_values(model, scope):
        changes.pop(item.field.name, None)


def complete(model: ModelMeta, scope: Scope, values: MutableMapping[str, Any]) -> None:
    """Add what the scope settles and the values leave open."""
    for item in fixed_values(model, scope):
        if values.get(item.field.name) is None:
            values[item.field.name] = item.value


def check(
    model: ModelMeta, scope: Scope, values: MutableMapping[str, Any], *, only_present: bool = False
) -> None:
    """Refuse values that would end outside the scope; on update only those that are written."""
    for rule in scope:
        condition = None if is_for_reading(rule) else rule.on(model)
        if condition is None:
            continue
        items = condition.conditions if isinstance(condition, AnyOf) else (condition,)
        fields = [f for item in items if (f := _deciding_field(model, item)) is not None]
        if only_present and not any(f.name in values for f in fields):
            continue
        if not any(_inside(model, item, values, isinstance(rule, Forced)) for item in items):
            raise ValidationFailed(details=[_outside(f) for f in fields])


def _deciding_field(model: ModelMeta, item: Compare) -> FieldMeta | None:
    """The field of the row itself that decides whether the condition holds."""
    if not item.path:
        return item.field
    first = item.path[0]
    return model.by_name.get(first.key or "") if first.kind is RelationKind.BELONGS_TO else None


def _inside(model: ModelMeta, item: Compare, values: MutableMapping[str, Any], path_is_checked: bool) -> bool:
    """Whether the values satisfy the condition; with `path_is_checked`, the statement checks its path."""
    field = _deciding_field(model, item)
    value = None if field is None else values.get(field.name)
    return path_is_checked and value is not None if item.path else holds(item.op, value, item.value)


def _outside(field: FieldMeta) -> dict[str, str]:
    return {"field": field.api, "message": f'field "{field.api}" has a value that is not allowed here'}
