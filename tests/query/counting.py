"""An adapter that notes what a server asks of the real one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from maniflex.config import sqlite_path
from maniflex.db.budget import Budget
from maniflex.db.port import Adapter, Isolation, Row, Tx
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.sql.statement import Dialect, Sql


class Counting:
    """Stands between a server and its database; `statements` are the texts that went through."""

    def __init__(self, url: str) -> None:
        postgres = url.startswith("postgres")
        self._real: Adapter = PostgresAdapter(url) if postgres else SqliteAdapter(sqlite_path(url))
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def dialect(self) -> Dialect:
        return self._real.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        self.statements.append(sql.text)
        return await self._real.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        self.statements.append(sql.text)
        return await self._real.fetch_one(sql)

    async def write(self, sql: Sql) -> list[Row]:
        self.statements.append(sql.text)
        return await self._real.write(sql)

    async def execute(self, sql: Sql) -> int:
        self.statements.append(sql.text)
        return await self._real.execute(sql)

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False
    ) -> AbstractAsyncContextManager[Tx]:
        return self._real.transaction(isolation=isolation, read_only=read_only)
