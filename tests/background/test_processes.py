"""The rows of processes and of what they did, and what is made of them: overviews and reasons to wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from maniflex import Model, Run, Server
from maniflex.background.processes.overview import Light
from maniflex.background.processes.store import ProcessState, WorkProcess, WorkStat
from maniflex.background.runs.model import WorkflowEvent
from maniflex.testing import FakeClock
from tests.kit.runs import minutes, no_pause, seconds
from tests.kit.waiting import eventually

NOON = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


class Order(Model):
    total: int = 0


def a_server(url: str, clock: FakeClock | None = None, **settings: object) -> Server:
    server = Server(url, clock=clock or FakeClock(NOON), **settings)  # type: ignore[arg-type]  # the settings of tests
    server.register(Order)
    server.outbox.enable()

    @server.work.handler("default.good")
    async def good(run: Run) -> int:
        return 1

    @server.work.handler("default.bad", max_attempts=2, backoff=no_pause)
    async def bad(run: Run) -> None:
        raise ValueError("no luck")

    return server


async def rows_of(server: Server) -> list[WorkProcess]:
    return await server.processes.list()


async def test_a_process_has_a_row_while_it_lives(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = a_server(database_url, clock)
    async with server.lifespan():
        [row] = await eventually(lambda: rows_of(server), "the row")
        assert (row.role, row.started_at, row.seen_at, row.stopped_at) == ("server", NOON, NOON, None)
        assert {"default.good", "default.bad", "default.*"} == set(row.types)
        assert (row.concurrency, row.running, row.pid > 0, bool(row.host)) == (10, 0, True, True)
        assert row.state(clock.now()) is ProcessState.ALIVE
        assert row.state(NOON + seconds(31)) is ProcessState.LATE
        assert row.state(NOON + seconds(101)) is ProcessState.GONE

        async def is_seen_again() -> bool:
            clock.advance(seconds(11))
            return (await rows_of(server))[0].seen_at > NOON

        await eventually(is_seen_again, "another beat")
        stopped_at = clock.now()

    async with server_of_another_life(database_url, clock) as again:
        [row] = [one for one in await rows_of(again) if one.id == row.id]
    assert row.stopped_at == stopped_at
    assert row.state(clock.now()) is ProcessState.GONE


def server_of_another_life(url: str, clock: FakeClock):  # type: ignore[no-untyped-def]  # an async context manager
    return a_server(url, clock, background=False).lifespan(role="client")


async def test_a_minute_of_the_plot_has_as_many_outcomes_as_events(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = a_server(database_url, clock, background=False)
    async with server.lifespan(role="client"):  # no beat of a process takes some of the counts
        await server.work.submit_many("default.good", [None] * 7)
        await server.work.submit_many("default.bad", [None] * 2)
        clock.advance(seconds(4))
        assert await server.work.worker().drain() == 7 + 2 * 2
        clock.advance(minutes(1))
        await server.work.submit("default.good")
        await server.work.worker().drain()
        await server.processes.write_counts()

        plot = {
            point.at: point.sums for point in await server.processes.plot(minutes(10)) if point.kind == "run"
        }
        events = await server.db(WorkflowEvent).list()

    first, second = NOON.replace(second=0), NOON.replace(second=0) + minutes(1)
    for minute in (first, second):
        outcomes = [
            event
            for event in events
            if event.created_at.replace(second=0) == minute and event.event_type in ("succeeded", "failed")
        ]
        assert plot[minute].succeeded + plot[minute].failed == len(outcomes)
    assert (plot[first].started, plot[first].succeeded, plot[first].failed, plot[first].retried) == (
        11,
        7,
        2,
        2,
    )
    # Nine runs had been due for four seconds; their second attempts were due at once.
    assert plot[first].wait_ms == 9 * 4000
    assert plot[second].succeeded == 1


async def test_a_run_that_was_taken_back_for_good_counts_as_failed(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = a_server(database_url, clock, background=False)
    async with server.lifespan(role="client"):
        run = await server.work.submit("default.good", max_attempts=1)
        lost = server.work.worker(lease=seconds(5))
        assert len(await lost.claim(1)) == 1
        clock.advance(minutes(1))
        assert await server.work.worker().drain() == 0
        await server.processes.write_counts()
        assert (await server.work.get(run.id)).status == "failed"
        [point] = [one for one in await server.processes.plot(minutes(0)) if one.kind == "run"]
        assert point.sums.failed == 1


async def test_counts_that_could_not_be_written_are_written_later(database_url: str) -> None:
    server = a_server(database_url, background=False)
    async with server.lifespan(role="client"):
        minutes_of = server.metrics.minutes
        counts = minutes_of.of(NOON, "run", "default.good")
        counts.succeeded = 3
        changed = minutes_of.take_changed()
        minutes_of.put_back(key for key, _ in changed)
        await server.processes.write_counts()
        counts = minutes_of.of(NOON, "run", "default.good")
        counts.succeeded += 1
        [stat] = await server.db(WorkStat).list()
    assert stat.succeeded == 3


async def test_writing_the_same_minute_twice_adds_nothing(database_url: str) -> None:
    server = a_server(database_url, background=False)
    async with server.lifespan(
        role="client"
    ):  # as a server it would have a keeper of its own, which writes too
        keeper = server.processes.keeper((), "server")
        assert keeper is not None
        await keeper.start()
        server.metrics.minutes.of(NOON, "run", "default.good").succeeded += 3
        await keeper.beat()
        server.metrics.minutes.of(NOON, "run", "default.good").succeeded += 1
        await keeper.beat()
        await keeper.stop()
        stats = await server.db(WorkStat).list([("kind", "eq", "run")])
    assert sum(stat.succeeded for stat in stats) == 4


async def test_minutes_become_hours_and_old_rows_go(database_url: str) -> None:
    clock = FakeClock(NOON - timedelta(days=20))
    server = a_server(database_url, clock, background=False)
    async with server.lifespan(role="client"):
        keeper = server.processes.keeper((), "server")
        assert keeper is not None
        await keeper.start()
        for moment, number in ((-20, 1), (-3, 2), (-3, 4), (-1, 8)):
            at = NOON + timedelta(days=moment, minutes=number)
            clock.advance(at - clock.now())
            server.metrics.minutes.of(at, "run", "default.good").succeeded += number
            await keeper.beat()
        await keeper.stop()  # a beat of its own loop may still write, while ours has found nothing to write
        other = server.processes.keeper((), "server")
        assert other is not None
        clock.advance(NOON - clock.now())
        await other.start()
        await other.beat()  # cleans
        stats = await server.db(WorkStat).list([("kind", "eq", "run")], sorts="minute")
        processes = await rows_of(server)
        await other.stop()

    three_days_ago = NOON - timedelta(days=3)
    assert [(stat.seconds, stat.minute, stat.succeeded) for stat in stats] == [
        (3600, three_days_ago.replace(minute=0, second=0), 6),
        (60, (NOON - timedelta(days=1) + minutes(8)).replace(second=0), 8),
    ]
    assert all(one.seen_at > NOON - timedelta(days=1) - minutes(9) for one in processes)


# -- about a record


async def test_a_run_and_a_message_know_the_record_they_are_about(database_url: str) -> None:
    server = a_server(database_url, background=False)
    async with server.lifespan():
        async with server.transaction():
            order = await server.db(Order).create(total=3)
            run = await server.work.submit("default.good", about=order)
            message = await server.outbox.enqueue("order.placed", {}, key="k", about=order)
        [stored] = await server.work.submit_many("default.good", [1], about="order/7")
        assert run.about == message.about == f"order/{order.id}"
        assert (await server.work.get(run.id)).about == f"order/{order.id}"
        assert (await server.work.get(stored.id)).about == "order/7"
        event = message.cloudevent("/shop")
        assert (event["subject"], event["partitionkey"]) == (f"order/{order.id}", "k")


@pytest.mark.parametrize("about", ["order", 7, "/7", "Order 7/1", "order/" + "x" * 300, Order(total=1)])
async def test_what_is_no_record_is_refused(sqlite_url: str, about: object) -> None:
    from maniflex.errors import ValidationFailed

    server = a_server(sqlite_url, background=False)
    async with server.lifespan():
        if isinstance(about, Order):
            about.id = ""
        with pytest.raises(ValidationFailed) as refusal:
            await server.work.submit("default.good", about=about)  # type: ignore[arg-type]  # what is no record
        assert "order/7" in str(refusal.value)


# -- overviews


async def test_an_overview_says_what_is_due_and_that_nobody_does_it(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = a_server(database_url, clock, background=False)
    async with server.lifespan():
        assert (await server.processes.overview()).sentence == "all work is on time"
        await server.work.submit_many("default.good", [None] * 3)
        await server.work.submit("default.good", delay=3600)
        clock.advance(minutes(5))
        overview = await server.processes.overview()
        assert (overview.due, overview.running, overview.failed, overview.retrying) == (3, 0, 0, 0)
        assert overview.oldest_due == NOON
        assert overview.light is Light.RED
        assert overview.sentence == "3 runs of default.good due, and no living process takes default.good"

        worker = server.work.worker()
        keeper = server.processes.keeper((worker,), "worker")
        assert keeper is not None
        await keeper.start()
        await keeper.beat()
        overview = await server.processes.overview()
        assert overview.light is Light.YELLOW
        assert overview.sentence == "the oldest of 3 due runs has waited for 5 min"

        await server.work.submit("default.bad")
        assert await worker.drain() == 5
        await keeper.beat()
        overview = await server.processes.overview()
        assert (overview.due, overview.failed) == (0, 1)
        assert overview.light is Light.YELLOW
        assert overview.sentence == "100% of the attempts at default.bad failed lately"
        good = next(one for one in overview.types if one.type == "default.good")
        assert (good.per_minute, good.failure_share, good.is_taken) == (3 / 5, 0.0, True)
        await keeper.stop()


async def test_an_overview_knows_late_messages_and_dead_ones(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = Server(database_url, clock=clock, background=False)
    server.outbox.enable()
    async with server.lifespan():
        await server.outbox.enqueue("order.placed", 1, outside_transaction=True)
        clock.advance(minutes(10))
        overview = await server.processes.overview()
        assert (overview.messages_waiting, overview.messages_dead) == (1, 0)
        assert overview.sentence == "the oldest of 1 message has waited for 10 min"


# -- why a run waits


async def why(server: Server, id: str) -> str:
    return await server.processes.why(await server.work.get(id))


async def test_the_reason_why_a_run_is_not_running(database_url: str) -> None:
    clock = FakeClock(NOON)
    server = a_server(database_url, clock, background=False)

    @server.work.handler("default.waits")
    async def waits(run: Run) -> None:
        await run.wait_for("paid", timeout=3600)

    async with server.lifespan():
        later = await server.work.submit("default.good", delay=180)
        assert await why(server, later.id) == "due in 3 min"
        far = await server.work.submit("default.good", delay=timedelta(days=3))
        assert await why(server, far.id) == "due at 2026-03-04 12:00:30 UTC"
        first = await server.work.submit("default.good", group_key="g")
        second = await server.work.submit("default.good", group_key="g")
        assert await why(server, first.id) == "no living process takes default.good"

        worker = server.work.worker(lease=minutes(5))
        keeper = server.processes.keeper((worker,), "worker")
        assert keeper is not None
        await keeper.start()
        await keeper.beat()
        assert await why(server, first.id) == "it is next"
        assert await why(server, second.id) == "1 run before it"
        urgent = await server.work.submit("default.good", priority=9)
        assert await why(server, second.id) == "2 runs before it"
        assert await why(server, urgent.id) == "it is next"

        claimed = await worker.claim(2)
        assert {run.id for run in claimed} == {urgent.id, first.id}
        assert await why(server, second.id) == f"group g is busy with run {first.id}"
        assert (await why(server, first.id)).endswith("works on it, attempt 1 of 3")
        await keeper.stop()

        clock.advance(minutes(2))
        other = await server.work.submit("default.good")
        assert await why(server, other.id) == (
            "no living process takes default.good (the last one was seen 2 min ago)"
        )
        waiting = await server.work.submit("default.waits", priority=50)
        await server.work.worker(["default.waits"]).drain()
        assert await why(server, waiting.id) == "waits for signal paid until 2026-03-01 13:02:30 UTC"
        await server.work.cancel(waiting.id)
        assert await why(server, waiting.id) == "cancelled 0 s ago"


async def test_a_failed_attempt_says_when_it_is_tried_again(database_url: str) -> None:
    server = Server(database_url, clock=FakeClock(NOON), background=False)

    @server.work.handler("default.slow", max_attempts=5, backoff=lambda failures: minutes(2))
    async def slow(run: Run) -> None:
        raise ValueError("no luck")

    async with server.lifespan():
        run = await server.work.submit("default.slow")
        await server.work.worker().drain()
        assert await why(server, run.id) == "retry 2 of 5 in 2 min"
        assert (await server.processes.overview()).retrying == 1
