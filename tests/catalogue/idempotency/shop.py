"""A small application with idempotency keys, and ways to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.middleware import idempotency
from maniflex.testing import FakeClock, client


class Order(Model, table="orders", optimistic_lock=True, soft_delete=True, restore=True):
    title: str = ""
    number: str | None = field(default=None, unique=True)
    secret: str = field(default="", writeonly=True)


class Refund(Model, table="refunds"):
    title: str = ""


async def identify(ctx: Context, next: Next) -> None:
    """Believe the header `x-user`, written `tenant/user`; `revoked` is nobody, `demoted` may not write."""
    tenant, _, user = (ctx.header("x-user") or "").rpartition("/")
    state = ctx.header("x-state")
    if state == "revoked":
        ctx.abort(401, "UNAUTHORIZED", "the token was revoked")
    if state == "demoted":
        ctx.abort(403, "FORBIDDEN", "the role is gone")
    if user:
        ctx.auth = AuthInfo(user_id=user, tenant_id=tenant)
    await next()


def shop(entry: Any = None, **settings: Any) -> Server:
    server = Server(path_prefix="", **settings)
    server.register(Order, Refund)
    server.pipeline.auth.register(identify)
    server.pipeline.deserialize.register(entry or idempotency.keys(), at="after")
    return server


@asynccontextmanager
async def asking(
    server: Server, database: str, clock: FakeClock | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server, database=database, clock=clock) as http:
        yield http


def keyed(key: str = "a-key", **headers: str) -> dict[str, str]:
    return {"idempotency-key": key, **{name.replace("_", "-"): value for name, value in headers.items()}}


def is_replay(answer: httpx.Response) -> bool:
    return "idempotent-replayed" in answer.headers


async def post(
    http: httpx.AsyncClient, path: str = "/orders", key: str = "a-key", **body: Any
) -> httpx.Response:
    return await http.post(path, json=body or {"title": "tea"}, headers=keyed(key))
