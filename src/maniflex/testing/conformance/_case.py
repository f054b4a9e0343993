"""What the parts of the suite share: the table they work on and statements for either dialect."""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import pytest

from maniflex.db.port import Adapter, Executor
from maniflex.sql.statement import Dialect, Sql, by_dialect

_ENDLESS = {
    Dialect.SQLITE: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000000)"
    " SELECT count(*) FROM n",
    Dialect.POSTGRES: "SELECT 1 FROM pg_sleep(3600)",
}


def sql(executor: Executor, text: str, *params: Any) -> Sql:
    """A statement written with `?`, in the placeholder style of the executor's dialect."""
    pieces, number = text.split("?"), count(1)
    with_numbers = pieces[0] + "".join(f"${next(number)}{piece}" for piece in pieces[1:])
    return Sql(by_dialect(executor.dialect, sqlite=text, postgres=with_numbers), params)


def endless(executor: Executor) -> Sql:
    """A read that does not end by itself."""
    return Sql(_ENDLESS[executor.dialect])


async def names(executor: Executor) -> list[str]:
    """The names in the `things` table, in the order of their ids."""
    return [name for (name,) in await executor.fetch(Sql("SELECT name FROM things ORDER BY id"))]


async def add(executor: Executor, id: int, name: str, amount: int = 0) -> None:
    await executor.execute(
        sql(executor, "INSERT INTO things (id, name, amount) VALUES (?, ?, ?)", id, name, amount)
    )


class Case:
    """The fixtures. An adapter's author overrides `adapter`: open, on an empty database, closed after."""

    keeps_data: ClassVar[bool] = True  # False: stored rows are gone once the adapter is closed
    hears: ClassVar[bool] = True  # False: `listen` never wakes anybody

    @pytest.fixture
    async def adapter(self) -> Adapter:
        raise NotImplementedError("override the `adapter` fixture with an open adapter on an empty database")

    @pytest.fixture
    async def db(self, adapter: Adapter) -> Adapter:
        """The adapter, with an empty table `things`."""
        await adapter.execute(
            Sql(
                "CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT NOT NULL,"
                " amount BIGINT NOT NULL DEFAULT 0 CHECK (amount > -1000))"
            )
        )
        return adapter
