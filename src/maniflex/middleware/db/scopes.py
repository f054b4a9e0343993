"""Scopes: rules that say which rows a caller may touch. They belong to models and follow their rows."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, ClassVar

from maniflex._names import did_you_mean
from maniflex.db.backed_store import why_apart
from maniflex.errors import CallbackFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.model.registry import name_of, unknown_model
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.rules.scopes import ScopeRule
from maniflex.query.query import Models, field_along

Roles = str | Iterable[str] | None


def force_filter(field: str, value: Any, op: str = "eq", *, unless_role: Roles = None) -> ScopeRule:
    """Bind rows to a value of `field`: a constant, or what a function of the context says.

    `db.ALL` as value lifts the rule on purpose. A value that is None or empty is 403.
    """
    return FieldScope(field, value, op, unless_role=unless_role)


def tenancy(
    field: str = "tenant_id",
    tenant: Callable[[Context], Any] | None = None,
    *,
    unless_role: Roles = None,
    shared: Iterable[type[Model] | str] = (),
) -> ScopeRule:
    """Bind rows to the caller's tenant: `ctx.auth.tenant_id`, or what `tenant` says; 403 without one.

    `shared` names the models that all tenants have in common. A role of `unless_role` looks across all
    tenants, until its person chooses one in the panel.
    """
    return TenantRule(field, tenant, unless_role=unless_role, shared=shared)


def force_filter_via(relation: str, field: str, value: Any, *, unless_role: Roles = None) -> ScopeRule:
    """Bind rows to a value in `field` of the record they belong to; dots lead on to its parents."""
    return ParentRule(relation, field, value, unless_role=unless_role)


class FieldScope(ScopeRule):
    """Rows that have a value in a field of their own."""

    name = "db.force_filter"

    def __init__(self, field: Any, value: Any, op: Any, *, unless_role: Roles) -> None:
        super().__init__(field, value, op, unless_role=unless_role)
        if isinstance(field, str) and "." in field:
            self.mistakes.append(f"{field!r} is a path; db.force_filter_via binds through a parent")


class TenantRule(ScopeRule):
    """Rows of the caller's tenant."""

    name = "db.tenancy"

    def __init__(
        self,
        field: Any,
        tenant: Any,
        *,
        unless_role: Roles,
        shared: Iterable[type[Model] | str],
    ) -> None:
        super().__init__(field, _tenant_of if tenant is None else tenant, unless_role=unless_role)
        self._asks_identity = tenant is None and not self._exempt_roles
        self._is_of_identity = tenant is None
        if tenant is not None and not callable(tenant):
            self.mistakes.append(f"tenant is a function of the context, not {tenant!r}")
        models = [shared] if isinstance(shared, type | str) else list(shared)
        self._shared_models = models
        self._shared = {name_of(model) for model in models}

    @property
    def needs_tenant(self) -> bool:
        return self._is_of_identity

    def value_for(self, ctx: Context) -> Any:
        if self._asks_identity:  # what most requests ask, without the memory that callbacks need
            auth = ctx.auth
            return None if auth is None else auth.tenant_id
        try:
            value = super().value_for(ctx)
        except CallbackFailed:
            if ctx.auth is not None:
                raise
            return None  # a function that looks into an identity fails without one
        if value.__class__ is not str and inspect.isawaitable(value):
            return _await_tenant(ctx, value)
        return value

    def exempts(self, ctx: Context) -> bool:
        # Who chose a tenant means its rows: it sees no others, and what it makes belongs there.
        auth = ctx.auth
        return (auth is None or not auth.tenant_chosen) and super().exempts(ctx)

    def may_bind(self, model: ModelMeta) -> bool:
        return model.name not in self._shared

    def problems(self, seat: Seat) -> Iterator[str]:
        yield from super().problems(seat)
        for model in self._shared_models:
            if problem := unknown_model(model, seat.registered):
                yield f"shared: {problem}"
        if seat.is_named:
            for name in sorted(self._shared & {meta.name for meta in seat.models}):
                yield f"shared: {name} is named in models= too; it is bound or shared, not both"

    def warnings(self, seat: Seat) -> Iterator[str]:
        bound_names = {meta.name for meta in self.bound_models(seat)} | self._shared
        if seat.is_named:
            return
        for meta in seat.registered.values():
            if meta.name not in bound_names and not meta.is_internal and not meta.options.headless:
                yield f"{meta.name} has no {self.path!r}: all tenants see its rows; shared= says it is meant"


