"""`server.jobs`: handlers, enqueueing with the transaction, dead letters, events, cron entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import AuthInfo, Context, Model, Next, Run, Server, field
from maniflex._clock import Backoff
from maniflex.background.jobs import InProcessQueue, Job, Result
from maniflex.background.jobs.port import Cancellable
from maniflex.errors import Conflict, DeclarationError, Fatal, NotFound, ValidationFailed
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.waiting import PATIENCE

MINUTE = timedelta(minutes=1)
COUNTED = ("claimed", "succeeded", "retried", "dead", "lease_losses")


class Order(Model):
    number: int = field(default=0)


class Receipt(BaseModel):
    order_id: int


class Bus:
    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def publish(self, type: str, payload: dict[str, Any], /) -> None:
        self.heard.put_nowait((type, payload))


@asynccontextmanager
async def started(server: Server, database: str) -> AsyncIterator[Server]:
    with server.on_database(database):
        async with server.lifespan(role="client"):
            yield server


def a_server(clock: FakeClock | None = None) -> Server:
    server = Server(clock=clock or FakeClock(), background=False)
    server.register(Order)
    return server


async def drained(server: Server) -> int:
    """What the worker of the queue in use does."""
    worker = server.work.worker() if server.jobs.uses_runs else server.jobs.worker()
    return await worker.drain()


# -- over runs


async def test_a_job_is_a_run_with_its_result(database_url: str) -> None:
    server, seen = a_server(), list[Job]()

    @server.jobs.handler("send_receipt")
    async def send(job: Job) -> Result:
        seen.append(job)
        return Result("https://files/1", {"pages": 2})

    async with started(server, database_url):
        id = await server.jobs.enqueue(
            Job("send_receipt", {"order_id": 7}, "ada", "red", "t-1", 5, group_key="g")
        )
        assert await drained(server) == 1
        run = await server.work.get(id)

    [job] = seen
    assert (job.id, job.payload, job.actor_id, job.tenant_id) == (id, {"order_id": 7}, "ada", "red")
    assert (job.trace_id, job.max_retry, job.group_key, job.attempt) == ("t-1", 5, "g", 1)
    assert (run.status, run.result) == ("succeeded", {"url": "https://files/1", "output": {"pages": 2}})


async def test_a_plain_function_and_a_typed_payload_will_do(database_url: str) -> None:
    server, seen = a_server(), list[Any]()

    @server.jobs.handler("send_receipt", payload=Receipt, timeout=MINUTE)
    def send(job: Job) -> None:
        seen.append(job.payload)

    async with started(server, database_url):
        good = await server.jobs.enqueue("send_receipt", {"order_id": 7})
        bad = await server.jobs.enqueue("send_receipt", {"order_id": "x"})
        await drained(server)
        statuses = [(await server.work.get(id)).status for id in (good, bad)]

    assert seen == [Receipt(order_id=7)]
    assert statuses == ["succeeded", "failed"]


async def test_a_job_comes_and_goes_with_its_transaction(database_url: str) -> None:
    server = a_server()
    server.jobs.handler("send_receipt")(_nothing)

    async with started(server, database_url):
        with pytest.raises(RuntimeError):
            await order_without_stock(server)
        assert await server.work.list() == []

        async with server.transaction() as tx:
            await server.db(Order).create(number=2)
            id = await server.jobs.enqueue("send_receipt", tx=tx)
        assert [run.id for run in await server.work.list()] == [id]


async def test_only_waiting_jobs_are_cancelled(database_url: str) -> None:
    server = a_server()
    begun, may_end = asyncio.Event(), asyncio.Event()

    @server.jobs.handler("slow")
    async def slow(job: Job) -> None:
        begun.set()
        await may_end.wait()

    async with started(server, database_url):
        waiting = await server.jobs.enqueue("slow", not_before=server._clock.now() + MINUTE)
        running = await server.jobs.enqueue("slow")
        working = asyncio.create_task(drained(server))
        await asyncio.wait_for(begun.wait(), 10)

        await server.jobs.cancel(waiting)
        with pytest.raises(Conflict):
            await server.jobs.cancel(running)
        with pytest.raises(NotFound):
            await server.jobs.cancel("unknown")
        may_end.set()
        await working

        assert (await server.work.get(waiting)).status == "cancelled"
        assert (await server.work.get(running)).status == "succeeded"


async def test_dead_jobs_go_to_the_dead_letter_handler_and_to_the_bus(database_url: str) -> None:
    clock, bus = FakeClock(), Bus()
    server, letters = a_server(clock), list[Any]()
    server.jobs.use(event_bus=bus, dlq_type="dead")

    @server.jobs.handler("send_receipt")
    async def send(job: Job) -> None:
        raise Fatal("no such address")

    @server.jobs.handler("dead")
    async def dead(job: Job) -> None:
        letters.append(job.payload)

    async with started(server, database_url):
        id = await server.jobs.enqueue("send_receipt", {"to": "ada"})
        await drained(server)
        heard = [await asyncio.wait_for(bus.heard.get(), PATIENCE) for _ in range(2)]

    [letter] = letters
    assert (letter["job_id"], letter["type"], letter["payload"]) == (id, "send_receipt", {"to": "ada"})
    assert "no such address" in letter["error"]
    told = dict(heard)
    assert set(told) == {"job.send_receipt.failed", "job.dead.completed"}
    assert told["job.send_receipt.failed"]["id"] == id
    assert "no such address" in told["job.send_receipt.failed"]["error"]


async def test_a_job_whose_worker_died_for_good_is_told_of_too(database_url: str) -> None:
    clock, bus = FakeClock(), Bus()
    server = a_server(clock)
    server.jobs.use(event_bus=bus)
    server.jobs.handler("send_receipt")(_nothing)

    async with started(server, database_url):
        id = await server.jobs.enqueue(Job("send_receipt", max_retry=1))
        abandoned = server.work.worker()
        assert len(await abandoned.claim(10)) == 1
        clock.advance(server.config.work_lease * 2)
        assert await drained(server) == 0
        type, payload = await asyncio.wait_for(bus.heard.get(), PATIENCE)

    assert (type, payload["id"], payload["error"]) == ("job.send_receipt.failed", id, "lease_expired")


async def test_the_bus_hears_of_jobs_alone(database_url: str) -> None:
    bus, server = Bus(), a_server()
    server.jobs.use(event_bus=bus)
    server.jobs.handler("send_receipt")(_nothing)
    server.work.handler("plain.run")(_run)

    async with started(server, database_url):
        for _ in range(3):
            await server.work.submit("plain.run", priority=1)
        id = await server.jobs.enqueue("send_receipt")
        await drained(server)
        assert (await asyncio.wait_for(bus.heard.get(), PATIENCE))[1]["id"] == id
        await asyncio.gather(*server.work.engine._tasks)

    assert bus.heard.empty()


async def test_a_bus_that_fails_is_only_logged(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Bus):
        def publish(self, type: str, payload: dict[str, Any], /) -> None:
            super().publish(type, payload)
            raise OSError("away")

    bus, server = Broken(), a_server()
    server.jobs.use(event_bus=bus)
    server.jobs.handler("send_receipt")(_nothing)

    async with started(server, database_url):
        id = await server.jobs.enqueue("send_receipt")
        await drained(server)
        await asyncio.wait_for(bus.heard.get(), PATIENCE)
        assert (await server.work.get(id)).status == "succeeded"
        await asyncio.sleep(0)

    assert any("the bus did not take" in record.getMessage() for record in caplog.records)


async def test_inside_a_request_a_job_belongs_to_the_caller(database_url: str) -> None:
    server = a_server()
    server.jobs.handler("send_receipt")(_nothing)

    async def ada(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ada", tenant_id="red")
        await next()

    server.pipeline.auth.register(ada)

    @server.action("POST", "/receipts")
    async def receipts(ctx: Context) -> dict[str, str]:
        return {"job_id": await server.jobs.enqueue("send_receipt")}

    async with client(server, database=database_url) as http:
        id = (await http.post("/api/receipts")).json()["data"]["job_id"]
        run = await server.work.get(id)

    assert (run.actor_id, run.tenant_id) == ("ada", "red")


# -- over another queue


async def test_another_queue_takes_the_same_handlers() -> None:
    clock, seen, bus = FakeClock(), list[Any](), Bus()
    server, queue = a_server(clock), InProcessQueue(clock=clock)
    server.jobs.use(queue, event_bus=bus, dlq_type="dead", concurrency=2)

    @server.jobs.handler("send_receipt", payload=Receipt)
    def send(job: Job) -> None:
        seen.append(job.payload)

    async with started(server, ":memory:"):
        await server.jobs.enqueue("send_receipt", {"order_id": 7})
        bad = await server.jobs.enqueue("send_receipt", {"order_id": "x"})
        waiting = await server.jobs.enqueue("send_receipt", not_before=clock.now() + MINUTE)
        await server.jobs.cancel(waiting)
        assert await drained(server) == 2

    assert seen == [Receipt(order_id=7)]
    told = dict([bus.heard.get_nowait() for _ in range(2)])
    assert told["job.send_receipt.failed"]["id"] == bad
    assert isinstance(queue, Cancellable)
    assert queue.size == 1  # the dead letter, which nobody handles here


async def test_a_serving_process_works_on_the_jobs_of_another_queue() -> None:
    server, done = Server(), asyncio.Event()
    server.register(Order)
    server.jobs.use(InProcessQueue())

    @server.jobs.handler("send_receipt")
    async def send(job: Job) -> None:
        done.set()

    async with client(server, background=True):
        await server.jobs.enqueue("send_receipt")
        await asyncio.wait_for(done.wait(), 10)


async def test_what_becomes_of_the_jobs_of_another_queue_is_counted() -> None:
    clock = FakeClock()
    server = a_server(clock)
    server.jobs.use(InProcessQueue(clock=clock))

    @server.jobs.handler("a")
    async def fail(job: Job) -> None:
        if job.payload == "bad":
            raise ValueError("no")

    async with started(server, ":memory:"):
        await server.jobs.enqueue("a", "good")
        await server.jobs.enqueue("a", "bad", max_retry=2)
        worker = server.jobs.worker()
        assert await worker.drain() == 2
        clock.advance(MINUTE)
        assert await worker.drain() == 1

        numbers = {name: server.metrics.value(f"jobs_{name}_total") for name in COUNTED}
    assert numbers == {"claimed": 3, "succeeded": 1, "retried": 1, "dead": 1, "lease_losses": 0}


async def test_a_worker_of_another_queue_says_what_it_takes_and_what_it_gives_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    server = a_server(clock)
    server.jobs.use(InProcessQueue(clock=clock), concurrency=2)

    @server.jobs.handler("thumb")
    async def fail(job: Job) -> None:
        raise ValueError("no luck")

    server.jobs.handler("mail")(_nothing)

    with caplog.at_level(logging.INFO, "maniflex"):
        async with started(server, ":memory:"):
            id = await server.jobs.enqueue("thumb", max_retry=2)
            worker = server.jobs.worker()
            await worker.drain()
            clock.advance(MINUTE)
            await worker.drain()
            await worker.start()
            await worker.stop()

    told = [
        record.getMessage().partition("\n")[0] for record in caplog.records if "job" in record.getMessage()
    ]
    assert told == [
        f"job {id} (thumb) failed in attempt 1 of 2 and is tried again: ValueError: no luck",
        f"job {id} (thumb) failed in attempt 2 and is given up: ValueError: no luck",
        "job worker started: mail, thumb, 2 at a time",
    ]


async def test_spent_groups_and_cancelled_jobs_leave_nothing_in_memory() -> None:
    clock = FakeClock()
    queue = InProcessQueue(clock=clock)
    for n in range(50):
        await queue.enqueue(Job("a", group_key=f"g{n}"))
        await queue.enqueue(Job("a", group_key=f"g{n}"))
        await queue.cancel(await queue.enqueue(Job("a", group_key=f"g{n}")))
        await queue.cancel(await queue.enqueue_at(Job("a"), clock.now() + MINUTE))
    while found := await queue.claim(("a",), 100):
        for delivery in found:
            await queue.ack(delivery, Result())

    assert (queue.size, queue._groups, queue._later) == (0, {}, set())
    assert [len(ready) for ready in queue._ready.values()] == [0]


# -- cron


async def test_a_cron_entry_enqueues_the_job(database_url: str) -> None:
    clock, seen = FakeClock(), list[Any]()
    server = a_server(clock)

    @server.jobs.handler("daily_report")
    async def report(job: Job) -> None:
        seen.append(job.payload)

    server.jobs.cron("daily_report", "@daily", {"kind": "short"}, timezone="Europe/Berlin")

    async with started(server, database_url):
        await server.schedules.declare()
        schedule = await server.schedules.get("job:daily_report")
        await server.schedules.run_now(schedule.id)
        await drained(server)

    assert (schedule.cron, schedule.timezone) == ("@daily", "Europe/Berlin")
    assert seen == [{"kind": "short"}]


async def test_a_cron_entry_for_another_queue_is_handed_on_once(database_url: str) -> None:
    clock, seen = FakeClock(), list[Any]()
    server = a_server(clock)
    server.jobs.use(InProcessQueue(clock=clock))

    @server.jobs.handler("daily_report")
    async def report(job: Job) -> None:
        seen.append(job.payload)

    server.jobs.cron("daily_report", "0 6 * * *", {"kind": "short"})
    server.jobs.cron("daily_report", "0 7 * * *", {"kind": "long"}, name="at seven")

    async with started(server, database_url):
        await server.schedules.declare()
        for name in ("job:daily_report", "at seven"):
            await server.schedules.run_now((await server.schedules.get(name)).id)
        assert await server.work.worker().drain() == 2
        await drained(server)

    assert sorted(payload["kind"] for payload in seen) == ["long", "short"]


@pytest.mark.parametrize(("cron", "has"), [("daily", "1 field"), ("0 6 *", "3 fields")])
def test_a_cron_entry_that_is_too_short_says_how_much_it_has(cron: str, has: str) -> None:
    server = a_server()
    server.jobs.handler("daily_report")(_nothing)
    server.jobs.cron("daily_report", cron)

    with pytest.raises(DeclarationError, match=f"it has {has}; five are wanted"):
        server.seal()


# -- mistakes


def test_what_comes_too_late_is_refused() -> None:
    server = a_server()
    server.jobs.handler("send_receipt")(_nothing)
    with pytest.raises(DeclarationError, match="comes before the handlers"):
        server.jobs.use(InProcessQueue())

    server.seal()

    with pytest.raises(DeclarationError, match="sealed"):
        server.jobs.handler("other")(_nothing)
    with pytest.raises(DeclarationError, match="sealed"):
        server.jobs.mount_status()


async def test_nothing_is_enqueued_before_the_server_is_sealed() -> None:
    with pytest.raises(DeclarationError, match="sealed"):
        await a_server().jobs.enqueue("send_receipt")


async def test_runs_have_no_worker_of_jobs(database_url: str) -> None:
    server = a_server()
    server.jobs.handler("send_receipt")(_nothing)
    async with started(server, database_url):
        with pytest.raises(DeclarationError, match="no workers of its own"):
            server.jobs.worker()


async def test_a_job_that_cannot_be_stored_is_refused_and_leaves_nothing(database_url: str) -> None:
    server = a_server()
    server.jobs.handler("send_receipt")(_nothing)
    async with started(server, database_url):
        with pytest.raises(ValidationFailed, match="max_retry"):
            await server.jobs.enqueue("send_receipt", max_retry=0)
        assert await server.work.list() == []


@pytest.mark.parametrize("name", ["id", "actor_id", "tenant_id", "trace_id", "group_key"])
@pytest.mark.parametrize("text", ["a\ud800", "a\x00", "x" * 501])
@pytest.mark.parametrize("inproc", [False, True])
async def test_a_text_no_database_takes_is_refused(inproc: bool, text: str, name: str) -> None:
    server = a_server()
    given: Any = {name: text}
    if inproc:
        server.jobs.use(InProcessQueue())
    server.jobs.handler("send_receipt")(_nothing)
    async with started(server, ":memory:"):
        with pytest.raises(ValidationFailed, match=name):
            await server.jobs.enqueue(replace(Job("send_receipt"), **given))


@pytest.mark.parametrize("failures", [-5, 0, 1, 8, 9, 10, 64, 1025, 10**9])
@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_backoff_is_never_negative_and_never_above_its_cap(failures: int, chance: float) -> None:
    pause = Backoff(chance=lambda: chance)(failures)

    assert timedelta(seconds=1) <= pause <= timedelta(minutes=5)


async def order_without_stock(server: Server) -> None:
    async with server.transaction():
        await server.db(Order).create(number=1)
        await server.jobs.enqueue("send_receipt")
        raise RuntimeError("no stock")


async def _nothing(job: Job) -> None:
    logging.getLogger("tests").debug("job %s", job.id)


async def _run(run: Run) -> None: ...
