"""A started server on a test's database; `tests.kit.http.serving` gives a client of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from maniflex import Server


@asynccontextmanager
async def started(url: str, *models: Any, **settings: Any) -> AsyncIterator[Server]:
    """A server with these models, migrated."""
    server = Server(url, **settings)
    server.register(*models)
    async with server.lifespan():
        yield server
