"""The keys of clients: each caller has its own, so two callers may use the same key for different runs.

A key that came over REST is stored as `@tenant/actor:key`. Its caller never sees that: answers show
the key as it was said, and filters by it find it. The admin role, who sees the keys of all, sees them
as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from maniflex._tables import PartialTable
from maniflex.pipeline.request_query import RequestQuery
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter

KEYS = ("idempotency_key", "group_key")
_WIDENED = PartialTable(
    {Op.EQ: Op.IN, Op.IN: Op.IN, Op.NEQ: Op.NOT_IN, Op.NOT_IN: Op.NOT_IN},
    others="compare with something else than whole keys",
)


def mark(tenant_id: str | None, actor_id: str | None) -> str:
    """What the stored keys of a caller begin with."""
    return f"@{quote(tenant_id or '', safe='')}/{quote(actor_id or '', safe='')}:"


def client_keys(record: Mapping[str, Any], own: str) -> dict[str, Any]:
    """The keys of a record as its caller said them; `own` is the caller's mark."""
    if "actor_id" in record and "tenant_id" in record:
        own = mark(record["tenant_id"], record["actor_id"])  # middleware may have said whose it is
    return {name: record[name].removeprefix(own) for name in KEYS if isinstance(record.get(name), str)}


def match_client_keys(query: RequestQuery, own: str) -> None:
    """Have filters by a key find it as it was said, and as code may have stored it."""
    query.filters = tuple(_widen(item, own) for item in query.filters)


def widen_key_filter(condition: tuple[str, str, Any], own: str) -> tuple[str, str, Any]:
    """The same for a condition of a page of the panel."""
    field, op, value = condition
    return (field, "in", [value, own + value]) if field in KEYS and op == "eq" else condition


def _widen(item: Filter, own: str) -> Filter:
    if isinstance(item, AnyOf):
        conditions = [one for condition in item.conditions for one in _stored_variants(condition, own)]
        return AnyOf(tuple(conditions))
    variants = _stored_variants(item, own)
    return variants[0] if len(variants) == 1 else AnyOf(variants)


def _stored_variants(item: Compare, own: str) -> tuple[Compare, ...]:
    if item.field.name not in KEYS or item.value is None:
        return (item,)
    if item.op is Op.STARTS_WITH:
        return (item, replace(item, value=own + item.value))
    if item.op in _WIDENED:
        values = item.value if isinstance(item.value, tuple) else (item.value,)
        wide = (*values, *(own + value for value in values if value is not None))
        return (replace(item, op=_WIDENED[item.op], value=wide),)
    return (item,)
