"""A server with durable work, and who calls it, for the tests of its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import BaseModel

from maniflex import AuthInfo, Context, Model, Next, Run, Server, field
from maniflex.testing import client
from tests.kit.http import data_of

RUNS = "/api/workflow_run"
EVENTS = "/api/workflow_event"
ADA = {"x-user": "ada", "x-tenant": "acme"}
BOB = {"x-user": "bob", "x-tenant": "acme"}
ADA_ELSEWHERE = {"x-user": "ada", "x-tenant": "other"}
ADA_NOWHERE = {"x-user": "ada"}
ROOT = {"x-user": "root", "x-roles": "admin"}
TENANT_ADMIN = {"x-user": "tina", "x-tenant": "acme", "x-roles": "admin"}
STRANGERS = (BOB, ADA_ELSEWHERE, ADA_NOWHERE)


class Receipt(BaseModel):
    order_id: int


class Order(Model):
    number: str = field(filterable=True)


async def known(ctx: Context, next: Next) -> None:
    """Whoever the headers say."""
    if user := ctx.header("x-user"):
        roles = (ctx.header("x-roles") or "").split(",")
        ctx.auth = AuthInfo(user_id=user, roles=roles, tenant_id=ctx.header("x-tenant") or "")
    await next()


def a_server(**settings: Any) -> Server:
    server = Server(background=False, **settings)
    server.register(Order)
    server.pipeline.auth.register(known)

    @server.work.handler("default.echo", public=True, max_priority=10)
    async def echo(run: Run) -> Any:
        return run.payload

    @server.work.handler("default.fail", public=True, max_attempts=1)
    async def fail(run: Run) -> None:
        raise ValueError("no luck")

    @server.work.handler("email.receipt.v1", public=True, payload=Receipt)
    async def receipt(run: Run) -> None: ...

    @server.work.handler("default.closed")
    async def closed(run: Run) -> None: ...

    @server.work.handler("default.secret", internal=True)
    async def secret(run: Run) -> None: ...

    @server.action("POST", "/orders/{id}/pay")
    async def pay(ctx: Context) -> None:
        await server.work.submit("default.echo", {"order": ctx.url_param("id")})

    return server


@dataclass
class Site:
    server: Server
    http: httpx.AsyncClient

    async def submit(self, who: dict[str, str] = ADA, **body: Any) -> Any:
        answer = await self.http.post(RUNS, json={"type": "default.echo", **body}, headers=who)
        return data_of(answer, 201)

    async def drain(self) -> int:
        return await self.server.work.worker().drain()


@asynccontextmanager
async def site_on(server: Server, database_url: str) -> AsyncIterator[Site]:
    async with client(server, database=database_url) as http:
        yield Site(server, http)
