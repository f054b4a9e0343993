"""What a job queue promises to producers and workers."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from maniflex.background.jobs import Delivery, Job, Result
from maniflex.errors import Conflict, NotFound, ValidationFailed
from maniflex.testing.clock import FakeClock

EMAIL, REPORT, DEAD = "email.send", "report.make", "dead.letter"
SOON = timedelta(minutes=10)


class JobCase:
    """The fixtures. An author overrides `queue`: empty, on the suite's clock, closed after."""

    keeps_jobs: ClassVar[bool] = True  # False: what waits is gone with the process
    remembers: ClassVar[bool] = True  # False: a job that is over is unknown

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def queue(self, clock: FakeClock) -> Any:
        raise NotImplementedError("override the `queue` fixture with an empty queue on this clock")

    async def reopened(self, queue: Any) -> Any:
        """The queue as another process would open it."""
        raise NotImplementedError("override `reopened`")

    async def pass_time(self, queue: Any, clock: FakeClock, delta: timedelta) -> None:
        """Let time go by; override it where leases are measured by another clock."""
        clock.advance(delta)

    async def expire(self, queue: Any, clock: FakeClock) -> None:
        await self.pass_time(queue, clock, queue.lease + timedelta(seconds=1))


async def claim_jobs(queue: Any, *types: str, limit: int = 100) -> list[Delivery]:
    deliveries: list[Delivery] = await queue.claim(types or (EMAIL, REPORT), limit)
    return deliveries


async def ids(queue: Any, *types: str) -> list[str]:
    return [delivery.job.id for delivery in await claim_jobs(queue, *types)]


async def one(queue: Any, *types: str) -> Delivery:
    [delivery] = await claim_jobs(queue, *types)
    return delivery


class Producing(JobCase):
    """Enqueueing and taking back."""

    async def test_a_job_is_delivered_as_it_was_enqueued(self, queue: Any) -> None:
        original = Job(EMAIL, {"to": ["ada", None, 1.5]}, "ada", "red", "trace-1", 7, group_key="g")

        id = await queue.enqueue(original)

        job = (await one(queue)).job
        assert (job.id, job.type, job.payload) == (id, EMAIL, {"to": ["ada", None, 1.5]})
        assert (job.actor_id, job.tenant_id, job.trace_id) == ("ada", "red", "trace-1")
        assert (job.max_retry, job.group_key, job.attempt) == (7, "g", 1)

    async def test_a_job_of_a_type_nobody_asks_for_is_left_alone(self, queue: Any) -> None:
        id = await queue.enqueue(Job(f"{EMAIL}.other"))

        assert await ids(queue, EMAIL, REPORT) == []
        assert await ids(queue, f"{EMAIL}.other") == [id]

    async def test_jobs_of_a_type_come_in_the_order_they_went(self, queue: Any, clock: FakeClock) -> None:
        enqueued_ids = []
        for _ in range(5):
            enqueued_ids.append(await queue.enqueue(Job(EMAIL)))
            clock.advance(timedelta(milliseconds=1))

        assert await ids(queue) == enqueued_ids

    async def test_no_more_is_claimed_than_asked_for(self, queue: Any) -> None:
        for type in (EMAIL, REPORT) * 4:
            await queue.enqueue(Job(type))

        counts = [len(await claim_jobs(queue, limit=3)) for _ in range(4)]

        assert counts == [3, 3, 2, 0]

    async def test_a_job_does_not_start_before_its_time(self, queue: Any, clock: FakeClock) -> None:
        first = await queue.enqueue(Job(EMAIL, not_before=clock.now() + SOON))
        second = await queue.enqueue_at(Job(EMAIL), clock.now() + SOON * 2)

        assert await ids(queue) == []
        clock.advance(SOON - timedelta(milliseconds=1))
        assert await ids(queue) == []
        clock.advance(timedelta(milliseconds=1))
        assert await ids(queue) == [first]
        clock.advance(SOON)
        assert await ids(queue) == [second]

    async def test_an_id_of_ones_own_is_used_once(self, queue: Any) -> None:
        assert await queue.enqueue(Job(EMAIL, 1, id="mine")) == "mine"

        with pytest.raises(Conflict):
            await queue.enqueue(Job(EMAIL, 2, id="mine"))

        assert (await one(queue)).job.payload == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            Job("no spaces"),
            Job(EMAIL, object()),
            Job(EMAIL, float("nan")),
            Job(EMAIL, "\x00"),
            Job(EMAIL, max_retry=0),
            Job(EMAIL, not_before=datetime(2026, 1, 1)),
            Job(EMAIL, group_key="x" * 1000),
        ],
        ids=["type", "object", "nan", "nul", "retries", "no zone", "long group"],
    )
    async def test_what_cannot_be_kept_is_refused(self, queue: Any, wrong: Job) -> None:
        with pytest.raises(ValidationFailed):
            await queue.enqueue(wrong)

        assert await ids(queue) == []

    async def test_a_waiting_job_can_be_cancelled_wherever_it_waits(
        self, queue: Any, clock: FakeClock
    ) -> None:
        ready = await queue.enqueue(Job(EMAIL))
        later = await queue.enqueue_at(Job(EMAIL), clock.now() + SOON)
        front = await queue.enqueue(Job(EMAIL, group_key="g"))
        behind = await queue.enqueue(Job(EMAIL, group_key="g"))
        last = await queue.enqueue(Job(EMAIL, group_key="g"))

        for id in (ready, later, behind, front):
            await queue.cancel(id)

        clock.advance(SOON * 2)
        assert await ids(queue) == [last]

    async def test_a_job_that_waits_for_its_retry_can_be_cancelled(
        self, queue: Any, clock: FakeClock
    ) -> None:
        id = await queue.enqueue(Job(EMAIL))
        await queue.retry(await one(queue), clock.now() + SOON, "not yet")

        await queue.cancel(id)

        clock.advance(SOON)
        assert await ids(queue) == []

    async def test_a_running_job_cannot_be_cancelled(self, queue: Any) -> None:
        await queue.enqueue(Job(EMAIL))
        delivery = await one(queue)

        with pytest.raises(Conflict):
            await queue.cancel(delivery.job.id)

        assert await queue.ack(delivery, Result())

    async def test_cancelling_what_is_not_there_is_an_error(self, queue: Any) -> None:
        await queue.enqueue(Job(EMAIL, id="over"))
        await queue.ack(await one(queue), Result())

        with pytest.raises(NotFound):
            await queue.cancel("unknown")
        with pytest.raises(Conflict if self.remembers else NotFound):
            await queue.cancel("over")

    async def test_what_waits_is_there_for_the_next_process(self, queue: Any) -> None:
        id = await queue.enqueue(Job(EMAIL))

        again = await self.reopened(queue)

        assert await ids(again) == ([id] if self.keeps_jobs else [])


