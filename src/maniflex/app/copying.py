"""The copy of an application's data to another database: which tables there are, on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from maniflex.app.assembly import Assembly
from maniflex.app.server import Server
from maniflex.db.current import reading
from maniflex.db.transfer.copier import Copier
from maniflex.errors import ConfigError
from maniflex.schema.history import copy_entries
from maniflex.schema.read import (
    make_version_tables,
    read_columns,
    read_heads,
    read_log,
    write_entry,
    write_head,
)


class DataCopy:
    """The data of one application in two databases."""

    def __init__(self, server: Server, source: str, target: str) -> None:
        """Addresses of the databases to copy from and to."""
        self._server = server
        self._source, self._target = server.assembled_on(source), server.assembled_on(target)
        own = {store.meta.cls for store in self._source.stores_of(self._source.runtime.adapter)}
        self.left_out = sorted(
            store.meta.name for cls, store in self._source.runtime.stores.items() if cls not in own
        )
        self.copier = Copier(
            self._source.runtime.adapter,
            self._target.runtime.adapter,
            [
                (store.sql, self._target.runtime.stores[store.meta.cls].sql)
                for store in self._source.stores_of(self._source.runtime.adapter)
                if not store.sql.readonly
            ],
            label=source.rpartition("@")[2].partition("?")[0],  # a query may hold a password
        )

    @asynccontextmanager
    async def open(self, *, makes_tables: bool) -> AsyncIterator[Copier]:
        """Both databases open, the source with all tables; the target too, where they are made."""
        async with AsyncExitStack() as stack:
            for assembly in (self._source, self._target):
                adapter = assembly.runtime.adapter
                await adapter.open()
                stack.push_async_callback(adapter.close)
            await _require_tables(self._source)
            if makes_tables:
                await self._server.make_tables(self._target)
            await _require_tables(self._target)
            yield self.copier

    async def finish(self) -> None:
        """End the copy; a database that migrations keep is at the same revision in the copy.

        What remembers how far the copy is goes last, so that one that is killed here goes on here.
        """
        source, target = self.copier.source, self.copier.target
        heads = await read_heads(reading(source))
        log = await read_log(reading(source))
        async with target.transaction() as tx:
            await copy_entries(reading(source), tx)
            if heads is not None and await read_heads(tx) is None:
                await make_version_tables(tx)
                for head in heads:
                    await write_head(tx, head)
                for entry in log.values():
                    await write_entry(tx, entry)
        await self.copier.finish()


async def _require_tables(assembly: Assembly) -> None:
    """Refuse a database that is not as the application has it: what it lacks cannot be copied."""
    adapter = assembly.runtime.adapter
    problems = []
    for store in assembly.stores_of(adapter):
        if store.sql.readonly:
            continue
        columns = await read_columns(adapter, store.sql)
        missing = [field.column for field in store.meta.fields if field.column not in columns]
        if not columns:
            problems.append(f"{adapter.label} has no table {store.sql.table.name}")
        elif missing:
            problems.append(f"{adapter.label}: {store.sql.table.name} has no column {', '.join(missing)}")
    if problems:
        raise ConfigError(*problems, "start the application on it once, so that its tables are up to date")
