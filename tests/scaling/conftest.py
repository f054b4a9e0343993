"""A primary with a streaming standby, started once for all tests, each on its own database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from tests.kit.postgres import execute
from tests.kit.private_postgres import private_postgres, standby_of
from tests.kit.replicas import ReplicatedDatabase, ServerPair


@pytest.fixture(scope="session")
def servers() -> Iterator[ServerPair]:
    # Its own loop factory keeps the runner from becoming the tests' event loop.
    with private_postgres() as primary, asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        runner.run(primary.start())
        standby = runner.run(stack.enter_async_context(standby_of(primary)))
        yield ServerPair(primary, standby)
        runner.run(stack.aclose())


@pytest.fixture
async def pair(servers: ServerPair) -> AsyncIterator[ReplicatedDatabase]:
    """An empty database on both servers; the standby follows at once."""
    database = await servers.create_database()
    yield database
    await servers.follow_after(0)


@pytest.fixture
async def role(postgres_url: str) -> AsyncIterator[str]:
    """A role that owns what it makes in the database of the test."""
    name = f"part_{uuid4().hex[:12]}"
    await execute(postgres_url, f"CREATE ROLE {name} LOGIN; GRANT ALL ON SCHEMA public TO {name}")
    yield name
    await execute(postgres_url, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
