"""Talk to a server in-process: migrated, on a database of its own, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from maniflex.server import Server

try:
    import httpx
except ImportError as missing:
    raise ImportError("maniflex.testing.client needs httpx: pip install httpx") from missing


@asynccontextmanager
async def client(
    server: Server, *, database: str | None = ":memory:", headers: Mapping[str, str] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the started server; `database=None` keeps the one the server was declared with."""
    with server.on_database(server.config.database if database is None else database):
        async with server.lifespan():
            transport = httpx.ASGITransport(app=server, raise_app_exceptions=True)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", headers=headers
            ) as http:
                yield http
