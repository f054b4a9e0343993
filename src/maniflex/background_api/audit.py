"""The tables of audit trails over REST, for those who may read them; nobody writes them here.

An admin with a tenant sees the records of that tenant; one without a tenant sees all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from maniflex.audit.tables import TABLES, AuditLogRow, ReadAuditLogRow
from maniflex.background.commands import CallerReach
from maniflex.background_api.part_routes import reach_of, rename_route, require_identity
from maniflex.errors import Forbidden
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.rules.policies import TablePolicy
from maniflex.pipeline.rules.reach import Guard, view_through
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Narrowed

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
            models, reached = self._models.values(), routes.reached
            self._guards[table] = reached.guards(models, meta, Operation.LIST, item=False)
            functions = reached.entries_before(models, meta, Operation.LIST, item=False)
            binds_rows = runtime.rules.bind_rows or any(not isinstance(f, Entry) for f in functions)
            if binds_rows and issubclass(table, AuditLogRow | ReadAuditLogRow):
                runtime.rules.add_policy(table, TablePolicy(self.allows, None, has_where=False))

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
        view = (await self._views(ctx)).get(meta.name, ctx) or ctx
        scope, judge = view.forced, ctx.runtime.rules[meta.cls].judge_of_included
        now = await judge.find_kept(record_id)
        if now is not None and not await judge.allows_row(view, now, scope):
            return False
        if not isinstance(record, AuditLogRow):
            return True
        states = [record.result or {}]
        if record.changes and record.operation == Operation.UPDATE:
            states.append({**states[0], **{name: side.get("from") for name, side in record.changes.items()}})
        return await judge.allows_states(view, states, now, scope)

    async def _take_out_hidden(self, ctx: Context, record: Any) -> None:
        """Show no value that the caller may not see, nor one of a field that became a secret since."""
        parts = [part for part in ("result", "changes") if getattr(record, part, None)]
        if not parts:
            return
        meta = self._models.get(record.model)
        runtime = ctx.runtime
        names: Collection[str] | None = ()
        if meta is not None:
            names = await runtime.rules[meta.cls].unshown_fields(ctx)
        elif runtime.rules.bind_rows or runtime.rules.has_redactions:
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