async def _await_tenant(ctx: Context, tenant: Awaitable[Any]) -> Any:
    try:
        return await tenant
    except CallbackFailed:
        if ctx.auth is not None:
            raise
        return None


def _tenant_of(ctx: Context) -> str | None:
    auth = ctx.auth
    return None if auth is None else auth.tenant_id


class ParentRule(ScopeRule):
    """Rows that belong to a record which has a value in one of its fields."""

    name = "db.force_filter_via"

    def __init__(self, relation: Any, field: Any, value: Any, *, unless_role: Roles) -> None:
        super().__init__(f"{relation}.{field}", value, unless_role=unless_role)
        self._relation, self._field = relation, field
        for what, text in (("relation", relation), ("field", field)):
            if not isinstance(text, str) or not all(text.split(".")):
                self.mistakes.append(f"the {what} is named by a text, not {text!r}")
        if isinstance(field, str) and "." in field:
            self.mistakes.append(f"{field!r} is a path; the way to the parent is the relation")

    def problems(self, seat: Seat) -> Iterator[str]:
        yield from super().problems(seat)
        for meta in self.bound_models(seat):
            place = field_along(meta, self.path, seat.registered)
            parents = [seat.registered[relation.target] for relation in place[0]] if place else []
            for parent in parents:
                if why := why_apart(meta, parent):
                    yield f"{why}, so {meta.name} cannot be bound by {self.path!r}"

    def describe_missing(self, model: ModelMeta, models: Models) -> str:
        for name in self._relation.split("."):
            relation = model.relations.get(name)
            if relation is None:
                return f"{model.name} has no relation {name!r}{did_you_mean(name, model.relations)}"
            if relation.kind is not RelationKind.BELONGS_TO:
                return (
                    f"{model.name}.{name} leads to many records; a row is bound through the one it belongs to"
                )
            model = models[relation.target]
        return f"{model.name} has no field {self._field!r}{did_you_mean(self._field, model.by_name)}"

    def describe_unbound(self, seat: Seat) -> str:
        first = self._relation.partition(".")[0]
        candidates = [meta for meta in seat.registered.values() if first in meta.relations]
        if len(candidates) == 1:
            return self.describe_missing(candidates[0], seat.registered)
        names = {name for meta in seat.registered.values() for name in meta.relations}
        if candidates:
            return f"no model belongs by {self._relation!r} to one that has a field {self._field!r}"
        return f"no model has a relation {first!r}{did_you_mean(first, names)}"


# `db.paginate`: smaller pages.


_EARLY = -50  # so that other middleware sees the page as it will be


class Paginate(Entry):
    """The largest page of lists."""

    name = "db.paginate"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.BEFORE,), "deserialize": (At.AFTER,)}
    acts_for = frozenset({Operation.LIST})

    def __init__(self, max_limit: int) -> None:
        super().__init__()
        self._most = max_limit
        if type(max_limit) is not int or max_limit < 1:
            self.mistakes.append(f"max_limit={max_limit!r} is not a number of rows, which is 1 or more")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("deserialize", self.make, At.AFTER, _EARLY),)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in (Operation.LIST, Operation.HEAD) else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        query = ctx._query
        if query is not None and ctx.aggregation is None and (query.limit or sys.maxsize) > self._most:
            ctx._query = query.with_(limit=self._most)
        await next()


def paginate(max_limit: int) -> Paginate:
    """Give at most `max_limit` rows to a page of a list, even if `limit` asks for more."""
    return Paginate(max_limit)
