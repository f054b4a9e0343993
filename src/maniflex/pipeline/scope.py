"""What the forced conditions of a request mean for the model it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from maniflex.db.stamp import stamp as stamp
from maniflex.db.store import Store
from maniflex.errors import UnusableScope
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.body import Body
from maniflex.query.operators import Op
from maniflex.query.tree import Compare, Forced, Scope, related_models

SINGLETON_ID = "singleton"


def binding(store: Store, scope: Scope) -> Scope:
    """The scope, if each part binds this model or one it is related to; else the model is not looked at."""
    missing = unbound(scope, (store.meta,))
    if missing is not None:
        missing = unbound(scope, (store.meta, *related_models(store.meta, store.models)))
    if missing is not None:
        raise UnusableScope(f"{store.meta.name} cannot be bound by {missing.name!r}: it has no such field")
    return scope


def unbound(scope: Scope, models: Sequence[ModelMeta]) -> Forced | None:
    """A condition for all models that binds none of these, neither by itself nor by another way.

    Conditions with one operator and one value say one thing of different models: `tenant_id` binds the
    orders and `order.tenant_id` their lines. So it is enough if one of them binds.
    """
    conditions = [forced for forced in scope if isinstance(forced, Forced)]
    for forced in conditions:
        ways = [other for other in conditions if other.asks_like(forced)] if forced.model is None else ()
        if ways and not any(way.binds(meta) for meta in models for way in ways):
            return forced
    return None


def stamp_body(model: ModelMeta, scope: Scope, body: Body) -> None:
    """Put what the scope settles into a body, before anybody misses it there."""
    for forced in scope:
        compare = forced.on(model)
        if isinstance(compare, Compare) and compare.op is Op.EQ and not compare.path:
            body.stamp(compare.field.api, compare.value)


def singleton_id(model: ModelMeta, scope: Scope) -> str:
    """The id of the one row a scope has: each tenant gets its own, always the same."""
    settled = {}
    for forced in scope:
        compare = forced.on(model)
        if isinstance(compare, Compare) and compare.op is Op.EQ and not compare.path:
            settled[compare.field.name] = str(compare.value)
    if not settled:
        return SINGLETON_ID
    digest = hashlib.blake2b(repr(sorted(settled.items())).encode(), digest_size=12)
    return f"{SINGLETON_ID}-{digest.hexdigest()}"
