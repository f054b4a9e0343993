"""What the forced conditions of a request mean for the model it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from maniflex.db.store import Store
from maniflex.db.write_seam import drop_settled as drop_settled
from maniflex.db.write_seam import stamp as stamp
from maniflex.errors import UnusableScope
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.body import Body
from maniflex.query.query import Forced, Scope, fixed_values, related_models

SINGLETON_ID = "singleton"


def require_binding(store: Store, scope: Scope) -> Scope:
    """The scope; `UnusableScope` when a condition binds neither the model nor one it is related to."""
    missing = find_unbound(scope, (store.meta,))
    if missing is not None:
        missing = find_unbound(scope, (store.meta, *related_models(store.meta, store.models)))
    if missing is not None:
        raise UnusableScope(f"{store.meta.name} cannot be bound by {missing.name!r}: it has no such field")
    return scope


def find_unbound(scope: Scope, models: Sequence[ModelMeta]) -> Forced | None:
    """A condition for all models that binds none of these, neither by itself nor by another way.

    Conditions with one operator and one value say one thing of different models: `tenant_id` binds the
    orders and `order.tenant_id` their lines. So it is enough if one of them binds.
    """
    conditions = [condition for condition in scope if isinstance(condition, Forced)]
    for condition in conditions:
        ways = (
            [other for other in conditions if other.asks_like(condition)] if condition.model is None else ()
        )
        if ways and not any(way.binds(meta) for meta in models for way in ways):
            return condition
    return None


def stamp_body(model: ModelMeta, scope: Scope, body: Body) -> None:
    """Put the values the scope sets into a body, before validation asks for them."""
    for item in fixed_values(model, scope):
        body.stamp(item.field.api, item.value)


def singleton_id(model: ModelMeta, scope: Scope) -> str:
    """The id of the one row a scope has: each tenant gets its own, always the same."""
    values = {item.field.name: str(item.value) for item in fixed_values(model, scope)}
    if not values:
        return SINGLETON_ID
    digest = hashlib.blake2b(repr(sorted(values.items())).encode(), digest_size=12)
    return f"{SINGLETON_ID}-{digest.hexdigest()}"
