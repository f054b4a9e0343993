"""Databases of the PostgreSQL server that all tests share, and statements behind a server's back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

_OTHERS = """
FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_EMPTY = f"""
SELECT pg_terminate_backend(pid) {_OTHERS};
DO $$
DECLARE schema_name text;
BEGIN
    FOR schema_name IN SELECT nspname FROM pg_namespace
        WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', schema_name);
    END LOOP;
END $$;
CREATE SCHEMA public;
"""


POOLER = "MANIFLEX_TEST_POOLER"  # host:port of a PgBouncer that all tests are to go through


def through_pooler(url: str) -> str:
    """The address of the same database behind the pooler, if there is to be one."""
    if not (pooler := os.environ.get(POOLER)):
        return url
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    netloc = f"{login}@{pooler}" if login else pooler
    return urlunsplit(parts._replace(netloc=netloc, query="pgbouncer=true"))


def as_role(url: str, login: str) -> str:
    """The address of the same database for somebody else: `role` or `role:password`."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))


class PostgresPool:
    """Databases that are emptied and used again, because creating one costs far more."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._prefix = f"maniflex_test_{uuid4().hex[:12]}"
        self._names: list[str] = []
        self._idle: list[str] = []
        # Its own loop factory keeps the runner from becoming the tests' event loop.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def take(self) -> str:
        """The name of an empty database."""
        if self._idle:
            name = self._idle.pop()
            self._runner.run(empty(self.url(name)))
        else:
            name = f"{self._prefix}_{len(self._names)}"
            self._runner.run(execute(self._base_url, f'CREATE DATABASE "{name}" TEMPLATE template0'))
            self._names.append(name)
        return name

    def give_back(self, name: str) -> None:
        self._idle.append(name)

    def url(self, name: str) -> str:
        return urlunsplit(urlsplit(self._base_url)._replace(path=f"/{name}"))

    def close(self) -> None:
        self._runner.run(self._drop_all())
        self._runner.close()

    async def _drop_all(self) -> None:
        """Drop the databases at once, because each waits for a checkpoint, and one may serve them all."""
        drops = [f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)' for name in self._names]
        await asyncio.gather(*(execute(self._base_url, drop) for drop in drops))


async def empty(url: str) -> None:
    """Remove everything from a database, and everybody else who is connected to it."""
    await execute(url, _EMPTY)


async def execute(url: str, statements: str) -> None:
    """Run these statements on a connection of their own."""
    await _connected(url, lambda connection: connection.execute(statements))


async def fetch_value(url: str, statement: str, *parameters: object) -> Any:
    """The first column of the first row of the answer, asked on a connection of its own."""
    return await _connected(url, lambda connection: connection.fetchval(statement, *parameters))


async def terminate(url: str) -> int:
    """End every connection to the database but our own; how many that were."""
    return int(await fetch_value(url, f"SELECT count(pg_terminate_backend(pid)) {_OTHERS}"))


async def _connected(url: str, work: Callable[[asyncpg.Connection[Any]], Coroutine[Any, Any, Any]]) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await work(connection)
    finally:
        await connection.close()
