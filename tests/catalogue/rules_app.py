"""Servers and callers for the tests of body, validate, service and workflow entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Next, Server
from maniflex._clock import Clock
from maniflex.pipeline.entry import Entry
from maniflex.testing import client


async def read_caller(ctx: Context, next: Next) -> None:
    """Take who is asking from headers: `X-User`, `X-Roles`, `X-Org`."""
    user = ctx.header("x-user")
    if user:
        roles = (ctx.header("x-roles") or "").split()
        ctx.auth = AuthInfo(user_id=user, roles=roles, tenant_id=ctx.header("x-org") or "")
    await next()


async def bind_org(ctx: Context, next: Next) -> None:
    """Bind the request to the rows of the caller's organisation."""
    if ctx.auth is not None and ctx.auth.tenant_id:
        ctx.query.force("org_id", ctx.auth.tenant_id)
    await next()


def build(models: Sequence[Any], *entries: tuple[str, Entry] | Entry, **settings: Any) -> Server:
    """A server of these models with entries on their steps; an entry alone stands on `validate`."""
    server = Server(**settings)
    server.register(*models)
    server.pipeline.auth.register(read_caller)
    for item in entries:
        step, entry = item if isinstance(item, tuple) else ("validate", item)
        getattr(server.pipeline, step).register(entry)
    return server


@asynccontextmanager
async def serve(
    database: str,
    models: Sequence[Any],
    *entries: tuple[str, Entry] | Entry,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of such a server."""
    async with client(build(models, *entries, **settings), database=database, clock=clock) as http:
        yield http


def as_user(name: str, *roles: str, org: str = "") -> dict[str, str]:
    """The headers of a caller."""
    return {"X-User": name, "X-Roles": " ".join(roles), "X-Org": org}
