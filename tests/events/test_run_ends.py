"""Ends of runs and jobs are events of the transaction that settles them, and tell what REST tells owners."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Next, Run, Server
from maniflex.background.jobs import InProcessQueue, Job
from maniflex.errors import Conflict, DeclarationError, Fatal
from maniflex.events import Event
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.processes import IMPORTS, PROGRAMS
from tests.kit.programs.run_ends import COUNT, server_of
from tests.kit.runs import no_pause, working
from tests.kit.scripted_http import Answer, scripted

OK: Answer = (200, {}, b"fine")


def a_server(database: str, clock: FakeClock | None = None, **settings: Any) -> Server:
    server = Server(database, clock=clock or FakeClock(), background=False, **settings)
    server.work.enable(events=True)

    @server.work.handler("mail.send.v1", max_attempts=2, backoff=no_pause)
    async def send(run: Run) -> Any:
        match run.payload:
            case "fatal":
                raise Fatal("no such address")
            case "broken":
                raise RuntimeError("host=10.0.0.7 password=hunter2")
            case size if isinstance(size, int):
                return "x" * size
        return {"sent": run.payload}

    return server


async def ends(server: Server, *patterns: str) -> list[Event]:
    await server.events.drain()
    return await server.events.read(patterns=patterns or ("*",))


async def test_each_end_of_a_run_is_one_event(database_url: str) -> None:
    server = a_server(database_url)
    async with working(server) as work:
        first = await work.submit("mail.send.v1", "hello", actor_id="ada", tenant_id="red")
        second = await work.submit("mail.send.v1", "fatal")
        third = await work.submit("mail.send.v1", "broken")
        fourth = await work.submit("mail.send.v1", "late")
        await work.cancel(fourth.id)
        await work.worker().drain()
        with pytest.raises(Conflict):
            await work.cancel(first.id)

        events = {event.data["id"]: event for event in await ends(server)}

    assert len(events) == 4
    told = events[first.id]
    assert (told.type, told.subject) == ("run.mail.send.v1.succeeded", f"run/{first.id}")
    assert (told.actor_id, told.tenant_id, told.model) == ("ada", "red", None)
    assert told.data == {
        "id": first.id,
        "type": "mail.send.v1",
        "attempt": 1,
        "result": {"sent": "hello"},
    }
    assert events[second.id].type == "run.mail.send.v1.failed"
    assert events[second.id].data["error"] == {"code": "fatal", "message": "Fatal: no such address"}
    assert events[third.id].data["error"] == {"code": "error"}
    assert events[third.id].data["attempt"] == 2
    assert events[fourth.id].type == "run.mail.send.v1.cancelled"
    assert set(events[fourth.id].data) == {"id", "type", "attempt"}


async def cancel_and_fail(server: Server, id: str) -> None:
    async with server.transaction():
        await server.work.cancel(id)
        raise ZeroDivisionError


async def test_what_is_rolled_back_is_no_end_and_a_retried_run_ends_again(database_url: str) -> None:
    server = a_server(database_url)
    async with working(server) as work:
        run = await work.submit("mail.send.v1", "hello")
        with pytest.raises(ZeroDivisionError):
            await cancel_and_fail(server, run.id)
        assert await ends(server) == []

        await work.cancel(run.id)
        await work.retry(run.id)
        await work.worker().drain()

        types = [event.type for event in await ends(server)]
    assert types == ["run.mail.send.v1.cancelled", "run.mail.send.v1.succeeded"]


async def test_a_run_whose_workers_died_is_told_of(database_url: str) -> None:
    clock = FakeClock()
    server = a_server(database_url, clock)
    async with working(server) as work:
        run = await work.submit("mail.send.v1", "hello", max_attempts=1)
        assert len(await work.worker().claim(10)) == 1
        clock.advance(server.config.work_lease * 2)
        await work.worker().drain()

        [event] = await ends(server)
    assert event.type == "run.mail.send.v1.failed"
    assert event.data == {
        "id": run.id,
        "type": "mail.send.v1",
        "attempt": 1,
        "error": {"code": "lease_expired"},
    }


async def test_a_result_that_no_event_holds_is_referred_to(database_url: str) -> None:
    server = a_server(database_url, event_max_size=1000)
    async with working(server) as work:
        run = await work.submit("mail.send.v1", 2000)
        await work.worker().drain()

        [event] = await ends(server)
        assert (await work.get(run.id)).status == "succeeded"
    assert event.data == {"id": run.id, "type": "mail.send.v1", "attempt": 1}
    assert event.dataref == f"/api/workflow_run/{run.id}"


async def test_odd_names_of_types_make_types_of_events(database_url: str) -> None:
    server = a_server(database_url)
    server.work.handler("a/b..c:d.")(lambda run: None)
    server.work.handler("y" * 200)(lambda run: None)
    async with working(server) as work:
        await work.submit("a/b..c:d.")
        await work.submit("y" * 200)
        await work.worker().drain()

        events = await ends(server)
    assert {event.type for event in events} == {"run.a-b._.c-d._.succeeded", f"run.{'y' * 186}.succeeded"}
    assert {event.data["type"] for event in events} == {"a/b..c:d.", "y" * 200}


class Bus:
    """What hears of jobs beside the feed."""

    def publish(self, type: str, payload: dict[str, Any], /) -> None:
        """Hear nothing."""


async def identify(ctx: Context, next: Next) -> None:
    """Who is asking stands in headers."""
    user = ctx.header("x-user")
    if user:
        ctx.auth = AuthInfo(user, tenant_id=ctx.header("x-tenant") or "")
    await next()


async def test_owners_hear_of_their_own_runs_and_of_no_internal_ones(database_url: str) -> None:
    server = a_server(database_url)
    server.pipeline.auth.register(identify)
    server.jobs.use(event_bus=server.events)
    server.work.handler("inner.work", internal=True)(lambda run: None)
    server.work.handler("with.letter", dead_letter="letters")(_fail)
    server.work.handler("letters")(lambda run: None)
    server.jobs.handler("send_receipt")(lambda job: None)
    server.webhooks.enable(["*"], allow_private=True, allow_http=True)
    async with scripted(OK) as ada, scripted(OK) as bob, client(server, database=database_url) as http:
        for user, receiver in (("ada", ada), ("bob", bob)):
            body = {"url": receiver.url, "patterns": ["*"]}
            headers = {"x-user": user, "x-tenant": "red"}
            answer = await http.post("/api/webhook_endpoints", json=body, headers=headers)
            assert answer.status_code == 201, answer.text
        for type in ("mail.send.v1", "inner.work", "with.letter"):
            await server.work.submit(type, actor_id="ada", tenant_id="red")
            await server.work.submit(type, actor_id="ada", tenant_id="blue")
        await server.jobs.enqueue("send_receipt", actor_id="ada", tenant_id="red")
        # What only looks like an end of a run is nobody's but the application's.
        async with server.transaction():
            await server.events.publish("run.started", {"type": "x"}, actor_id="ada", tenant_id="red")
        await server.work.worker().drain()
        await server.webhooks.drain()
        types = sorted(event.type for event in await ends(server))

    told = sorted(json.loads(asked.body)["type"] for asked in ada.asked)
    assert told == [
        "job.send_receipt.completed",
        "run.mail.send.v1.succeeded",
        "run.with.letter.failed",
    ]
    assert bob.asked == []
    assert types.count("run.inner.work.succeeded") == 2
    assert types.count("run.letters.succeeded") == 2


async def _fail(run: Run) -> None:
    raise Fatal("not today")


async def test_nothing_is_told_where_nobody_asked(database_url: str) -> None:
    server = Server(database_url, clock=FakeClock(), background=False)
    server.work.handler("plain.run")(lambda run: None)
    server.jobs.use(event_bus=Bus())
    async with working(server) as work:
        assert work.engine.publishers == []
        assert not server.events.is_used


async def test_events_is_a_switch() -> None:
    server = Server()
    server.work.enable(events="yes")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"work\.enable: events"):
        async with server.lifespan():
            pass


# -- jobs


async def test_jobs_tell_the_feed_as_they_are_settled(database_url: str) -> None:
    server = Server(database_url, clock=FakeClock(), background=False)
    server.jobs.use(event_bus=server.events)

    @server.jobs.handler("send_receipt")
    async def send(job: Job) -> str:
        if job.payload == "fatal":
            raise Fatal("no such address")
        return "done"

    server.work.handler("plain.run")(lambda run: None)
    async with working(server) as work:
        await work.submit("plain.run")
        good = await server.jobs.enqueue("send_receipt", actor_id="ada")
        bad = await server.jobs.enqueue("send_receipt", "fatal")
        gone = await server.jobs.enqueue("send_receipt")
        await server.jobs.cancel(gone)
        await work.worker().drain()

        events = {event.data["id"]: event for event in await ends(server)}
    assert set(events) == {good, bad}
    assert (events[good].type, events[good].actor_id) == ("job.send_receipt.completed", "ada")
    assert events[good].data["result"] == {"url": None, "output": "done"}
    assert events[bad].type == "job.send_receipt.failed"
    assert events[bad].data["error"] == {"code": "fatal", "message": "Fatal: no such address"}


async def test_jobs_of_another_queue_tell_the_feed_afterwards(database_url: str) -> None:
    clock = FakeClock()
    server = Server(database_url, clock=clock, background=False)
    server.jobs.use(InProcessQueue(clock=clock), event_bus=server.events)

    @server.jobs.handler("send_receipt")
    async def send(job: Job) -> None:
        if job.payload == "fatal":
            raise Fatal("no such address")
        if job.payload == "broken":
            raise RuntimeError("password=hunter2")

    async with server.lifespan(role="client"):
        for payload in ("fine", "fatal", "broken"):
            await server.jobs.enqueue(Job("send_receipt", payload, max_retry=1))
        await server.jobs.worker().drain()

        events = await ends(server)
    outcomes = sorted((event.type, str(event.data.get("error"))) for event in events)
    assert outcomes == [
        ("job.send_receipt.completed", "None"),
        ("job.send_receipt.failed", "{'code': 'error'}"),
        ("job.send_receipt.failed", "{'code': 'fatal', 'message': 'Fatal: no such address'}"),
    ]


# -- processes that die


async def test_a_worker_that_is_killed_leaves_no_end_untold_and_invents_none(database_url: str) -> None:
    server = server_of(database_url)
    async with server.lifespan(role="client"):
        ids = [(await server.work.submit("odd.one", {"n": n})).id for n in range(COUNT)]

        for seed in range(3):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(PROGRAMS / "run_ends.py"),
                *(database_url, str(seed)),
                env={**os.environ, "PYTHONPATH": IMPORTS},
            )
            assert await process.wait() in (-signal.SIGKILL, 0)
            over = {run.id: run.status for run in await server.work.list(limit=COUNT) if run.finished}
            told = await ends(server)
            assert sorted(over) == sorted(event.data["id"] for event in told)
            assert all(event.type.endswith(over[event.data["id"]]) for event in told)

    late = server_of(database_url)
    clock = FakeClock(datetime.now(UTC) + timedelta(minutes=10))
    with late.on_database(None, clock=clock):
        async with late.lifespan(role="client"):
            await late.work.worker().drain()
            told = await ends(late)
    assert sorted(event.data["id"] for event in told) == sorted(ids)
