"""The server whose histories are looked at: invoices of tenants, their lines, and what else is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
from pydantic import JsonValue

from maniflex import AuthInfo, Context, Model, Server, scheduled
from maniflex import field as column
from maniflex.middleware import db
from maniflex.testing import FakeClock, client


class Customer(Model, table="hist_customers", versioned=True):
    name: str = ""
    tenant_id: str = column(default="", relation=None, filterable=True)


class Invoice(
    Model, table="hist_invoices", soft_delete=True, restore=True, versioned=True, history_restore=True
):
    number: str = column(default="", filterable=True, sortable=True)
    amount: Decimal = column(default=Decimal(0), filterable=True, sortable=True)
    stars: int = column(default=0, filterable=True, sortable=True)
    rate: float | None = column(default=None, filterable=True, sortable=True)
    due: datetime | None = column(default=None, filterable=True, sortable=True)
    paid: bool = column(default=False, filterable=True)
    data: JsonValue | None = None
    password: str = column(default="", writeonly=True)
    cost_centre: str = column(default="", hidden=True)
    tenant_id: str = column(default="", relation=None, filterable=True)
    customer_id: str | None = column(default=None, relation="Customer", on_delete="set_null")
    publish_at: datetime | None = scheduled(default=None, set_field="number", to="published")
    expires_at: datetime | None = scheduled(default=None, soft_delete=True)


class Line(Model, table="hist_lines", versioned=True):
    text: str = column(default="", filterable=True, sortable=True)
    invoice_id: str = column(relation="Invoice", on_delete="cascade")


class Ledger(Model, table="hist_ledger", versioned_diff_only=True):
    text: str | None = column(default="", alias="entry")
    amount: Decimal = Decimal(0)
    tenant_id: str = column(default="", relation=None)


class Setting(Model, table="hist_settings", singleton=True, versioned=True, history_restore=True):
    theme: str = "light"


class Plain(Model, table="hist_plain"):
    name: str = ""


MODELS = (Customer, Invoice, Line, Ledger, Setting, Plain)


@dataclass
class World:
    server: Server
    http: httpx.AsyncClient
    clock: FakeClock

    def tick(self, seconds: float = 1) -> datetime:
        self.clock.advance(timedelta(seconds=seconds))
        return self.clock.now()

    async def invoice(self, **values: Any) -> dict[str, Any]:
        made = await self.http.post("/hist_invoices", json=values)
        assert made.status_code == 201, made.text
        return dict(made.json()["data"])

    async def history(self, record_id: str, table: str = "hist_invoices") -> list[dict[str, Any]]:
        """All versions, oldest first."""
        answer = await self.http.get(f"/{table}/{record_id}/history?sort=version&limit=100")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"])

    async def versions(self, model: type[Model], **filters: Any) -> list[Any]:
        """The rows of a history as code sees them, oldest first."""
        return await self.server.db(f"{model.__name__}History").list(filters or None, "id")


async def who_asks(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
    user = ctx.header("x-user")
    if user:
        roles = tuple((ctx.header("x-roles") or "").split(","))
        ctx.auth = AuthInfo(user_id=user, tenant_id=ctx.header("x-tenant") or "", roles=roles)
    await next()


@asynccontextmanager
async def a_world(
    url: str, *, tenants: bool = False, prepare: Callable[[Server], None] | None = None
) -> AsyncIterator[World]:
    server, clock = Server(path_prefix=""), FakeClock()
    server.register(*MODELS)
    server.pipeline.auth.register(who_asks)
    if tenants:
        server.pipeline.auth.register(db.tenancy(unless_role="operator"), models=[Customer, Invoice, Ledger])
        via = db.force_filter_via("invoice", "tenant_id", _tenant, unless_role="operator")
        server.pipeline.auth.register(via, models=[Line])
    if prepare is not None:
        prepare(server)
    async with client(server, database=url, clock=clock) as http:
        yield World(server, http, clock)


def _tenant(ctx: Context) -> str:
    return ctx.require_auth().tenant_id


def as_tenant(name: str, *roles: str) -> dict[str, str]:
    return {"x-user": f"user-of-{name}", "x-tenant": name, "x-roles": ",".join(roles)}
