"""What a worker makes of a job queue."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from maniflex.background.jobs import Delivery, Job, Result, Worker
from maniflex.errors import Fatal
from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance._jobs import DEAD, EMAIL, REPORT, SOON, JobCase, claim_jobs, ids, one


class RecordingBus:
    """Remembers the published events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def publish(self, type: str, payload: dict[str, Any], /) -> None:
        self.heard.append((type, payload))


class Working(JobCase):
    """A `Worker` over the queue."""

    def worker(self, queue: Any, clock: FakeClock, fn: Any, **options: Any) -> Worker:
        handlers = {EMAIL: fn, **options.pop("handlers", {})}
        return Worker(queue, handlers, clock=clock, **options)

    async def test_jobs_are_given_to_their_handlers(self, queue: Any, clock: FakeClock) -> None:
        payloads: list[Any] = []

        async def send(job: Job) -> Result:
            payloads.append(job.payload)
            return Result("https://files/1", {"sent": 1})

        def make(job: Job) -> None:
            payloads.append(job.payload)

        bus = RecordingBus()
        for n in range(3):
            await queue.enqueue(Job(EMAIL, n, "ada"))
        await queue.enqueue(Job(REPORT, "r"))
        worker = self.worker(queue, clock, send, handlers={REPORT: make}, event_bus=bus)

        assert await worker.drain() == 4
        assert sorted(map(str, payloads)) == ["0", "1", "2", "r"]
        types = sorted(type for type, _ in bus.heard)
        assert types == [f"job.{EMAIL}.completed"] * 3 + [f"job.{REPORT}.completed"]
        event = next(payload for type, payload in bus.heard if EMAIL in type)
        assert event["result"] == {"url": "https://files/1", "output": {"sent": 1}}
        assert (event["actor_id"], event["attempt"]) == ("ada", 1)

    async def test_a_failing_job_is_retried_and_then_dead(self, queue: Any, clock: FakeClock) -> None:
        attempts: list[int] = []
        letters: list[Any] = []

        async def send(job: Job) -> None:
            attempts.append(job.attempt)
            raise RuntimeError("no route")

        async def dead(job: Job) -> None:
            letters.append(job.payload)

        bus = RecordingBus()
        id = await queue.enqueue(Job(EMAIL, {"to": "ada"}))
        worker = self.worker(queue, clock, send, handlers={DEAD: dead}, dlq_type=DEAD, event_bus=bus)
        for _ in range(5):
            await worker.drain()
            clock.advance(SOON)

        assert attempts == [1, 2, 3]
        assert [type for type, _ in bus.heard] == [f"job.{EMAIL}.failed", f"job.{DEAD}.completed"]
        [letter] = letters
        assert (letter["job_id"], letter["attempt"]) == (id, 3)
        assert "no route" in letter["error"]

    async def test_the_pause_between_attempts_grows(self, queue: Any, clock: FakeClock) -> None:
        attempts: list[datetime] = []

        async def send(job: Job) -> None:
            attempts.append(clock.now())
            raise RuntimeError("no route")

        await queue.enqueue(Job(EMAIL, max_retry=4))
        worker = self.worker(queue, clock, send)
        for _ in range(40):
            await worker.drain()
            clock.advance(timedelta(milliseconds=500))

        pauses = [after - before for before, after in pairwise(attempts)]
        assert len(pauses) == 3
        assert [round(pause.total_seconds()) for pause in pauses] == sorted(
            round(pause.total_seconds()) for pause in pauses
        )
        assert timedelta(seconds=1) <= pauses[0] <= timedelta(seconds=2)
        assert timedelta(seconds=4) <= pauses[2] <= timedelta(seconds=6.5)

    async def test_a_fatal_failure_is_not_tried_again(self, queue: Any, clock: FakeClock) -> None:
        attempts: list[int] = []

        async def send(job: Job) -> None:
            attempts.append(job.attempt)
            raise Fatal("no such address")

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        await worker.drain()
        clock.advance(SOON)

        assert await worker.drain() == 0
        assert attempts == [1]

    async def test_a_result_that_cannot_be_stored_is_not_tried_again(
        self, queue: Any, clock: FakeClock
    ) -> None:
        attempts: list[int] = []

        async def send(job: Job) -> Any:
            attempts.append(job.attempt)
            return object()

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        await worker.drain()
        clock.advance(SOON)

        assert await worker.drain() == 0
        assert attempts == [1]

    @pytest.mark.parametrize("panic", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, RecursionError])
    async def test_a_worker_survives_a_handler_that_panics(
        self, queue: Any, clock: FakeClock, panic: type[BaseException]
    ) -> None:
        payloads: list[Any] = []

        async def send(job: Job) -> None:
            if job.payload == "bad":
                raise panic()
            payloads.append(job.payload)

        await queue.enqueue(Job(EMAIL, "bad"))
        await queue.enqueue(Job(EMAIL, "good"))
        worker = self.worker(queue, clock, send)

        assert await worker.drain() == 2
        assert payloads == ["good"]
        clock.advance(SOON)
        [bad] = await claim_jobs(queue)
        assert bad.job.attempt == 2

    async def test_a_job_that_finishes_during_shutdown_is_acknowledged(
        self, queue: Any, clock: FakeClock
    ) -> None:
        has_begun, may_end = asyncio.Event(), asyncio.Event()
        attempts: list[int] = []

        async def send(job: Job) -> None:
            has_begun.set()
            await may_end.wait()
            attempts.append(job.attempt)

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(has_begun.wait(), 10)
        stopping = asyncio.create_task(worker.shutdown(timedelta(seconds=10)))
        may_end.set()
        await asyncio.wait_for(stopping, 15)
        await asyncio.wait_for(running, 10)

        await self.expire(queue, clock)
        assert await queue.recover((EMAIL,), None) == []
        assert (attempts, await ids(queue)) == ([1], [])

    async def test_what_does_not_finish_in_time_is_handed_back(self, queue: Any, clock: FakeClock) -> None:
        has_begun = asyncio.Event()

        async def send(job: Job) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(has_begun.wait(), 10)
        await asyncio.wait_for(worker.shutdown(0), 10)
        await asyncio.wait_for(running, 10)

        assert (await one(queue)).job.attempt == 1

    async def test_a_cancelled_worker_begins_no_job_and_shutdown_awaits_the_last(
        self, queue: Any, clock: FakeClock
    ) -> None:
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def send(job: Job) -> None:
            has_begun.set()
            await may_end.wait()

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(has_begun.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        waiting_id = await queue.enqueue(Job(EMAIL))
        may_end.set()
        await asyncio.wait_for(worker.shutdown(timedelta(seconds=10)), 15)

        assert await ids(queue) == [waiting_id]

    async def test_a_running_worker_hears_of_new_jobs(self, queue: Any, clock: FakeClock) -> None:
        handled_payloads: asyncio.Queue[Any] = asyncio.Queue()

        async def send(job: Job) -> None:
            handled_payloads.put_nowait(job.payload)

        worker = self.worker(queue, clock, send, concurrency=2)
        running = asyncio.create_task(worker.run())
        for n in range(10):
            await queue.enqueue(Job(EMAIL, n))
        payloads = [await asyncio.wait_for(handled_payloads.get(), 10) for _ in range(10)]
        await worker.shutdown(timedelta(seconds=10))
        await running

        assert sorted(payloads) == list(range(10))

    async def test_a_worker_whose_job_was_given_away_stops_working_on_it(
        self, queue: Any, clock: FakeClock
    ) -> None:
        has_begun, has_stopped = asyncio.Event(), asyncio.Event()

        async def send(job: Job) -> None:
            has_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                has_stopped.set()

        await queue.enqueue(Job(EMAIL))
        worker = self.worker(queue, clock, send)
        [task] = await worker.begin()
        await asyncio.wait_for(has_begun.wait(), 10)
        await self.expire(queue, clock)
        await queue.recover((EMAIL,), None)
        fresh = await one(queue)

        await worker._lease_keeper.beat(queue)
        await asyncio.wait_for(task, 10)

        assert has_stopped.is_set()
        assert await queue.ack(fresh, Result())


class Hung:
    """A queue that stops answering."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Failing(JobCase):
    """Queues that do not answer, or not at first."""

    async def test_a_hung_queue_does_not_stall_shutdown(self, queue: Any, clock: FakeClock) -> None:
        has_run = asyncio.Event()

        async def send(job: Job) -> None:
            has_run.set()

        await queue.enqueue(Job(EMAIL))
        worker = Worker(Hung(queue), {EMAIL: send}, clock=clock)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(has_run.wait(), 10)

        await asyncio.wait_for(worker.shutdown(0), 15)
        await asyncio.wait_for(running, 10)

        await self.expire(queue, clock)
        assert len(await queue.recover((EMAIL,), None)) == 1

    async def test_an_outcome_is_said_until_it_is_heard(self, queue: Any, clock: FakeClock) -> None:
        class Deaf(Hung):
            failures = 3

            async def ack(self, delivery: Delivery, result: Result) -> bool:
                self.failures -= 1
                if self.failures >= 0:
                    raise OSError("away")
                is_ours: bool = await self._queue.ack(delivery, result)
                return is_ours

        async def send(job: Job) -> None: ...

        await queue.enqueue(Job(EMAIL))
        worker = Worker(Deaf(queue), {EMAIL: send}, clock=clock)

        assert await worker.run_once() == 1
        await self.expire(queue, clock)
        assert await queue.recover((EMAIL,), None) == []
