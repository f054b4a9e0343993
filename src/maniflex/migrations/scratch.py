"""An empty database beside that of an application, to apply its files to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from maniflex.db.port import Adapter
from maniflex.sql.statement import Sql, by_dialect


@asynccontextmanager
async def scratch_database(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    """An empty database beside this one, which is gone afterwards."""
    make = by_dialect(adapter.dialect, sqlite=_scratch_file, postgres=_scratch_schema)
    async with make(adapter, name) as scratch:
        yield scratch


@asynccontextmanager
async def _scratch_file(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    from maniflex.db.sqlite.adapter import SqliteAdapter

    with tempfile.TemporaryDirectory(prefix="maniflex-") as directory:
        scratch = SqliteAdapter(str(Path(directory) / f"{name}.db"), durable=False)
        await scratch.open()
        try:
            yield scratch
        finally:
            await scratch.close()


@asynccontextmanager
async def _scratch_schema(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    schema = f"maniflex_{name}_{os.getpid()}"
    scratch = adapter.sibling(schema=schema)  # type: ignore[call-arg]  # of the adapter of PostgreSQL
    await scratch.open()
    try:
        yield scratch
    finally:
        await scratch.close()
        await adapter.execute(Sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