class Leasing(JobCase):
    """Deliveries and what becomes of them."""

    async def test_a_job_is_delivered_to_one_worker(self, queue: Any) -> None:
        enqueued_ids = {await queue.enqueue(Job((EMAIL, REPORT)[n % 2])) for n in range(60)}

        rounds = await asyncio.gather(*(claim_jobs(queue, limit=5) for _ in range(20)))
        rest = await claim_jobs(queue)

        delivered_ids = [delivery.job.id for some in (*rounds, rest) for delivery in some]
        assert len(delivered_ids) == len(set(delivered_ids))
        assert set(delivered_ids) == enqueued_ids

    async def test_delayed_jobs_become_ready_exactly_once(self, queue: Any, clock: FakeClock) -> None:
        enqueued_ids = {await queue.enqueue_at(Job(EMAIL), clock.now() + SOON) for _ in range(40)}
        clock.advance(SOON)

        rounds = await asyncio.gather(*(claim_jobs(queue, limit=7) for _ in range(10)))
        rest = await claim_jobs(queue)

        delivered_ids = [delivery.job.id for some in (*rounds, rest) for delivery in some]
        assert len(delivered_ids) == len(set(delivered_ids))
        assert set(delivered_ids) == enqueued_ids

    async def test_a_job_that_is_done_is_not_delivered_again(self, queue: Any, clock: FakeClock) -> None:
        await queue.enqueue(Job(EMAIL))

        assert await queue.ack(await one(queue), Result(output=1))

        await self.expire(queue, clock)
        assert await queue.recover((EMAIL,), None) == []
        assert await ids(queue) == []

    async def test_a_failed_attempt_is_followed_by_another(self, queue: Any, clock: FakeClock) -> None:
        await queue.enqueue(Job(EMAIL))

        assert await queue.retry(await one(queue), clock.now() + SOON, "not yet")

        assert await ids(queue) == []
        clock.advance(SOON)
        assert (await one(queue)).job.attempt == 2

    async def test_a_released_job_was_never_tried(self, queue: Any) -> None:
        await queue.enqueue(Job(EMAIL))

        assert await queue.release(await one(queue))

        assert (await one(queue)).job.attempt == 1

    async def test_a_dead_job_leaves_its_letter(self, queue: Any, clock: FakeClock) -> None:
        await queue.enqueue(Job(EMAIL))

        assert await queue.bury(await one(queue), "no such address", Job(DEAD, {"why": "no such address"}))

        await self.expire(queue, clock)
        assert await queue.recover((EMAIL,), None) == []
        assert await ids(queue) == []
        assert (await one(queue, DEAD)).job.payload == {"why": "no such address"}

    async def test_the_job_of_a_dead_worker_is_delivered_again(self, queue: Any, clock: FakeClock) -> None:
        id = await queue.enqueue(Job(EMAIL))
        await one(queue)

        assert await queue.recover((EMAIL,), None) == []
        await self.expire(queue, clock)
        [recovery] = await queue.recover((EMAIL,), None)

        assert (recovery.job.id, recovery.dead) == (id, False)
        assert (await one(queue)).job.attempt == 2

    async def test_a_worker_that_lost_its_job_changes_nothing_any_more(
        self, queue: Any, clock: FakeClock
    ) -> None:
        id = await queue.enqueue(Job(EMAIL, max_retry=9))
        stale = await one(queue)
        await self.expire(queue, clock)
        await queue.recover((EMAIL,), None)
        fresh = await one(queue)

        assert await queue.extend([stale.held]) == {id}
        assert not await queue.ack(stale, Result())
        assert not await queue.retry(stale, clock.now(), "late")
        assert not await queue.release(stale)
        assert not await queue.bury(stale, "late", Job(DEAD))

        assert await queue.extend([fresh.held]) == set()
        assert await queue.ack(fresh, Result())
        assert await ids(queue, EMAIL, DEAD) == []

    async def test_a_renewed_lease_keeps_the_job(self, queue: Any, clock: FakeClock) -> None:
        await queue.enqueue(Job(EMAIL))
        delivery = await one(queue)

        for _ in range(5):
            await self.pass_time(queue, clock, queue.lease * 0.7)
            assert await queue.extend([delivery.held]) == set()
            assert await queue.recover((EMAIL,), None) == []

        assert await queue.ack(delivery, Result())

    async def test_renewing_never_shortens_a_lease(self, queue: Any, clock: FakeClock) -> None:
        await queue.enqueue(Job(EMAIL))
        delivery = await one(queue)
        short, queue.lease = queue.lease, queue.lease / 10
        await queue.extend([delivery.held])
        queue.lease = short

        await self.pass_time(queue, clock, short * 0.8)

        assert await queue.recover((EMAIL,), None) == []
        assert await queue.ack(delivery, Result())

    async def test_a_job_whose_workers_keep_dying_is_dead_in_the_end(
        self, queue: Any, clock: FakeClock
    ) -> None:
        id = await queue.enqueue(Job(EMAIL, {"to": "ada"}, "ada", max_retry=2))
        for _ in range(2):
            await one(queue)
            await self.expire(queue, clock)
            [recovery] = await queue.recover((EMAIL,), DEAD)

        assert (recovery.job.id, recovery.dead) == (id, True)
        assert await ids(queue) == []
        letter = (await one(queue, DEAD)).job
        assert (letter.payload["job_id"], letter.payload["error"]) == (id, "lease_expired")
        assert (letter.payload["type"], letter.payload["payload"]) == (EMAIL, {"to": "ada"})
        assert letter.actor_id == "ada"

    async def test_whoever_listens_is_woken(self, queue: Any) -> None:
        woken = asyncio.Event()
        async with queue.listen(woken.set):
            await asyncio.wait_for(woken.wait(), 10)
            woken.clear()
            await queue.enqueue(Job(EMAIL))
            await asyncio.wait_for(woken.wait(), 10)


