"""Talk to a server in-process: migrated, on a database of its own, without a socket."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from maniflex._clock import Clock
from maniflex.app.server import Server
from maniflex.config import Settings
from maniflex.errors import ConfigError

if TYPE_CHECKING:
    import httpx


@asynccontextmanager
async def client(
    server: Server,
    *,
    database: str | None = ":memory:",
    headers: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    background: bool = False,
    own_schema: bool = False,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the started server, which works in the background only when told to.

    Its tables are made, whatever `auto_migrate` says. `database=None` keeps the database the server was
    declared with, and then the settings say whether tables are made. With `own_schema` the block gets an
    empty schema of a PostgreSQL database, which is dropped at its end.
    """
    httpx = _httpx()
    settings: Settings = {"background": background}
    address = server.config.database if database is None else database
    if database is not None or own_schema:
        settings["auto_migrate"] = True  # no migration has made its tables
    if own_schema and not (isinstance(address, str) and address.startswith(("postgres:", "postgresql:"))):
        raise ConfigError('own_schema needs PostgreSQL: database="postgresql://…"')
    schema = f"maniflex_test_{secrets.token_hex(8)}" if own_schema else None
    if schema is not None:
        settings["schema"] = schema
    makes_tables = database is not None or own_schema
    with server.on_database(database, clock=clock, makes_tables=makes_tables, **settings):
        try:
            async with server.lifespan():
                transport = httpx.ASGITransport(app=server, raise_app_exceptions=True)
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://test", headers=headers
                ) as http:
                    yield http
        finally:
            if schema is not None:
                await _drop(address, schema)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as missing:
        raise ImportError("maniflex.testing.client needs httpx: pip install httpx") from missing
    return httpx


async def _drop(database: str, schema: str) -> None:
    async with Server(database).lifespan(role="client") as server:
        await server.raw_exec(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
