"""What is special about jobs in NATS: real time, real crashes, servers that come back, no litter."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from maniflex.background.jobs import Job, Result, Worker
from maniflex.background.jobs.nats import FOREIGN_REMOVALS, NatsQueue
from maniflex.background.jobs.nats_documents import Documents, DocumentVersion
from maniflex.background.jobs.port import dead_letter
from maniflex.errors import DeclarationError, Unavailable, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.machines import OtherTime
from tests.kit.nats_queue import PrivateNats, count_messages, delete_stream
from tests.kit.processes import free_port, run_program
from tests.kit.waiting import PATIENCE

SHORT = timedelta(milliseconds=400)
KILLED = """
import asyncio, sys
from datetime import timedelta
from maniflex.background.jobs import Worker
from maniflex.background.jobs.nats import NatsQueue

async def hang(job):
    print(job.id, flush=True)
    await asyncio.Event().wait()

queue = NatsQueue(sys.argv[1], prefix=sys.argv[2], lease=timedelta(milliseconds=400))
asyncio.run(Worker(queue, {"slow": hang}).run())
"""


@pytest.fixture
def prefix() -> str:
    return f"maniflex-test.{uuid4().hex}"


@pytest.fixture
async def queue(nats_url: str, prefix: str) -> AsyncIterator[NatsQueue]:
    queue = NatsQueue(nats_url, prefix=prefix, lease=SHORT)
    yield queue
    await delete_stream(queue)
    await queue.close()


@pytest.fixture
async def timed_queue(nats_url: str, prefix: str, clock: FakeClock) -> AsyncIterator[NatsQueue]:
    queue = NatsQueue(nats_url, prefix=prefix, clock=clock)
    yield queue
    await delete_stream(queue)
    await queue.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize("hours", [1, -1])
async def test_what_is_due_goes_by_the_time_of_the_server(queue: NatsQueue, prefix: str, hours: int) -> None:
    astray = NatsQueue(queue._servers, prefix=prefix, lease=SHORT, clock=OtherTime(hours))
    due = datetime.now(UTC) + timedelta(minutes=30)
    try:
        await astray.enqueue(Job("a", id="now"))
        await astray.enqueue_at(Job("a", id="later"), due)
        await astray.enqueue_at(Job("a", id="past"), due - timedelta(hours=1))
        claims = await astray.claim(("a",), 10)
    finally:
        await astray.close()

    assert sorted(one.job.id for one in claims) == ["now", "past"]


class LossyDocuments(Documents):
    """Documents whose connection breaks when a job is taken."""

    lost = 0

    async def write(self, subject: str, data: bytes, *, replaces: int, room: int = 0) -> int:
        sequence = await super().write(subject, data, replaces=replaces, room=room)
        if b'"running"' in data and self.lost > 0:
            self.lost -= 1
            raise Unavailable("the line broke")
        return sequence


async def test_a_job_whose_claim_was_not_answered_is_begun_all_the_same(
    queue: NatsQueue, prefix: str
) -> None:
    queue._documents = LossyDocuments(queue._servers, prefix, replicas=1, timeout=5)
    queue._documents.lost = 1
    done: list[tuple[str, int]] = []

    async def work(job: Job) -> None:
        done.append((job.id, job.attempt))

    id = await queue.enqueue(Job("a", max_retry=1))
    with pytest.raises(Unavailable):
        await queue.claim(("a",), 10)
    assert await Worker(queue, {"a": work}).drain() == 1

    assert done == [(id, 1)]


async def test_jobs_groups_and_cancellations_leave_nothing_behind(
    timed_queue: NatsQueue, clock: FakeClock
) -> None:
    async def work(job: Job) -> None:
        if job.payload == "bad":
            raise RuntimeError("no")

    queue, soon = timed_queue, clock.now() + timedelta(hours=1)
    for n in range(10):
        for payload in ("good", "bad"):
            await queue.enqueue(Job("a", payload, group_key=f"g{n}", max_retry=1))
        await queue.cancel(await queue.enqueue(Job("a", group_key=f"g{n}")))
        await queue.cancel(await queue.enqueue(Job("other", group_key=f"h{n}")))
        await queue.cancel(await queue.enqueue_at(Job("a"), soon))

    assert await Worker(queue, {"a": work}, clock=clock).drain() == 20
    clock.advance(queue.lease * (FOREIGN_REMOVALS + 1))
    await queue.recover(("a",), None)

    assert await count_messages(queue) == 0


async def test_a_handler_that_blocks_the_loop_keeps_its_job(queue: NatsQueue) -> None:
    attempts: list[int] = []

    async def block(job: Job) -> None:
        attempts.append(job.attempt)
        time.sleep(SHORT.total_seconds() * 3)  # noqa: ASYNC251  # just what a worker has to outlive

    await queue.enqueue(Job("block"))
    worker, other = (Worker(queue, {"block": block}) for _ in range(2))
    await worker._lease_keeper.start()
    tasks = await worker.begin()
    await asyncio.wait(tasks)

    assert await other.run_once() == 0
    await worker.shutdown(timedelta(seconds=5))
    assert attempts == [1]


async def test_the_job_of_a_killed_process_is_taken_over(queue: NatsQueue, nats_url: str) -> None:
    id = await queue.enqueue(Job("slow", group_key="g"))
    behind = await queue.enqueue(Job("slow", group_key="g"))
    done: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def work(job: Job) -> None:
        done.put_nowait((job.id, job.attempt))

    with run_program(KILLED, nats_url, queue.prefix) as program:
        assert await asyncio.to_thread(program.hear) == id

    worker = Worker(queue, {"slow": work}, poll_interval=timedelta(milliseconds=50))
    await worker.start()
    handled = [await asyncio.wait_for(done.get(), PATIENCE) for _ in range(2)]
    await worker.shutdown(timedelta(seconds=5))

    assert sorted(handled) == sorted([(id, 2), (behind, 1)])


async def test_several_workers_share_jobs_and_groups(queue: NatsQueue) -> None:
    handled: Counter[int] = Counter()
    running: Counter[str] = Counter()
    overlaps: list[str] = []
    everything = asyncio.Event()

    async def work(job: Job) -> None:
        key = job.group_key or ""
        running[key] += 1
        if key and running[key] > 1:
            overlaps.append(key)
        await asyncio.sleep(0)
        running[key] -= 1
        handled[job.payload] += 1
        if len(handled) == 120:
            everything.set()

    for n in range(120):
        await queue.enqueue(Job("a", n, group_key=f"g{n % 5}" if n % 2 else None))
    lines = [NatsQueue(queue._servers, prefix=queue.prefix) for _ in range(3)]
    workers = [Worker(line, {"a": work}, poll_interval=timedelta(milliseconds=50)) for line in lines]
    for worker in workers:
        await worker.start()
    await asyncio.wait_for(everything.wait(), 60)
    for worker, line in zip(workers, lines, strict=True):
        await worker.shutdown(timedelta(seconds=5))
        await line.close()

    assert set(handled.values()) == {1}
    assert overlaps == []


async def test_a_claim_that_stood_still_does_not_break_its_group(
    timed_queue: NatsQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is taken over while the claimer is between the lock and the job."""
    slow, fast = timed_queue, timed_queue.sibling()
    first = await slow.enqueue(Job("a", group_key="g"))
    clock.advance(timedelta(milliseconds=1))
    second = await slow.enqueue(Job("a", group_key="g"))
    has_lock, may_go_on = asyncio.Event(), asyncio.Event()
    write = Documents.write

    async def stand_still(self: Documents, subject: str, data: bytes, **options: int) -> int:
        if self is slow._documents and ".job." in subject and not may_go_on.is_set():
            has_lock.set()
            await may_go_on.wait()
        return await write(self, subject, data, **options)

    monkeypatch.setattr(Documents, "write", stand_still)
    claim = asyncio.create_task(slow.claim(("a",), 1))
    await asyncio.wait_for(has_lock.wait(), 10)
    await fast.recover(("a",), None)
    clock.advance(slow.lease * 2)
    await fast.recover(("a",), None)
    [taken_over] = await fast.claim(("a",), 1)
    await fast.cancel(second)  # so that nothing but the first is left
    may_go_on.set()

    assert taken_over.job.id == first
    assert await claim == []
    assert await fast.ack(taken_over, Result())
    await fast.close()


