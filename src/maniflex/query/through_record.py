"""What binds the records of a versioned model, on the rows of its history: through the record they tell of.

A record that is marked as deleted still says whose its history is; one that is gone does not, so what is
bound at all does not show the history of such a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from maniflex.model.history_row import RECORD
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind, RelationMeta
from maniflex.query.query import AnyOf, Compare, Filter, Forced, Models, Narrowed, Query, Scope


def through_record(history: ModelMeta, query: Query) -> Scope:
    """The conditions and filters of a query for the parent, for the rows of its history alone."""
    return (
        *_conditions(history, query),
        *(_condition(history, item, query.models) for item in query.filters),
    )


def _conditions(history: ModelMeta, query: Query) -> Iterator[Forced | Narrowed]:
    for condition in query.forced:
        if isinstance(condition, Narrowed):
            if condition.model == query.model.name:
                yield _condition(history, condition.filter, query.models)
        elif condition.model == history.name:
            yield condition
        elif condition.binds(query.model):
            yield replace(condition, name=f"{RECORD}.{condition.name}", model=history.name)


def _condition(history: ModelMeta, item: Filter, models: Models) -> Forced | Narrowed:
    if isinstance(item, Compare) and _leads_to_one(item):
        name = ".".join((RECORD, *(relation.name for relation in item.path), item.field.name))
        return Forced(name, item.op, item.value, item.field.kind, history.name, models)
    record = history.relations[RECORD]
    if isinstance(item, AnyOf):
        return Narrowed(AnyOf(tuple(_behind(record, one) for one in item.conditions)), history.name)
    return Narrowed(_behind(record, item), history.name)


def _leads_to_one(item: Compare) -> bool:
    """Whether it compares a value with that of the record itself, or of one it belongs to."""
    is_value = not isinstance(item.value, FieldMeta)
    return is_value and all(relation.kind is RelationKind.BELONGS_TO for relation in item.path)


def _behind(record: RelationMeta, item: Compare) -> Compare:
    return replace(item, path=(record, *item.path))
