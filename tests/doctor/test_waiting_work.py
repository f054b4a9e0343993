"""Work in the database that waits for nobody: each planted fault under its code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from maniflex import Run, Server
from maniflex.background.outbox.message import Message
from maniflex.background.processes.store import WorkProcess
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.kit.doctor import Leaflet, codes_of, stored

HOUR = timedelta(hours=1)


def server_on(url: str, *, ago: timedelta = timedelta(0), is_whole: bool = True) -> Server:
    """An application with work; without all of its handlers if it is not whole."""
    server = Server(url, clock=FakeClock(datetime.now(UTC) - ago), background=False)
    server.register(Leaflet)
    server.pipeline.auth.register(auth.allow_anonymous())
    server.work.enable()
    server.outbox.enable()

    @server.outbox.handler("order.placed")
    async def ship(message: Message) -> None: ...

    if is_whole:

        @server.work.handler("mail.send")
        async def send(run: Run) -> None: ...

        @server.outbox.handler("order.paid")
        async def thank(message: Message) -> None: ...

    server.schedules.add("nightly", cron="* * * * *", run="mail.send")
    return server


async def found(server: Server) -> list[tuple[str, str]]:
    """Codes and places; the clocks of these servers are moved by hand, which T137 would find."""
    server.doctor_ignore("T137", reason="a clock that is moved by hand")
    return [(finding.code, finding.where) for finding in await stored(server)]


async def test_runs_and_messages_without_a_handler_are_found(database_url: str) -> None:
    first = server_on(database_url)
    async with first.lifespan():
        await first.work.submit("mail.send", {})
        await first.outbox.enqueue("order.paid", {}, outside_transaction=True)

    assert await found(server_on(database_url, is_whole=False)) == [
        ("T161", "messages of order.paid"),
        ("T161", "runs of mail.send"),
    ]
    assert await found(server_on(database_url)) == []


async def test_work_that_has_waited_for_long_is_found(database_url: str) -> None:
    first = server_on(database_url, ago=HOUR)
    async with first.lifespan():
        await first.work.submit("mail.send", {})

    assert await found(server_on(database_url)) == [("T165", "runs")]


async def test_schedules_that_nobody_fires_are_found(database_url: str) -> None:
    first = server_on(database_url, ago=HOUR)
    async with first.lifespan():
        await first.schedules.declare()

    assert await found(server_on(database_url)) == [("T163", "1 schedules")]


async def test_a_schedule_that_an_error_made_inactive_is_found(database_url: str) -> None:
    first = server_on(database_url)
    async with first.lifespan():
        await first.schedules.declare()
        await first.raw_exec("UPDATE schedules SET status = 'inactive', last_error = 'no such zone'")

    [finding] = [f for f in await stored(server_on(database_url)) if f.code != "T137"]

    assert (finding.code, finding.where) == ("T162", "schedule nightly")
    assert "no such zone" in finding.why


async def test_messages_that_were_given_up_are_found(database_url: str) -> None:
    first = server_on(database_url)
    async with first.lifespan():
        await first.outbox.enqueue("order.paid", {}, outside_transaction=True)
        await first.raw_exec("UPDATE outbox_event SET status = 'dead'")

    assert await found(server_on(database_url)) == [("T164", "outbox")]


async def add_process(server: Server, **values: Any) -> None:
    """The row of a process that lives now."""
    now = datetime.now(UTC)
    row = {"host": "one", "pid": 1, "role": "worker", "version": "1", "started_at": now, "seen_at": now}
    await server.db(WorkProcess).create(**row | values)


async def test_work_is_judged_by_the_processes_that_live(database_url: str) -> None:
    first = server_on(database_url, ago=HOUR)
    async with first.lifespan():
        await first.work.submit("mail.send", {})
        await first.outbox.enqueue("order.paid", {}, outside_transaction=True)
        await first.schedules.declare()
        await add_process(first, types=["billing.*"], kinds=["order.placed"])
    whole = server_on(database_url)  # it has the handlers, and does not run

    assert await found(whole) == [
        ("T161", "messages of order.paid"),
        ("T161", "runs of mail.send"),
        ("T163", "1 schedules"),
    ]

    again = server_on(database_url)
    async with again.lifespan():
        await add_process(again, pid=2, types=["mail.*"], kinds=["*"], schedules=True)
    whole = server_on(database_url)
    whole.doctor_ignore("T155", reason="two of them on purpose")
    findings = {finding.code: finding for finding in await stored(whole) if finding.code != "T137"}
    assert set(findings) == {"T163", "T165"}
    assert "falls behind" in findings["T163"].why
    assert "the 2 living processes are too few" in findings["T165"].why


async def test_two_processes_that_alter_tables_are_found(database_url: str) -> None:
    first = server_on(database_url)
    async with first.lifespan():
        await add_process(first, pid=1)
        await add_process(first, pid=2)
        await add_process(first, pid=3, seen_at=datetime.now(UTC) - HOUR)

    assert await found(server_on(database_url)) == [("T155", "auto_migrate=True")]


async def test_two_hosts_on_one_file_are_found(sqlite_url: str) -> None:
    first = server_on(sqlite_url)
    async with first.lifespan():
        await add_process(first, host="one")
        await add_process(first, host="two")
    server = server_on(sqlite_url)
    server.doctor_ignore("T155", reason="it is about the file here")

    [finding] = await stored(server)
    assert finding.code == "T142"
    assert "on one and two have it open" in finding.why


async def test_the_pools_of_all_living_processes_are_added_up(postgres_url: str) -> None:
    first = server_on(postgres_url)
    async with first.lifespan():
        for pid in range(30):
            await add_process(first, pid=pid)
    server = server_on(postgres_url)
    server.doctor_ignore("T155", reason="it is about pools here")

    [finding] = [f for f in await stored(server) if f.code != "T137"]
    assert finding.code == "T131"
    assert "30 processes have up to" in finding.why


async def test_before_the_first_start_there_is_nothing_to_look_at(postgres_url: str) -> None:
    server = server_on(postgres_url)
    server.doctor_ignore("T151", reason="it was never started")

    assert codes_of([f for f in await stored(server) if f.code != "T137"]) == []
