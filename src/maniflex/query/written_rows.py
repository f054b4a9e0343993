"""What a scope says of rows that are written: which values their fields have."""

from __future__ import annotations

from collections.abc import Iterator

from maniflex.model.meta import ModelMeta
from maniflex.query.operators import Op
from maniflex.query.query import Compare, Forced, Narrowed, Scope


def fields_fixed_by(model: ModelMeta, scope: Scope) -> set[str]:
    """The attributes whose values the scope sets, so that those in a body do not count."""
    return {item.field.name for item in fixed_values(model, scope)}


def fixed_values(model: ModelMeta, scope: Scope) -> Iterator[Compare]:
    """The conditions that say which value a field of a written row has."""
    for condition in scope:
        item = None if is_for_reading(condition) else condition.on(model)
        if isinstance(item, Compare) and item.op is Op.EQ and not item.path:
            yield item


def is_for_reading(condition: Forced | Narrowed) -> bool:
    """Whether the condition binds only rows that are shown."""
    return condition.of_shown
