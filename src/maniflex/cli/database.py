"""Work on the database as it is: nothing is made or migrated, no hook of the application is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from maniflex.app.server import Server
from maniflex.background.clock import ClockKeeper, ServerClock
from maniflex.cli.process import run_once
from maniflex.db.port import Adapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import MEMORY
from maniflex.errors import ConfigError
from maniflex.schema.read import has_table

T = TypeVar("T")


def on_database(server: Server, work: Callable[[], Coroutine[Any, Any, T]], *tables: str) -> T:
    """Run `work` with the server's database open, once it is known to have these tables."""
    return run_once(server, work, within=lambda: _open_database(server, tables))


@asynccontextmanager
async def opened_adapters(adapters: Sequence[Adapter], *, read_only: bool = False) -> AsyncIterator[None]:
    """The databases open as they are, and closed again."""
    async with AsyncExitStack() as stack:
        for adapter in adapters:
            await adapter.open(read_only=read_only)
            stack.push_async_callback(adapter.close)
        yield


@asynccontextmanager
async def _open_database(server: Server, tables: tuple[str, ...]) -> AsyncIterator[None]:
    environment = server.work.environment
    adapter = environment.adapter
    check_file(adapter)
    async with opened_adapters([adapter]):
        for table in tables:
            await _check_table(adapter, table)
        if isinstance(environment.clock, ServerClock):
            await ClockKeeper(environment.clock, adapter, environment.logger).tick()
        yield


def check_file(adapter: Adapter) -> None:
    """Refuse a SQLite file that is not there: opening would make it."""
    if isinstance(adapter, SqliteAdapter) and adapter._path == MEMORY:
        raise ConfigError("the database is in the memory of the server's process alone, so none is here")
    if isinstance(adapter, SqliteAdapter) and not Path(adapter._path).is_file():
        raise ConfigError(f"there is no database {adapter._path!r}; it is made when the server starts")


async def _check_table(adapter: Adapter, table: str) -> None:
    if not await has_table(adapter, table):
        where = f"the database {adapter.label}"
        raise ConfigError(
            f"{where} has no table {table}; a server that has durable work makes it when it starts"
        )
