"""A query as a text that any other query has not: for the keys of cached answers."""

from __future__ import annotations

from typing import Any

from maniflex.model.meta import FieldMeta
from maniflex.query.query import AnyOf, Compare, Cursor, Filter, Forced, Include, Narrowed, Query, Scope


def query_text(query: Query) -> str:
    """Everything that decides which rows a query gives, and in which order."""
    cursor = query.cursor
    parts = (
        query.page,
        query.limit,
        query.search,
        [_filter_text(item) for item in query.filters],
        [(_path_names(sort.path), sort.field.name, sort.descending) for sort in query.sorts],
        [_include_text(include) for include in query.includes],
        None if query.select is None else [field.name for field in query.select],
        None if cursor is None else _cursor_parts(cursor),
        scope_text(query.forced),
    )
    return repr(parts)


def scope_text(scope: Scope) -> str:
    """The conditions that a request is bound to; equal for requests that may touch the same rows."""
    return repr([_bound_text(condition) for condition in scope])


def _cursor_parts(cursor: Cursor) -> tuple[Any, ...]:
    return (cursor.field.name, cursor.descending, cursor.after, cursor.backwards, cursor.scope)


def joins(query: Query) -> bool:
    """Whether rows of other models decide what the query gives."""
    if query.includes or any(sort.path for sort in query.sorts):
        return True
    if any(_joins(item) for item in query.filters):
        return True
    # A scope may bind rows through others, along names that only the statement follows.
    return any(
        "." in condition.name or condition.model not in (None, query.model.name)
        if isinstance(condition, Forced)
        else condition.model != query.model.name or _joins(condition.filter)
        for condition in query.forced
    )


def _joins(item: Filter) -> bool:
    conditions = item.conditions if isinstance(item, AnyOf) else (item,)
    return any(condition.path for condition in conditions)


def _filter_text(item: Filter) -> Any:
    if isinstance(item, AnyOf):
        return [_condition_text(condition) for condition in item.conditions]
    return _condition_text(item)


def _condition_text(condition: Compare) -> Any:
    value = condition.value
    if isinstance(value, FieldMeta):
        value = ("field", value.name)
    return (_path_names(condition.path), condition.field.name, str(condition.op), _operand(value))


def _operand(value: Any) -> Any:
    """A set has no order of its own."""
    return ("set", sorted(map(repr, value))) if isinstance(value, set | frozenset) else value


def _path_names(path: Any) -> tuple[str, ...]:
    return tuple(relation.name for relation in path)


def _include_text(include: Include) -> Any:
    return (include.relation.name, [_include_text(below) for below in include.nested])


def _bound_text(condition: Forced | Narrowed) -> Any:
    if isinstance(condition, Narrowed):
        return ("narrowed", condition.model, _filter_text(condition.filter))
    return (
        condition.name,
        str(condition.op),
        _operand(condition.value),
        str(condition.kind),
        condition.model,
    )