async def test_a_letter_survives_the_worker_that_buried_its_job(
    timed_queue: NatsQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed_queue
    await queue.enqueue(Job("a"))
    [delivery] = await queue.claim(("a",), 1)

    async def die(*args: object) -> None:
        raise Unavailable("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(NatsQueue, "_send_letter", die)
        assert await queue.bury(delivery, "no", Job("dead", {"why": "no"}))
    other = queue.sibling()
    await other.recover(("a",), None)
    clock.advance(queue.lease * 2)
    await other.recover(("a",), None)

    letters = await other.claim(("a", "dead"), 10)
    assert [letter.job.payload for letter in letters] == [{"why": "no"}]
    await other.close()


async def test_a_server_that_comes_back_has_its_jobs(prefix: str) -> None:
    with PrivateNats() as server:
        queue = NatsQueue(server.url, prefix=prefix, timeout=timedelta(seconds=1))
        first = await queue.enqueue(Job("a"))
        assert len(await queue.claim(("none",), 1)) == 0
        server.kill()
        with pytest.raises(Unavailable):
            await queue.enqueue(Job("a"))
        server.start()

        async def claim_when_it_answers() -> list[str]:
            while True:
                try:
                    return [delivery.job.id for delivery in await queue.claim(("a",), 10)]
                except Unavailable:
                    continue

        assert await asyncio.wait_for(claim_when_it_answers(), 20) == [first]
        await queue.close()


async def test_a_payload_larger_than_a_message_is_refused(queue: NatsQueue) -> None:
    with pytest.raises(ValidationFailed, match="larger than the messages"):
        await queue.enqueue(Job("a", "x" * 2_000_000))

    assert await queue.claim(("a",), 1) == []


async def test_ids_and_groups_may_have_any_characters(queue: NatsQueue) -> None:
    await queue.enqueue(Job("a", id="an id. with > and *", group_key="шапка >.*"))

    [delivery] = await queue.claim(("a",), 1)

    assert (delivery.job.id, delivery.job.group_key) == ("an id. with > and *", "шапка >.*")
    assert await queue.ack(delivery, Result())


def test_a_prefix_is_a_subject() -> None:
    with pytest.raises(DeclarationError, match="only letters, digits"):
        NatsQueue(prefix="shop jobs.>")


async def test_a_stream_of_something_else_is_left_alone(queue: NatsQueue) -> None:
    name = f"other-{uuid4().hex}"
    await queue._documents._ask(lambda stream: stream.add_stream(name=name, subjects=[f"{name}.>"]))
    try:
        with pytest.raises(DeclarationError, match="is not one of a job queue"):
            await NatsQueue(queue._servers, prefix=name).enqueue(Job("a"))
    finally:
        await queue._documents._ask(lambda stream: stream.delete_stream(name))


async def test_a_nats_that_is_away_is_unavailable() -> None:
    queue = NatsQueue(f"nats://127.0.0.1:{free_port()}", timeout=timedelta(seconds=1))

    with pytest.raises(Unavailable):
        await queue.enqueue(Job("a"))
    with pytest.raises(Unavailable):
        await queue.open()
    await queue.close()


async def test_no_size_of_a_payload_breaks_the_queue(queue: NatsQueue) -> None:
    """What is taken can also be claimed, renewed and buried with its letter; what cannot is refused."""
    await queue.open()
    most = queue._documents._connection.max_payload
    sizes = [*range(most - 400, most + 10, 50), most // 2 + 1000, most - 200_000]
    ids = []
    for size in sizes:
        try:
            ids.append(await queue.enqueue(Job("a", "x" * size, max_retry=1)))
        except ValidationFailed:
            continue
    assert 0 < len(ids) < len(sizes)
    deliveries = [delivery for _ in ids for delivery in await queue.claim(("a",), 1)]
    assert len(deliveries) == len(ids)
    assert await queue.extend([delivery.held for delivery in deliveries]) == set()
    for delivery in deliveries:
        letter = dead_letter(delivery.job, "e" * 4_000, "dead")
        assert await queue.bury(delivery, "no", letter)
    letters = [delivery for _ in ids for delivery in await queue.claim(("dead",), 1)]
    assert sorted(len(letter.job.payload["payload"]) for letter in letters) == sorted(
        len(delivery.job.payload) for delivery in deliveries
    )


async def test_a_client_that_was_closed_is_replaced(queue: NatsQueue) -> None:
    """The server ends some clients for good: too many connections, an account that has expired."""
    first = await queue.enqueue(Job("a"))
    assert await queue.claim(("none",), 1) == []
    heard = asyncio.Event()
    async with queue.listen(heard.set):
        await asyncio.wait_for(heard.wait(), 10)
        await queue._documents._connection._process_err("'maximum connections exceeded'")
        heard.clear()
        await asyncio.wait_for(heard.wait(), 10)
        heard.clear()
        await queue.sibling().enqueue(Job("a"))
        await asyncio.wait_for(heard.wait(), 10)
    assert first in [delivery.job.id for delivery in await queue.claim(("a",), 10)]


async def test_a_document_that_cannot_be_read_hides_no_other(
    queue: NatsQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.open()
    for subject in ("job.garbage", "group.garbage"):
        await queue._documents.write(f"{queue.prefix}.{subject}", b"no json", replaces=0)
    ids = [await queue.enqueue(Job("a")) for _ in range(3)]

    assert sorted(delivery.job.id for delivery in await queue.claim(("a",), 10)) == sorted(ids)
    assert await queue.recover(("a",), None) == []
    assert sum("cannot be read" in message for message in caplog.messages) == 2


async def test_changes_that_were_lost_on_the_way_are_read_again(
    queue: NatsQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await queue.enqueue(Job("a")) for _ in range(4)]
    monkeypatch.setattr("maniflex.background.jobs.nats_documents._BATCH", 2)
    fetch, fetches = Documents._fetch, 0

    async def fail_once(self: Documents, follower: object, size: int) -> list[DocumentVersion]:
        nonlocal fetches
        fetches += 1
        if fetches == 2:
            raise Unavailable("gone for a moment")
        return await fetch(self, follower, size)

    monkeypatch.setattr(Documents, "_fetch", fail_once)
    with pytest.raises(Unavailable):
        await queue.claim(("a",), 10)

    assert [delivery.job.id for delivery in await queue.claim(("a",), 10)] == ids


async def test_a_job_that_is_done_is_done_although_its_group_could_not_be_freed(
    timed_queue: NatsQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed_queue

    async def fail(*args: object) -> None:
        raise Unavailable("gone for a moment")

    async def publish(subject: str, *args: object, **options: object) -> None:
        if subject.endswith(".wake"):
            raise OSError
        await connection_publish(subject, *args, **options)

    await queue.enqueue(Job("a", group_key="g"))
    [delivery] = await queue.claim(("a",), 1)
    connection_publish = queue._documents._connection.publish
    with monkeypatch.context() as patch:
        patch.setattr(queue._documents._connection, "publish", publish)
        behind = await queue.enqueue(Job("a", group_key="g"))  # it is kept, whether others hear of it or not
        patch.setattr(Documents, "read", fail)
        assert await queue.ack(delivery, Result())
    clock.advance(queue.lease * 2)
    await queue.recover(("a",), None)
    assert [delivery.job.id for delivery in await queue.claim(("a",), 1)] == [behind]


async def test_a_worker_that_missed_the_end_of_a_lock_and_of_a_job_goes_on(
    timed_queue: NatsQueue, clock: FakeClock
) -> None:
    """What a removed document leaves is deleted a lease later; a process that stood still never sees it."""
    other, asleep = timed_queue, timed_queue.sibling()
    await other.enqueue(Job("a", group_key="g", max_retry=1))
    [delivery] = await other.claim(("a",), 1)
    dead = await other.enqueue(Job("b", max_retry=1))
    [dying] = await other.claim(("b",), 1)
    assert await asleep.claim(("a", "b"), 1) == []
    assert await other.ack(delivery, Result())
    letter = dead_letter(dying.job, "no", "dead")
    assert await other.bury(dying, "no", letter)
    [told] = await other.claim(("dead",), 1)
    assert told.job.payload["job_id"] == dead
    assert await other.ack(told, Result())
    clock.advance(other.lease * 2)
    await other.recover(("a",), None)
    assert await count_messages(other) == 0

    last = await other.enqueue(Job("a", group_key="g"))
    for _ in range(2):
        assert await asleep.recover(("a", "b"), None) == []
        clock.advance(other.lease * 2)
    assert [delivery.job.id for delivery in await asleep.claim(("a", "b", "dead"), 5)] == [last]
    await asleep.close()


async def test_a_full_stream_refuses_jobs_and_drops_none(queue: NatsQueue) -> None:
    await queue.open()
    name = queue.prefix.replace(".", "_")
    info = await queue._documents._ask(lambda stream: stream.stream_info(name))
    info.config.max_msgs = 2
    await queue._documents._ask(lambda stream: stream.update_stream(info.config))
    ids = [await queue.enqueue(Job("a")) for _ in range(2)]
    with pytest.raises(Unavailable):
        await queue.enqueue(Job("a"))

    deliveries = await queue.claim(("a",), 5)
    assert [delivery.job.id for delivery in deliveries] == ids
    assert [await queue.ack(delivery, Result()) for delivery in deliveries] == [True, True]
