"""What is special about jobs in Redis: real time, real crashes, and no key left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import OutOfMemoryError, RedisError

from maniflex._clock import SystemClock
from maniflex.background.clock import EVERY
from maniflex.background.jobs import Job, Result, Worker
from maniflex.background.jobs.redis import RedisQueue
from maniflex.errors import Unavailable
from tests.kit.machines import OtherTime
from tests.kit.processes import free_port, run_program
from tests.kit.redis_queue import forgotten, keys
from tests.kit.waiting import PATIENCE, eventually

SHORT = timedelta(milliseconds=400)
KILLED = """
import asyncio, sys
from datetime import timedelta
from maniflex.background.jobs import Worker
from maniflex.background.jobs.redis import RedisQueue

async def hang(job):
    print(job.id, flush=True)
    await asyncio.Event().wait()

queue = RedisQueue(sys.argv[1], prefix=sys.argv[2], lease=timedelta(milliseconds=400))
asyncio.run(Worker(queue, {"slow": hang}).run())
"""


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[RedisQueue]:
    queue = RedisQueue(redis_url, prefix=f"maniflex-test:{uuid4().hex}", lease=SHORT)
    yield queue
    await forgotten(queue)
    await queue.close()


async def left(queue: RedisQueue) -> list[str]:
    """The keys that have to do with jobs; empty streams and the wake-up call stay."""
    redis = queue._redis()
    found = [key for key in await keys(queue) if not key.endswith(":wake")]
    return [key for key in found if ":ready:" not in key or await redis.xlen(key)]


async def test_jobs_groups_and_cancellations_leave_nothing_behind(queue: RedisQueue) -> None:
    async def work(job: Job) -> None:
        if job.payload == "bad":
            raise RuntimeError("no")

    soon = queue.clock.now() + timedelta(hours=1)
    for n in range(10):
        for payload in ("good", "bad"):
            await queue.enqueue(Job("a", payload, group_key=f"g{n}", max_retry=1))
        await queue.cancel(await queue.enqueue(Job("a", group_key=f"g{n}")))
        await queue.cancel(await queue.enqueue(Job("other", group_key=f"h{n}")))
        await queue.cancel(await queue.enqueue_at(Job("a"), soon))

    assert await Worker(queue, {"a": work}).drain() == 20
    assert await left(queue) == []
    pending = await queue._redis().xpending(f"{queue.prefix}:ready:a", "workers")
    assert pending["pending"] == 0


async def test_a_handler_that_blocks_the_loop_keeps_its_job(queue: RedisQueue) -> None:
    started: list[int] = []

    async def block(job: Job) -> None:
        started.append(job.attempt)
        time.sleep(SHORT.total_seconds() * 3)  # noqa: ASYNC251  # just what a worker has to outlive

    await queue.enqueue(Job("block"))
    worker, other = (Worker(queue, {"block": block}) for _ in range(2))
    await worker._lease_keeper.start()
    tasks = await worker.begin()
    await asyncio.wait(tasks)

    assert await other.run_once() == 0
    await worker.shutdown(timedelta(seconds=5))
    assert started == [1]
    assert await left(queue) == []


async def test_the_job_of_a_killed_process_is_taken_over(queue: RedisQueue) -> None:
    id = await queue.enqueue(Job("slow", group_key="g"))
    behind = await queue.enqueue(Job("slow", group_key="g"))
    done: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def work(job: Job) -> None:
        done.put_nowait((job.id, job.attempt))

    with run_program(KILLED, queue._url, queue.prefix[1:-1]) as program:
        assert await asyncio.to_thread(program.hear) == id

    worker = Worker(queue, {"slow": work}, poll_interval=timedelta(milliseconds=50))
    await worker.start()
    found = [await asyncio.wait_for(done.get(), PATIENCE) for _ in range(2)]
    await worker.shutdown(timedelta(seconds=5))

    assert sorted(found) == sorted([(id, 2), (behind, 1)])
    assert await left(queue) == []


@pytest.mark.parametrize("hours", [1, -1])
async def test_what_is_due_goes_by_the_time_of_redis(queue: RedisQueue, hours: int) -> None:
    astray = RedisQueue(queue._url, prefix=queue.prefix, lease=SHORT, clock=OtherTime(hours))
    due = datetime.now(UTC) + timedelta(minutes=30)
    try:
        await astray.enqueue(Job("a", id="now"))
        await astray.enqueue_at(Job("a", id="later"), due)
        await astray.enqueue_at(Job("a", id="past"), due - timedelta(hours=1))
        claims = await astray.claim(("a",), 10)
        assert sorted(one.job.id for one in claims) == ["now", "past"]
        failing = Worker(astray, {"a": fail}, clock=OtherTime(hours))
        await astray.release(claims[0])
        assert await failing.run_once() == 1
        score = await queue._redis().zscore(f"{queue.prefix}:delayed", claims[0].job.id)
    finally:
        await astray.close()

    assert abs(score / 1000 - time.time()) < 600  # another attempt comes soon


async def fail(job: Job) -> None:
    raise RuntimeError("no")


class LossyQueue(RedisQueue):
    """A queue whose connection breaks when a claim is answered."""

    lost = 0

    async def _call(self, name: str, *args: Any) -> Any:
        answer = await super()._call(name, *args)
        if name == "claim" and self.lost > 0:
            self.lost -= 1
            raise Unavailable("the line broke")
        return answer


async def test_a_job_whose_claim_was_not_answered_is_begun_all_the_same(queue: RedisQueue) -> None:
    lossy = LossyQueue(queue._url, prefix=queue.prefix, lease=SHORT)
    lossy.lost = 2
    done: list[tuple[str, int]] = []

    async def work(job: Job) -> None:
        done.append((job.id, job.attempt))

    ids = [await queue.enqueue(Job("a", max_retry=1, group_key=group)) for group in ("g", None)]
    try:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await lossy.claim(("a",), 10)
        assert await queue.claim(("a",), 10) == []  # another process has no part in them
        assert await Worker(lossy, {"a": work}).drain() == 2
    finally:
        await lossy.close()

    assert sorted(done) == sorted((id, 1) for id in ids)
    assert await left(queue) == []


async def test_a_worker_of_many_types_finds_its_unanswered_claims_at_once(queue: RedisQueue) -> None:
    lossy = LossyQueue(queue._url, prefix=queue.prefix, lease=SHORT)
    lossy.lost = 3
    await queue.enqueue(Job("a", max_retry=1, id="one"))
    try:
        lost_claims = (lossy.claim(types, 1) for types in (("a", "b", "c"), ("b", "c", "a"), ("c",)))
        for outcome in await asyncio.gather(*lost_claims, return_exceptions=True):
            assert isinstance(outcome, Unavailable)
        await queue.enqueue(Job("c", max_retry=1, id="two"))
        claims = [claim for _ in range(3) for claim in await lossy.claim(("c", "a", "b"), 8)]
    finally:
        await lossy.close()

    assert sorted((one.job.id, one.job.attempt) for one in claims) == [("one", 1), ("two", 1)]


class Shifted(SystemClock):
    """The clock of a machine, by which another machine's has jumped."""

    jump = timedelta(0)

    def monotonic(self) -> float:
        return super().monotonic() - self.jump.total_seconds()


