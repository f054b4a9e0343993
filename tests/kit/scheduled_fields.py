"""A newsroom whose records change and go by themselves, and ways to look at it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from maniflex import Model, Server, WithDeletedAt, scheduled
from maniflex.background.environment import Environment
from maniflex.background.metrics import Metrics
from maniflex.background.scheduled_fields.runner import Runner
from maniflex.sql.codec import encode_datetime
from maniflex.testing.clock import FakeClock
from tests.kit.internals import adapter_of
from tests.kit.servers import started

START = datetime(2026, 1, 1, tzinfo=UTC)
PAST, FUTURE = START - timedelta(hours=1), START + timedelta(hours=1)


class Post(Model, WithDeletedAt):
    title: str = ""
    status: Literal["draft", "published", "archived"] = "draft"
    publish_at: datetime | None = scheduled(default=None, set_field="status", from_="draft", to="published")
    archive_at: datetime | None = scheduled(default=None, set_field="status", to="archived")
    expires_at: datetime | None = scheduled(default=None, soft_delete=True)
    purge_at: datetime | None = scheduled(default=None, hard_delete=True)


def a_newsroom(
    database: str, *models: Any, clock: FakeClock | None = None, **settings: Any
) -> AbstractAsyncContextManager[Server]:
    """A started server with these models, or posts, that sweeps nothing by itself."""
    clock = clock or FakeClock(START)
    return started(database, *(models or (Post,)), clock=clock, background=False, **settings)


def parts_of(server: Server) -> Environment:
    """The parts of a server as far as a runner needs them."""
    runtime = server._seal().runtime
    needed = {
        "adapter": runtime.adapter,
        "clock": server._clock,
        "config": server.config,
        "logger": server._logger,
        "stores": runtime.stores,
        "metrics": Metrics(),
    }
    given: dict[str, Any] = {f.name: needed.get(f.name) for f in fields(Environment)}
    return Environment(**given)


def runner_of(server: Server, **settings: Any) -> Runner:
    return Runner(parts_of(server), **settings)


async def stored(server: Server, table: str, columns: str = "*") -> list[dict[str, Any]]:
    """Every row of a table, deleted ones too, by id."""
    return await server.raw_query(f"SELECT {columns} FROM {table} ORDER BY id")


_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT {0} UNION ALL SELECT n + 1 FROM numbers WHERE n < {1})"
_ID = {"sqlite": "PRINTF('%012d', n)", "postgresql": "LPAD(CAST(n AS TEXT), 12, '0')"}


async def fill(server: Server, first: int, rows: int, **columns: Any) -> None:
    """Many posts; the id is the number of the row, a value may be an expression over `n`."""
    dialect = adapter_of(server).dialect

    def written(value: Any) -> str:
        if not isinstance(value, datetime):
            return str(value)
        text = f"'{encode_datetime(value)}'"
        return text if dialect == "sqlite" else f"CAST({text} AS TIMESTAMPTZ)"

    values = {"title": "''", "status": "'draft'", "created_at": START, "updated_at": START, **columns}
    names, given = ", ".join(["id", *values]), ", ".join([_ID[dialect], *map(written, values.values())])
    numbers = _NUMBERS.format(first, first + rows - 1)
    await server.raw_exec(f"INSERT INTO posts ({names}) {numbers} SELECT {given} FROM numbers")
