"""The queues with workers of jobs keep the promises of the port; jobs that are runs: `test_sql_queue.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from maniflex.background.jobs import InProcessQueue
from maniflex.background.jobs.nats import NatsQueue
from maniflex.background.jobs.redis import RedisQueue
from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance import JobQueueConformance
from tests.kit.nats_queue import delete_stream
from tests.kit.redis_queue import age, forgotten


class TestInProcess(JobQueueConformance):
    keeps_jobs = False
    remembers = False

    @pytest.fixture
    async def queue(self, clock: FakeClock) -> InProcessQueue:
        return InProcessQueue(clock=clock)

    async def reopened(self, queue: Any) -> InProcessQueue:
        return InProcessQueue()


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


class TestNats(JobQueueConformance):
    remembers = False

    @pytest.fixture
    async def queue(self, clock: FakeClock, nats_url: str) -> AsyncIterator[NatsQueue]:
        queue = NatsQueue(nats_url, prefix=f"maniflex-test.{uuid4().hex}", clock=clock)
        yield queue
        await delete_stream(queue)
        await queue.close()

    async def reopened(self, queue: Any) -> Any:
        return queue.sibling()