class Grouping(JobCase):
    """At most one job of a group runs."""

    async def test_only_one_job_of_a_group_runs_at_a_time(self, queue: Any) -> None:
        for key in ("red", "red", "red", "blue"):
            await queue.enqueue(Job(EMAIL, key, group_key=key))
        await queue.enqueue(Job(REPORT, "red", group_key="red"))

        rounds = await asyncio.gather(*(claim_jobs(queue) for _ in range(5)))

        running = [delivery for some in rounds for delivery in some]
        running += await claim_jobs(queue)
        assert sorted(delivery.job.payload for delivery in running) == ["blue", "red"]

    async def test_the_next_of_a_group_follows_the_one_before(self, queue: Any, clock: FakeClock) -> None:
        enqueued_ids = []
        for _ in range(4):
            enqueued_ids.append(await queue.enqueue(Job(EMAIL, group_key="g")))
            clock.advance(timedelta(milliseconds=1))

        delivered_ids = []
        while deliveries := await claim_jobs(queue):
            [delivery] = deliveries
            delivered_ids.append(delivery.job.id)
            await queue.ack(delivery, Result())

        assert delivered_ids == enqueued_ids

    async def test_a_group_goes_on_while_one_of_it_waits_for_its_retry(
        self, queue: Any, clock: FakeClock
    ) -> None:
        first = await queue.enqueue(Job(EMAIL, group_key="g"))
        clock.advance(timedelta(milliseconds=1))
        second = await queue.enqueue(Job(EMAIL, group_key="g"))
        await queue.retry(await one(queue), clock.now() + SOON, "not yet")

        running = await one(queue)
        clock.advance(SOON)
        meanwhile = await ids(queue)
        await queue.extend([running.held])
        await queue.ack(running, Result())

        assert (running.job.id, meanwhile, await ids(queue)) == (second, [], [first])

    async def test_a_dead_worker_does_not_wedge_its_group(self, queue: Any, clock: FakeClock) -> None:
        for _ in range(3):
            await queue.enqueue(Job(EMAIL, group_key="g", max_retry=1))
        await one(queue)
        await self.expire(queue, clock)
        await queue.recover((EMAIL,), None)

        await queue.bury(await one(queue), "no", None)

        assert await queue.ack(await one(queue), Result())

    async def test_a_released_job_stays_in_its_group(self, queue: Any) -> None:
        for _ in range(2):
            await queue.enqueue(Job(EMAIL, group_key="g"))

        await queue.release(await one(queue))

        assert len(await ids(queue)) == 1
