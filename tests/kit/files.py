"""A server with files, and looking at what its storage and its tables have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, file
from maniflex.files.store import FileState
from maniflex.storage import MemoryStorage
from maniflex.testing import client

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
PDF = b"%PDF-1.7 pages"


class Album(Model):
    """A model with one file and a list of files."""

    title: str = "untitled"
    cover: str | None = file(default=None, max_size=100, accept=["image/*"])
    scans: list[str] = file(default_factory=list, max_count=3)


async def who_asks(ctx: Context, next: Next) -> None:
    """The caller is whoever the headers say: `x-tenant`, `x-user`."""
    tenant, user = ctx.header("x-tenant") or "", ctx.header("x-user") or ""
    if tenant or user:
        ctx.auth = AuthInfo(user_id=user, tenant_id=tenant)
    await next()


class Archive:
    """A started server with files, its storage and a client of it."""

    def __init__(self, server: Server, storage: Any, http: httpx.AsyncClient) -> None:
        self.server = server
        self.storage = storage
        self.http = http
        self.files = server.files

    async def put(self, data: bytes = PNG, name: str = "a.png", **options: Any) -> str:
        """Store a file as code does; its key."""
        return (await self.files.store(data, filename=name, **options)).key

    async def upload_as(self, data: bytes = PNG, *, tenant: str = "", user: str = "") -> str:
        """Store a file in the name of a caller; its key."""
        headers = {"x-tenant": tenant, "x-user": user}
        response = await self.http.post("/api/uploads", content=data, headers=headers)
        assert response.status_code == 200, response.text
        return str(response.json()["data"]["key"])

    async def objects(self) -> set[str]:
        """The keys of what the storage has."""
        return {key async for key in self.storage.list_keys()}

    async def state(self, key: str) -> FileState | None:
        """The state of a file; None where it has no row."""
        row = await self.files.find(key)
        return None if row is None else row.state

    async def read(self, key: str) -> bytes:
        async with await self.files.open(key) as reader:
            return await reader.read()

    async def swept(self) -> set[str]:
        """The keys of what the storage has after one sweep."""
        await self.files.sweep()
        return await self.objects()


@asynccontextmanager
async def an_archive(
    database: str,
    *models: Any,
    storage: Any = None,
    clock: Any = None,
    background: bool = False,
    **settings: Any,
) -> AsyncIterator[Archive]:
    """A server with these models, or with `Album`, on a storage in memory unless told."""
    place = MemoryStorage(clock=clock) if storage is None else storage
    server = Server(storage=place, **settings)
    server.register(*(models or (Album,)))
    server.pipeline.auth.register(who_asks)

    @server.action("POST", "/uploads")
    async def upload(ctx: Context) -> dict[str, str]:
        stored_file = await server.files.store(await ctx.request.body(), filename="a.png")
        return {"key": stored_file.key}

    async with client(server, database=database, clock=clock, background=background) as http:
        yield Archive(server, place, http)


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
