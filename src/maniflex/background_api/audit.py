"""The tables of audit trails over REST, for those who may read them; nobody writes them here.

An admin with a tenant sees the records of that tenant; one without a tenant sees all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from maniflex.audit.tables import TABLES
from maniflex.background_api.part_routes import rename_route
from maniflex.background_api.reach import CallerReach, reach_of, require_identity
from maniflex.errors import Forbidden
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.model.secrets import secret_names
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import RouteBuilder

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


async def take_out_secrets(ctx: Context, next: Next) -> None:
    """Show no value of a field that became a secret after its records were written."""
    await next()
    if ctx.operation not in (Operation.LIST, Operation.READ):
        return
    secrets = {store.meta.name: secret_names(store.meta) for store in ctx.runtime.stores.values()}
    records = ctx.result.items if isinstance(ctx.result, Page) else [ctx.result]
    for record in records:
        names = secrets.get(getattr(record, "model", None) or "")
        for part in ("result", "changes") if names else ():
            values = record.__dict__.get(part)
            if values:
                setattr(record, part, {name: v for name, v in values.items() if name not in (names or ())})


class AuditRoutes:
    """The routes of the tables that a `TableSink(routes=True)` writes."""

    def __init__(self, routed_tables: Callable[[], Mapping[type[Model], str]]) -> None:
        self._routed_tables = routed_tables

    def options(self) -> Mapping[type[Model], ModelOptions]:
        routed = self._routed_tables()
        return {
            table: ModelOptions(
                operations=_READS,
                middleware={"auth": AuditReaders(routed[table]), "db": take_out_secrets},
            )
            if table in routed
            else ModelOptions(headless=True)
            for table in TABLES.values()
        }

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        tables = self._routed_tables()
        endpoints = []
        for endpoint in usual:
            meta = endpoint.model
            is_own = meta is not None and meta.cls in tables
            rename = partial(rename_route, f"{meta.table}_record", meta.table) if is_own and meta else None
            endpoints.append(endpoint if rename is None else rename(endpoint))
        return endpoints
