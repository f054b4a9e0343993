"""The tables of audit trails over REST, for those who may read them; nobody writes them here.

An admin with a tenant sees the records of that tenant; one without a tenant sees all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from maniflex.audit.tables import TABLES, AuditLogRow, ReadAuditLogRow
from maniflex.background.commands import CallerReach
from maniflex.background_api.own_rows import reach_of, require_identity
from maniflex.background_api.part_routes import rename_route
from maniflex.db.current import executor
from maniflex.db.past_rows import past_record
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import Forbidden
from maniflex.model.base import Model
from maniflex.model.history_row import secret_names
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.rules.policies import ModelPolicies, TablePolicy
from maniflex.pipeline.rules.reach import Guard, view_through
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Forced, Narrowed, Scope, holds, leaves
from maniflex.sql import select

_READS = frozenset({Operation.LIST, Operation.READ, Operation.HEAD})


class AuditReaders:
    """Lets the admin role pass, bound to its tenant."""

    __name__ = "audit_readers"

    def __init__(self, admin_role: str) -> None:
        self._admin_role = admin_role

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:  # which shows no record
            reach = reach_of(ctx, self._admin_role)
            if reach is CallerReach.OWN:
                raise Forbidden()
            if reach is CallerReach.TENANT:
                ctx.query.force("tenant_id", require_identity(ctx).tenant_id)
        await next()


class TrailRules:
    """The rules of audited models, as they bind the rows of a trail: guards, scopes, policies, redaction.

    Who may not read a record reads nothing of it in the trail, neither as it is now nor as a row tells that
    it was. What of a record that is gone cannot be told is not shown.
    """

    def __init__(self) -> None:
        self._guards: dict[type[Model], dict[ModelMeta, Guard]] = {}  # by table of the trail
        self._models: dict[str, ModelMeta] = {}

    def prepare(self, routes: RouteBuilder, tables: Collection[type[Model]]) -> None:
        """The server is put together: its models have all their rules."""
        runtime = routes.runtime
        self._models = {s.meta.name: s.meta for s in runtime.stores.values() if not s.meta.is_internal}
        for table in (table for table in tables if table in runtime.stores):
            meta = runtime.stores[table].meta
            models, composer = self._models.values(), routes.composer
            self._guards[table] = composer.guards(models, meta, Operation.LIST, item=False)
            functions = composer.entries_before(models, meta, Operation.LIST, item=False)
            binds_rows = (
                runtime.scopes or runtime.policies or any(not isinstance(f, Entry) for f in functions)
            )
            if binds_rows and issubclass(table, AuditLogRow | ReadAuditLogRow):
                policy = TablePolicy(self.allows, None, has_where=False)
                runtime.policies[meta.name] = ModelPolicies(meta.name, [policy])

    async def show_rows(self, ctx: Context, next: Next) -> None:
        """The middleware of the tables: leave out closed models, and fields that the caller may not see."""
        views = await self._views(ctx)
        closed_names = [name for name, view in views.items() if view is None]
        field = ctx.model.by_name.get("model")
        if closed_names and field is not None:
            is_open = AnyOf((Compare(field, Op.NOT_IN, tuple(closed_names)), Compare(field, Op.IS_NULL)))
            query = ctx.current_query()
            ctx._query = query.with_scope((*query.forced, Narrowed(is_open, ctx.model.name)))
        await next()
        if ctx.operation in (Operation.LIST, Operation.READ):
            records = ctx.result.items if isinstance(ctx.result, Page) else [ctx.result]
            for record in records:
                await self._take_out_hidden(ctx, record)

    async def allows(self, ctx: Context, record: Any) -> bool:
        """Whether the caller may read of the record that a row of the trail is about."""
        meta = self._models.get(record.model or "")
        record_id = record.resource_id if isinstance(record, AuditLogRow) else record.record_id
        if meta is None or not record_id:
            return True
        view = (await self._views(ctx)).get(meta.name, ctx)
        subject = _AuditedRecord(ctx, meta, view or ctx)
        now = await subject.find_now(record_id)
        if now is not None and not await subject.allows_row(now):
            return False
        if not isinstance(record, AuditLogRow):
            return True
        states = [record.result or {}]
        if record.changes and record.operation == Operation.UPDATE:
            states.append({**states[0], **{name: side.get("from") for name, side in record.changes.items()}})
        return all([await subject.allows_state(state, now) for state in states])

    async def _take_out_hidden(self, ctx: Context, record: Any) -> None:
        """Show no value that the caller may not see, nor one of a field that became a secret since."""
        parts = [part for part in ("result", "changes") if getattr(record, part, None)]
        if not parts:
            return
        meta = self._models.get(record.model)
        runtime = ctx.runtime
        names: set[str] | None = set()
        if meta is not None:
            names = {*secret_names(meta), *await ctx.redacted(meta.cls)}
        elif runtime.scopes or runtime.policies or runtime.redactions:
            names = None  # the model is gone, so nobody can say who may see its records
        for part in parts:
            values = getattr(record, part)
            rest = None if names is None else {name: v for name, v in values.items() if name not in names}
            setattr(record, part, rest)

    async def _views(self, ctx: Context) -> dict[str, Context | None]:
        """By model, the request as its guards let it pass, or None where they refuse it."""
        if ctx.rule_values is None:
            ctx.rule_values = {}
        views: dict[str, Context | None] | None = ctx.rule_values.get(self)
        if views is None:
            views = ctx.rule_values[self] = {}
            for meta, guard in self._guards.get(ctx.model.cls, {}).items():
                views[meta.name] = await view_through(ctx, meta, guard)
        return views


class _AuditedRecord:
    """The records of one audited model, as one caller may read them."""

    def __init__(self, ctx: Context, meta: ModelMeta, view: Context) -> None:
        self._view = view
        self._store = ctx.runtime.stores[meta.cls]
        self._meta = meta
        self._scope = view.forced
        of_model = ctx.runtime.policies.get(meta.name)
        self._policies = None if of_model is None else of_model.of_included

    async def find_now(self, record_id: str) -> Row | None:
        """The record as it is, also one that is marked as deleted."""
        return await self._fetch(self._store, record_id, ())

    async def allows_row(self, row: Row) -> bool:
        """Whether a row that is there is inside the scope and allowed by policies."""
        record = self._store.record(row)
        if self._scope and await self._fetch(self._store, record.id, self._scope) is None:
            return False
        return self._policies is None or await self._policies.allow(self._view, record)

    async def allows_state(self, state: Mapping[str, Any], now: Row | None) -> bool:
        """The same of the record as it was; what the trail does not keep, it is taken to have had as now."""
        then = past_record(self._meta, 0, state)
        if now is None and then.missing and (self._policies is not None or self._asks_for(then.missing)):
            return False
        pairs = zip(self._meta.fields, then.row, then.row if now is None else now, strict=True)
        row = [is_now if field.name in then.missing else was for field, was, is_now in pairs]
        values = {field.name: value for field, value in zip(self._meta.fields, row, strict=True)}
        for rule in self._scope:
            condition = rule.on(self._meta)
            items = leaves(() if condition is None else (condition,))
            if condition is not None and not any([await self._holds(item, rule, values) for item in items]):
                return False
        return self._policies is None or await self._policies.allow(self._view, self._store.record(row))

    def _asks_for(self, names: Collection[str]) -> bool:
        """Whether the scope compares one of these fields, or follows one of these keys."""
        for rule in self._scope:
            condition = rule.on(self._meta)
            for item in leaves(() if condition is None else (condition,)):
                if (item.path[0].key if item.path else item.field.name) in names:
                    return True
        return False

    async def _holds(self, item: Compare, rule: Forced | Narrowed, values: Mapping[str, Any]) -> bool:
        if not item.path:
            return holds(item.op, values.get(item.field.name), item.value)
        parent, key = item.path[0], item.path[0].key
        parent_id = values.get(key or "")
        if parent_id is None or not isinstance(rule, Forced):
            return False
        condition = replace(rule, name=rule.name.partition(".")[2], model=parent.target)
        store = self._view.runtime.store(parent.target)
        return await self._fetch(store, str(parent_id), (condition,)) is not None

    async def _fetch(self, store: Store, record_id: str, scope: Scope) -> Row | None:
        row = await executor(store.adapter).fetch_one(select.kept_one(store.sql, record_id, (), scope))
        return row if row is None or store.decode is None else store.decode(row)


class AuditRoutes:
    """The routes of the tables that a `TableSink(routes=True)` writes."""

    def __init__(self, routed_tables: Callable[[], Mapping[type[Model], str]]) -> None:
        self._routed_tables = routed_tables
        self._rules = TrailRules()

    def options(self) -> Mapping[type[Model], ModelOptions]:
        routed = self._routed_tables()
        return {
            table: ModelOptions(
                operations=_READS,
                middleware={"auth": AuditReaders(routed[table]), "db": self._rules.show_rows},
            )
            if table in routed
            else ModelOptions(headless=True)
            for table in TABLES.values()
        }

    def prepare(self, routes: RouteBuilder) -> None:
        """Learn the rules of the audited models, which bind the rows of the trail."""
        self._rules.prepare(routes, self._routed_tables())

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        tables = self._routed_tables()
        endpoints = []
        for endpoint in usual:
            meta = endpoint.model
            is_own = meta is not None and meta.cls in tables
            rename = partial(rename_route, f"{meta.table}_record", meta.table) if is_own and meta else None
            endpoints.append(endpoint if rename is None else rename(endpoint))
        return endpoints
