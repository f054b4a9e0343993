"""A query as a text that any other query has not: for the keys of cached answers."""

from __future__ import annotations

import hashlib
from typing import Any

from maniflex._client_address import caller_network
from maniflex.errors import RequestError
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import Context
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


# Who a request is counted for: the user within the tenant, or the address an unknown caller comes from.


def caller_of(ctx: Context, *, exact: bool = False) -> str:
    """A text for the caller that no other has; `exact` takes an address by itself, not its network."""
    auth = ctx.auth
    if auth is not None and auth.user_id:
        return f"user {len(auth.tenant_id)} {auth.tenant_id}{auth.user_id}"
    if not exact:
        return f"address {network_of(ctx)}"
    if auth is not None and auth.tenant_id:  # tenants may come from one address, that of a proxy
        return f"tenant {len(auth.tenant_id)} {auth.tenant_id} at {ctx.client_ip}"
    return f"address {ctx.client_ip}"


def network_of(ctx: Context) -> str:
    """The address a request comes from; of IPv6 the network of its subscriber."""
    return caller_network(ctx.client_ip)


async def scopes_of_caller(ctx: Context) -> str:
    """A text for all that scope rules say of the caller, whose tenant may stand in a header.

    It is for requests whose own query no rule binds, and whose code may touch every model. A rule that
    refuses such a caller says so too; where the code needs no rows of that rule, it does not end the request.
    """
    texts: dict[str, None] = {}
    for model in ctx.runtime.rules.scoped_models:
        for rule in ctx.runtime.rules[model].scopes:
            try:
                texts[scope_text(tuple(await rule.rule.conditions(ctx)))] = None
            except RequestError as refusal:
                texts[f"refused {refusal.code}"] = None
    return hashlib.blake2b(repr(list(texts)).encode(), digest_size=16).hexdigest()
