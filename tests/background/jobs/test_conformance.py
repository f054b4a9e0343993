"""All three queues keep the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from maniflex import Server
from maniflex.background.jobs import InProcessQueue, SqlQueue
from maniflex.background.jobs.redis import RedisQueue
from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance import JobQueueConformance
from tests.kit.redis_queue import age, forgotten


class TestInProcess(JobQueueConformance):
    keeps_jobs = False
    remembers = False

    @pytest.fixture
    async def queue(self, clock: FakeClock) -> InProcessQueue:
        return InProcessQueue(clock=clock)

    async def reopened(self, queue: Any) -> InProcessQueue:
        return InProcessQueue()


class Sql(JobQueueConformance):
    @pytest.fixture
    async def queue(self, clock: FakeClock, url: str) -> AsyncIterator[SqlQueue]:
        server = Server(url, clock=clock, background=False)
        server.work.enable()
        async with server.lifespan(role="client"):
            yield SqlQueue(server.work)

    async def reopened(self, queue: Any) -> SqlQueue:
        return SqlQueue(queue._work)


class TestSqlite(Sql):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/jobs.db"


class TestPostgres(Sql):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


class TestRedis(JobQueueConformance):
    remembers = False

    @pytest.fixture
    async def queue(self, clock: FakeClock, redis_url: str) -> AsyncIterator[RedisQueue]:
        queue = RedisQueue(redis_url, prefix=f"maniflex-test:{uuid4().hex}", clock=clock)
        yield queue
        await forgotten(queue)
        await queue.close()

    async def reopened(self, queue: Any) -> Any:
        return queue.sibling()

    async def pass_time(self, queue: Any, clock: FakeClock, delta: timedelta) -> None:
        clock.advance(delta)
        await age(queue, delta)