async def deliver_at(queue: RedisQueue, type: str, time: float) -> None:
    """What a jump of the clock of Redis does to everything that runs."""
    key, redis = f"{queue.prefix}:ready:{type}", queue._redis()
    [one] = (await redis.xinfo_stream(key, full=True))["groups"][0]["pending"]
    dump = await redis.dump(key)
    old, new = (int(moment).to_bytes(8, "little") for moment in (one[2], time * 1000))
    assert old in dump
    content = dump[:-8].replace(old, new)
    await redis.restore(key, 0, content + crc64(content).to_bytes(8, "little"), replace=True)


def crc64(content: bytes) -> int:
    """The checksum that Redis wants to see of what it restores."""
    crc = 0
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


async def test_no_job_is_taken_back_because_the_clock_of_redis_was_put_forward(queue: RedisQueue) -> None:
    clock = Shifted()
    other = RedisQueue(queue._url, prefix=queue.prefix, lease=SHORT, clock=clock)
    try:
        await other.enqueue(Job("a", id="mine", max_retry=1))
        [claimed] = await queue.claim(("a",), 1)
        assert await other.recover(("a",), None) == []
        clock.jump = timedelta(hours=1)
        await deliver_at(queue, "a", time.time() - 3600)
        for _ in range(3):
            assert await other.recover(("a",), None) == []
            clock.jump -= EVERY  # it asks for the time anew, and doubts it

        assert await queue.ack(claimed, Result())
    finally:
        await other.close()


async def test_a_job_of_a_dead_worker_is_taken_back_though_the_clock_of_redis_was_put_back(
    queue: RedisQueue,
) -> None:
    await queue.enqueue(Job("a", id="left"))
    await queue.claim(("a",), 1)
    await deliver_at(queue, "a", time.time() + 3600)
    recoveries: list[str] = []

    async def is_back() -> bool:
        recoveries.extend(one.job.id for one in await queue.recover(("a",), None))
        return bool(recoveries)

    await eventually(is_back, "the job")
    assert recoveries == ["left"]


async def test_what_redis_refuses_is_told_in_our_own_words(queue: RedisQueue) -> None:
    await queue._redis().set(f"{queue.prefix}:job:broken", "no hash")  # refused like a full memory

    with pytest.raises(Unavailable, match="takes nothing right now") as refused:
        await queue.enqueue(Job("a", id="broken"))

    assert isinstance(refused.value.__cause__, RedisError)
    assert issubclass(OutOfMemoryError, RedisError)


async def test_a_stream_that_was_removed_comes_back(queue: RedisQueue) -> None:
    await queue.enqueue(Job("a"))
    await queue.ack((await queue.claim(("a",), 1))[0], Result())
    await forgotten(queue)

    assert await queue.recover(("a",), None) == []
    id = await queue.enqueue(Job("a"))

    assert [delivery.job.id for delivery in await queue.claim(("a",), 1)] == [id]


async def test_an_enqueue_that_is_sent_twice_is_one_job(queue: RedisQueue) -> None:
    sent = queue._keep_arguments(Job("a", {}, id="one"))

    assert [await queue._call("enqueue", *sent) for _ in range(2)] == [1, 1]

    assert len(await queue.claim(("a",), 10)) == 1


async def test_a_prefix_may_have_the_braces_of_a_cluster(queue: RedisQueue) -> None:
    same = RedisQueue(queue._url, prefix=queue.prefix)
    try:
        await same.enqueue(Job("a"))
        assert len(await queue.claim(["a"], 1)) == 1
    finally:
        await same.close()


async def test_a_redis_that_is_away_is_unavailable() -> None:
    queue = RedisQueue(f"redis://127.0.0.1:{free_port()}/0")

    with pytest.raises(Unavailable):
        await queue.enqueue(Job("a"))
    with pytest.raises(Unavailable):
        await queue.open()
    await queue.close()
