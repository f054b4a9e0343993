"""A small application with limits, and ways to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.testing import FakeClock, client


class Note(
    Model, table="notes", export=True, aggregate=True, soft_delete=True, restore=True, cursor_field="id"
):
    text: str = field(default="", filterable=True, sortable=True)
    email: str | None = field(default=None, column="mail", alias="e_mail")


class Tag(Model, table="tags"):
    name: str = "red"


async def identify(ctx: Context, next: Next) -> None:
    """Believe the header `x-user`, written `tenant/user`."""
    tenant, _, user = (ctx.header("x-user") or "").rpartition("/")
    if user:
        ctx.auth = AuthInfo(user_id=user, tenant_id=tenant)
    await next()


def shop(**settings: Any) -> Server:
    server = Server(path_prefix="", **settings)
    server.register(Note, Tag)
    server.pipeline.auth.register(identify)
    return server


@asynccontextmanager
async def asking(
    server: Server, database: str, clock: FakeClock | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server, database=database, clock=clock or FakeClock()) as http:
        yield http


@asynccontextmanager
async def from_address(server: Server, address: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a started server that seems to come from an address, each time from another port."""
    transport = httpx.ASGITransport(app=server, client=(address, 40_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def statuses(http: httpx.AsyncClient, path: str, times: int, **options: Any) -> list[int]:
    return [(await http.get(path, **options)).status_code for _ in range(times)]
