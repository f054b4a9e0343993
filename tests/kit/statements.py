"""The statements that a server sends to its database, and how the database goes about them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex.config import sqlite_path
from maniflex.db.budget import Budget
from maniflex.db.port import Adapter, Isolation, Row, Tx
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.sql.statement import Dialect, Sql
from tests.kit.internals import adapter_of
from tests.kit.postgres import fetch_value
from tests.kit.waiting import eventually


async def eventually_answers(adapter: Adapter, question: Sql, answer: object = True) -> None:
    """Ask the database until the first column of the first row is this."""

    async def is_so() -> bool:
        return bool((await adapter.fetch(question))[0][0] == answer)

    await eventually(is_so, question.text)


async def plans_of(
    server: Server, http: httpx.AsyncClient, path: str, headers: dict[str, str], patch: pytest.MonkeyPatch
) -> str:
    """The plans of the statements that read for this request."""
    adapter: Any = adapter_of(server)
    asked: list[Sql] = []

    def noting(read: Any) -> Any:
        async def noted(self: Any, sql: Sql, *rest: Any, **options: Any) -> Any:
            asked.append(sql)
            return await read(self, sql, *rest, **options)

        return noted

    with patch.context() as patched:
        for name in ("fetch", "fetch_one"):
            patched.setattr(type(adapter), name, noting(getattr(type(adapter), name)))
        assert (await http.get(path, headers=headers)).status_code == 200
    assert asked
    found = [await adapter.fetch(Sql(f"EXPLAIN QUERY PLAN {sql.text}", sql.params)) for sql in asked]
    return "; ".join(str(step[3]) for plan in found for step in plan)


@contextmanager
def statements_of(server: Server) -> Iterator[list[str]]:
    """The texts of the statements that read outside transactions, as they are sent."""
    adapter: Any = adapter_of(server)
    texts: list[str] = []

    def noting(read: Any) -> Any:
        async def noted(sql: Sql, *rest: Any, **options: Any) -> Any:
            texts.append(sql.text)
            return await read(sql, *rest, **options)

        return noted

    names = ("fetch", "fetch_one", "execute")
    for name in names:
        setattr(adapter, name, noting(getattr(adapter, name)))
    try:
        yield texts
    finally:
        for name in names:
            delattr(adapter, name)


@contextmanager
def calls_of(server: Server) -> Iterator[list[str]]:
    """The calls of the database outside transactions, and the transactions, by their names."""
    adapter: Any = adapter_of(server)
    names, calls = ("fetch", "fetch_one", "write", "execute", "batch", "transaction"), list[str]()

    def noting(name: str, call: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*arguments, **options)

        return noted

    for name in names:
        setattr(adapter, name, noting(name, getattr(adapter, name)))
    try:
        yield calls
    finally:
        for name in names:
            delattr(adapter, name)


async def rows_examined(url: str, text: str, params: tuple[Any, ...]) -> int:
    """How many rows Postgres touched for the page."""
    plan = await fetch_value(url, f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *params)

    def touched(node: dict[str, Any]) -> int:
        below = sum(touched(inner) for inner in node.get("Plans", ()))
        removed = node.get("Rows Removed by Filter", 0)
        assert node["Node Type"] not in ("Seq Scan", "Sort"), node
        return int(below + removed + (node["Actual Rows"] if not node.get("Plans") else 0))

    return touched(json.loads(plan)[0]["Plan"])


def sqlite_plan(url: str, text: str, params: tuple[Any, ...]) -> str:
    """How SQLite goes about the statement."""
    with closing(sqlite3.connect(sqlite_path(url))) as connection:
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", params))


class Counting:
    """Stands between a server and its database; `statements` are the texts of its `calls`."""

    def __init__(self, url: str) -> None:
        postgres = url.startswith("postgres")
        self._real: Adapter = PostgresAdapter(url) if postgres else SqliteAdapter(sqlite_path(url))
        self.statements: list[str] = []
        self.calls: list[Sql] = []

    def _note(self, sql: Sql) -> None:
        self.statements.append(sql.text)
        self.calls.append(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def dialect(self) -> Dialect:
        return self._real.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        self._note(sql)
        return await self._real.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        self._note(sql)
        return await self._real.fetch_one(sql)

    async def write(self, sql: Sql) -> list[Row]:
        self._note(sql)
        return await self._real.write(sql)

    async def execute(self, sql: Sql) -> int:
        self._note(sql)
        return await self._real.execute(sql)

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[Tx]:
        return self._real.transaction(isolation=isolation, read_only=read_only, late=late)
