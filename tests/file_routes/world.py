"""An application with files of every sort, on a local or a memory storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx

from maniflex import Context, Model, Next, Server, field, file
from maniflex.pipeline.context import AuthInfo
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
PDF = b"%PDF-1.7\n" + b"x" * 500
HTML = b"<!doctype html><script>alert(1)</script>"


class Album(Model):
    title: str = field(max_length=50)
    year: int | None = field(default=None)
    is_public: bool = field(default=False)
    released: datetime | None = field(default=None)
    facts: dict[str, Any] | None = field(default=None)
    cover: str | None = file(default=None, max_size=2000, accept=["image/*"])
    scans: list[str] = file(default_factory=list, max_count=3)
    proof: str | None = file(default=None, readonly=True)
    secret: str | None = file(default=None, writeonly=True)
    hidden_one: str | None = file(default=None, hidden=True)
    stamp: str | None = file(default=None, immutable=True)


class Film(Model):
    title: str
    video: str | None = file(default=None, upload="stream", max_size="2GB")
    notes: str | None = file(default=None)


class Shot(Model):
    name: str
    image: str | None = file(default=None, acl="signed")
    poster: str | None = file(default=None, acl="public")
    stills: list[str] = file(default_factory=list, acl="signed")


MODELS = (Album, Film, Shot, Note)


async def by_header(ctx: Context, next: Next) -> None:
    """Whoever the header `x-user` names is asking, of the tenant `x-tenant` and with the role `x-role`."""
    user, tenant = ctx.header("x-user"), ctx.header("x-tenant")
    if user or tenant:
        role = ctx.header("x-role")
        ctx.auth = AuthInfo(user_id=user or "", tenant_id=tenant or "", roles=[role] if role else [])
    await next()


def a_server(storage: Any = "memory:", *models: Any, **settings: Any) -> Server:
    server = Server(storage=storage, **settings)
    server.register(*(models or MODELS))
    server.pipeline.auth.register(by_header)
    return server


@asynccontextmanager
async def site(server: Server, database: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server, database=database, **more) as http:
        yield http


async def stored_keys(server: Server) -> set[str]:
    """What lies in the storage after one sweep."""
    await server.files.sweep()
    storage: Any = server.files.desk.storage
    return {key async for key in storage.list_keys()}


async def rows_of_files(server: Server) -> set[str]:
    rows = await server.files.desk.rows.page("", 1000)
    return {row.key for row in rows}


async def assert_nothing_stored(server: Server) -> None:
    """Neither an object nor a row is left after a sweep, and after that of the server if it has begun one."""

    async def is_empty() -> bool:
        return not (await stored_keys(server) or await rows_of_files(server))

    await eventually(is_empty, "an empty storage")
