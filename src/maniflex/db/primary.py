"""Where reads go: to a replica only for a request or run that may read there, else to the primary.

A `ReplicaReader` stands for one request that only reads, or for one run. It remembers what was written, so
that what it reads later shows it. Without one (loops, schedulers, start-up, scripts) all reads go to the
primary, as do those of `Primary`, which the framework itself relies on. Without a replica nothing of this
makes a difference.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

from maniflex.db.budget import Budget
from maniflex.db.current import ReplicaReader, current_reader, current_tx
from maniflex.db.port import Adapter, Row, Tx
from maniflex.sql.statement import Sql


class ApartFromReader:
    """A block that reads from the primary, and whose writes are not those of the request or run."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = current_reader.set(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_reader.reset(self._before)


class OnPrimary(ApartFromReader):
    """A block, `with` or `async with`, whose reads go to the primary."""

    __slots__ = ()

    def __enter__(self) -> None:
        outer = current_reader.get()
        inner = None if outer is None else ReplicaReader(needs_primary=True, outer=outer)
        self._before = current_reader.set(inner)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Primary:
    """The reads of an adapter that must not be behind: they are answered where its writes go."""

    read_versions = None  # it is no transaction

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.dialect = adapter.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        with ApartFromReader():
            return await self._adapter.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        with ApartFromReader():
            return await self._adapter.fetch_one(sql)


def reading(adapter: Adapter, tx: Tx | None = None) -> Tx:
    """The executor for current reads: the transaction `tx`, the open one, or the primary."""
    primary: Any = Primary(adapter)
    return tx or current_tx(adapter) or cast(Tx, primary)
