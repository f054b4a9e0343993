"""Schedules that fire: once for each due time, by their policy, whatever happens around them."""

from __future__ import annotations

import asyncio
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from maniflex import Server
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.errors import Conflict, DeclarationError, InvalidSchedule, NotFound
from maniflex.testing.clock import FakeClock
from tests.kit.schedules import Bench, a_bench
from tests.kit.waiting import eventually

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = "report.daily.v1"


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def hourly(policy: str) -> Any:
    return lambda schedules: schedules.add("hourly", cron="@hourly", run=REPORT, policy=policy)


async def test_a_due_schedule_submits_its_run_and_moves_on(database_url: str) -> None:
    async with a_bench(
        database_url, lambda s: s.add("nightly", cron="0 2 * * *", run=REPORT, payload={"of": "day"})
    ) as bench:
        assert await bench.scheduler.tick() == 0
        bench.clock.advance(hours(2))

        assert await bench.scheduler.tick() == 1
        assert await bench.scheduler.tick() == 0

        [firing] = await bench.firings("nightly")
        [run] = await bench.runs(REPORT)
        nightly = await bench.schedules.get("nightly")
        assert (firing.due_at, firing.run_id, run.payload) == (MIDNIGHT + hours(2), run.id, {"of": "day"})
        assert (nightly.last_run_at, nightly.next_run_at) == (MIDNIGHT + hours(2), MIDNIGHT + hours(26))
        assert (await bench.schedules.firing_of(run.id)) == firing
        assert await bench.schedules.firing_of("none") is None
        assert bench.metrics.value("schedules_fired_total") == 1


@pytest.mark.parametrize(
    ("policy", "fired", "skipped"),
    [("once", [3], [1]), ("all", [1, 2, 3], []), ("skip", [], [1])],
)
async def test_missed_due_times_follow_the_policy(
    database_url: str, policy: str, fired: list[int], skipped: list[int]
) -> None:
    async with a_bench(database_url, hourly(policy)) as bench:
        bench.clock.advance(hours(3.5))

        assert await bench.scheduler.tick() == len(fired)

        assert [f.due_at.hour for f in await bench.firings("hourly")] == fired
        assert [f.due_at.hour for f in await bench.firings("hourly", "skipped")] == skipped
        assert len(await bench.runs(REPORT)) == len(fired)
        assert (await bench.schedules.get("hourly")).next_run_at == MIDNIGHT + hours(4)


async def test_skip_still_fires_what_is_only_a_little_late(database_url: str) -> None:
    async with a_bench(database_url, hourly("skip")) as bench:
        bench.clock.advance(hours(1) + timedelta(seconds=60))
        assert await bench.scheduler.tick() == 1
        bench.clock.advance(hours(1) + timedelta(seconds=1))
        assert await bench.scheduler.tick() == 0


async def test_catching_up_is_bounded_and_starves_nobody(database_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        for n in range(3):
            schedules.add(f"minutely {n}", cron="* * * * *", run="often.v1", policy="all")
        schedules.add("daily", cron="@daily", run=REPORT)

    async with a_bench(database_url, declare) as bench:
        scheduler = bench.schedules.scheduler(catch_up=100, batch=2)
        bench.clock.advance(hours(24))

        assert await scheduler.tick() == 301
        assert len(await bench.runs(REPORT)) == 1

        while scheduler.more:
            await scheduler.tick()
        assert len(await bench.runs("often.v1")) == 3 * 24 * 60


async def test_a_clock_that_goes_back_fires_nothing_twice(database_url: str) -> None:
    async with a_bench(database_url, hourly("all")) as bench:
        bench.clock.advance(hours(3))
        assert await bench.scheduler.tick() == 3

        bench.clock.move_to(MIDNIGHT + hours(0.5))
        # Made due anew by somebody with the old time: the firing rows know better.
        await bench.schedules.update("hourly", cron="0 */1 * * *")
        bench.clock.move_to(MIDNIGHT + hours(4))

        assert await bench.scheduler.tick() == 1
        assert [f.due_at.hour for f in await bench.firings("hourly")] == [1, 2, 3, 4]
        assert len(await bench.runs(REPORT)) == 4


async def broken(bench: Bench, **columns: Any) -> None:
    """Write what no check would let through."""
    sets = ", ".join(f"{name} = ?" for name in columns)
    await bench.server.raw_exec(f"UPDATE schedules SET {sets} WHERE name LIKE 'bad%'", *columns.values())


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"cron": "99 * * * *"}, "cron"),
        ({"target": "not a type"}, "target"),
        ({"kind": "url", "target": "ftp://example.com"}, "target"),
    ],
)
async def test_broken_schedules_are_switched_off_and_the_others_go_on(
    database_url: str, caplog: pytest.LogCaptureFixture, columns: dict[str, str], reason: str
) -> None:
    def declare(schedules: Schedules) -> None:
        for n in range(12):
            schedules.add(f"bad {n}", cron="@hourly", run=REPORT)
        schedules.add("good", cron="30 * * * *", run=REPORT)

    async with a_bench(database_url, declare) as bench:
        await broken(bench, **columns)
        bench.clock.advance(hours(1.5))
        scheduler = bench.schedules.scheduler(batch=5)

        assert await scheduler.tick() == 1

        off = await bench.schedules.list(status="inactive")
        assert [s.name for s in off] == sorted(f"bad {n}" for n in range(12))
        assert all(s.last_error is not None and reason in s.last_error for s in off)
        assert all(s.next_run_at is None for s in off)
        assert "inactive from now on" in caplog.text
        assert bench.metrics.value("schedules_disabled_total") == 12

        await bench.schedules.declare()  # the next start: what the code says is sound
        again = await bench.schedules.get("bad 3")
        assert (again.status, again.last_error) == ("active", None)


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Path]:
    """A directory of time zones that this machine knows besides the usual ones."""
    usual = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([*usual, str(tmp_path)])
    yield tmp_path
    zoneinfo.reset_tzpath(usual)


def learn(zones: Path, name: str) -> None:
    """Give the machine the data of a zone that keeps the time of Berlin."""
    (zones / name).parent.mkdir()
    berlin = files("tzdata").joinpath("zoneinfo", "Europe", "Berlin").read_bytes()
    (zones / name).write_bytes(berlin)


async def test_a_schedule_whose_zone_this_machine_does_not_know_is_left_to_others_and_stays_active(
    database_url: str, caplog: pytest.LogCaptureFixture, zones: Path
) -> None:
    def declare(schedules: Schedules) -> None:
        for n in range(12):
            schedules.add(f"bad {n}", cron="@hourly", run=REPORT)
        schedules.add("good", cron="30 * * * *", run=REPORT)

    async with a_bench(database_url, declare) as bench:
        zone = f"Mars/{uuid4().hex}"  # a new one, because what was learnt once is kept
        await broken(bench, timezone=zone)
        bench.clock.advance(hours(1.5))
        scheduler = bench.schedules.scheduler(batch=5)

        assert await scheduler.tick() == 1
        assert await scheduler.tick() == 0

        assert await bench.schedules.list(status="inactive") == []
        assert scheduler.until_next(bench.clock, hours(10)) == hours(1)  # not at once, and again and again
        assert bench.metrics.value("schedules_unknown_zone_total") == 24
        assert bench.metrics.value("schedules_disabled_total") == 0
        assert caplog.text.count(zone) == 1

        learn(zones, zone)
        assert await scheduler.tick() == 12

        [firing] = await bench.firings("bad 3")
        assert firing.due_at == MIDNIGHT + hours(1)
        assert (await bench.schedules.get("bad 3")).next_run_at == MIDNIGHT + hours(2)


async def test_one_schedule_that_cannot_be_fired_does_not_switch_off_those_of_unknown_zones(
    database_url: str,
) -> None:
    def declare(schedules: Schedules) -> None:
        schedules.add("bad", cron="@hourly", run=REPORT)
        schedules.add("broken", cron="@hourly", run="bad.v1")

    async with a_bench(database_url, declare) as bench:
        await broken(bench, timezone="Mars/Olympus")
        await bench.server.raw_exec("UPDATE schedules SET attempts = -1 WHERE name = 'broken'")
        bench.clock.advance(hours(1))

        assert await bench.scheduler.tick() == 0

        assert (await bench.schedules.get("bad")).status == "active"
        assert (await bench.schedules.get("broken")).status == "inactive"


async def test_a_run_that_cannot_be_submitted_takes_only_its_own_schedule_down(
    database_url: str,
) -> None:
    def declare(schedules: Schedules) -> None:
        for n in range(3):
            schedules.add(f"good {n}", cron="@hourly", run=REPORT)
        schedules.add("bad", cron="@hourly", run="bad.v1")

    async with a_bench(database_url, declare) as bench:
        await broken(bench, attempts=-1)
        bench.clock.advance(hours(1))

        assert await bench.scheduler.tick() == 3

        bad = await bench.schedules.get("bad")
        assert bad.status == "inactive"
        assert "max_attempts" in (bad.last_error or "")
        assert len(await bench.runs(REPORT)) == 3


async def test_run_now_fires_once_and_leaves_the_next_time_alone(database_url: str) -> None:
    async with a_bench(database_url, hourly("once")) as bench:
        bench.clock.advance(hours(1))  # the very moment it is due

        first = await bench.schedules.run_now("hourly")
        second = await bench.schedules.run_now("hourly")

        assert (await bench.schedules.get("hourly")).next_run_at == MIDNIGHT + hours(1)
        assert await bench.scheduler.tick() == 1
        assert {r.id for r in await bench.runs(REPORT)} > {first.id, second.id}
        assert [f.manual for f in await bench.firings("hourly")].count(True) == 2


async def test_inactive_schedules_rest_and_activating_makes_up_for_nothing(database_url: str) -> None:
    async with a_bench(database_url, hourly("all")) as bench:
        await bench.schedules.deactivate("hourly")
        bench.clock.advance(hours(5.5))
        assert await bench.scheduler.tick() == 0
        assert (await bench.schedules.run_now("hourly")).type == REPORT

        active = await bench.schedules.activate("hourly")

        assert active.next_run_at == MIDNIGHT + hours(6)
        assert await bench.scheduler.tick() == 0


async def test_declaring_again_keeps_the_due_time_unless_cron_or_zone_changed(database_url: str) -> None:
    def daily(**changes: Any) -> Any:
        said = {"cron": "0 2 * * *", "timezone": "UTC", "run": REPORT, **changes}
        return lambda schedules: schedules.add("daily", **said)

    clock = FakeClock()
    async with a_bench(database_url, daily(), clock=clock) as bench:
        first = await bench.schedules.get("daily")
    clock.advance(hours(3))
    async with a_bench(database_url, daily(payload={"n": 1}), clock=clock) as bench:
        same = await bench.schedules.get("daily")
        assert (same.id, same.next_run_at, same.payload) == (first.id, first.next_run_at, {"n": 1})
        await bench.schedules.deactivate("daily")
    async with a_bench(database_url, daily(timezone="Asia/Kolkata"), clock=clock) as bench:
        off = await bench.schedules.get("daily")
        assert (off.status, off.next_run_at, off.timezone) == ("inactive", None, "Asia/Kolkata")
        await bench.schedules.activate("daily")
    async with a_bench(database_url, daily(cron="0 4 * * *"), clock=clock) as bench:
        assert (await bench.schedules.get("daily")).next_run_at == MIDNIGHT + hours(4)


async def test_schedules_are_made_changed_and_removed_while_the_server_runs(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        schedules = bench.schedules
        made = await schedules.create("ping", cron="@hourly", url="https://example.com/ping", active=False)
        assert (made.kind, made.target, made.next_run_at) == ("url", "https://example.com/ping", None)
        with pytest.raises(Conflict):
            await schedules.create("ping", cron="@daily", run=REPORT)

        changed = await schedules.update("ping", run=REPORT, active=True, policy="skip")
        assert (changed.kind, changed.target, changed.policy) == ("run", REPORT, "skip")
        assert changed.next_run_at == MIDNIGHT + hours(1)
        assert [s.name for s in await schedules.list(status="active")] == ["ping"]

        bench.clock.advance(hours(1))
        assert [s.name for s in await schedules.due()] == ["ping"]
        await bench.scheduler.tick()
        assert await schedules.delete("ping") == 1
        with pytest.raises(NotFound):
            await schedules.get("ping")
        assert len(await bench.firings("ping")) == 1  # history outlives the schedule
        with pytest.raises(NotFound):
            await schedules.delete("ping")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("cron", {"cron": "0 0 30 2 *"}),
        ("timezone", {"timezone": "Berlin"}),
        ("target", {"run": "no type"}),
        ("target", {"url": "http://user:secret@example.com/"}),
        ("target", {"url": "file:///etc/passwd"}),
        ("policy", {"policy": "never"}),
        ("attempts", {"attempts": 0}),
        ("name", {"name": "x" * 101}),
        ("payload", {"payload": {"n": float("nan")}}),
        ("next_run_at", {"next_run_at": datetime(2026, 1, 1)}),
    ],
)
async def test_what_cannot_be_kept_is_refused_with_the_field(
    sqlite_url: str, field: str, change: dict[str, Any]
) -> None:
    async with a_bench(sqlite_url, hourly("once")) as bench:
        before = await bench.schedules.get("hourly")

        with pytest.raises(InvalidSchedule) as refused:
            await bench.schedules.update("hourly", **change)

        assert [d["field"] for d in refused.value.details or ()] == [field]  # type: ignore[index]  # a list
        assert await bench.schedules.get("hourly") == before


def test_every_mistake_of_a_declaration_is_reported() -> None:
    server = Server(":memory:")
    server.action("POST", "/tidy", name="tidy_up")(lambda ctx: None)
    server.action("POST", "/tidy/{id}", name="tidy_one")(lambda ctx: None)
    schedules = server.schedules
    schedules.add("a", cron="* * *", run=REPORT)
    schedules.add("b", cron="@daily", timezone="Nowhere", run=REPORT)
    schedules.add("c", cron="@daily")
    schedules.add("d", cron="@daily", run=REPORT, url="https://example.com")
    schedules.add("e", cron="@daily", action="tidy_pu")
    schedules.add("a", cron="@daily", run=REPORT)

    schedules.add("f", cron="@daily", action="tidy_one")

    with pytest.raises(DeclarationError) as refused:
        server.seal()
    found = str(refused.value)

    assert "'a': there is one of this name" in found
    assert "'a': cron: it has 3 fields" in found
    assert "'b': timezone" in found
    assert found.count("one target") == 2
    assert "'e': target: there is no action 'tidy_pu'; did you mean 'tidy_up'?" in found
    assert "'f': target: there is no action 'tidy_one'" in found  # nobody would know its id


async def test_declaring_after_the_start_is_refused(sqlite_url: str) -> None:
    async with a_bench(sqlite_url) as bench:
        with pytest.raises(DeclarationError, match="create"):
            bench.schedules.add("late", cron="@daily", run=REPORT)


async def test_a_rolled_back_transaction_leaves_no_schedule(database_url: str) -> None:
    async with a_bench(database_url) as bench:

        async def fail() -> None:
            async with bench.server.transaction():
                await bench.schedules.create("ghost", cron="@hourly", run=REPORT)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await fail()

        assert await bench.schedules.list() == []


async def test_old_firings_are_forgotten(database_url: str) -> None:
    async with a_bench(database_url, hourly("all"), work_retention=timedelta(days=2)) as bench:
        for _ in range(4):
            bench.clock.advance(hours(24))
            await bench.scheduler.tick()
        _, pruner = bench.schedules.services()

        await pruner.tick()  # type: ignore[attr-defined]  # a loop

        left = await bench.server.db(ScheduleFiring).list()
        assert {f.fired_at for f in left} == {MIDNIGHT + hours(24 * n) for n in (2, 3, 4)}


async def test_a_scheduler_sleeps_until_something_is_due_and_no_longer(database_url: str) -> None:
    async with a_bench(database_url, hourly("once"), schedule_poll_interval=hours(5)) as bench:
        clock, loop = bench.clock, bench.scheduler.loop
        await bench.scheduler.start()  # the keeper of the process sleeps beside it
        await eventually(lambda: loop.ticks == 1 and clock.sleepers == 2)

        clock.advance(hours(1))
        await eventually(lambda: loop.ticks == 2 and clock.sleepers == 2)
        assert len(await bench.runs(REPORT)) == 1

        # A schedule made here wakes the scheduler, which then sleeps no longer than until that is due.
        await bench.schedules.create("soon", cron="*/5 * * * *", run="soon.v1")
        await eventually(lambda: loop.ticks == 3 and clock.sleepers == 2)
        clock.advance(timedelta(minutes=5))
        await eventually(lambda: loop.ticks == 4 and clock.sleepers == 2)
        assert len(await bench.runs("soon.v1")) == 1
        await bench.scheduler.stop()


async def test_many_processes_that_start_together_declare_once(database_url: str) -> None:
    async with a_bench(database_url) as first, a_bench(database_url, hourly("once")) as second:
        await first.server.raw_exec("DELETE FROM schedules")
        await asyncio.gather(*(second.schedules.declare() for _ in range(8)))

        assert await first.server.db(Schedule).count() == 1


async def test_the_gauges_say_what_is_due_and_for_how_long(database_url: str) -> None:
    async with a_bench(database_url, hourly("once")) as bench:
        bench.clock.advance(hours(1) + timedelta(seconds=30))

        found = {sample.name: sample.value for sample in await bench.metrics.gauges()}

        assert (found["schedules_due"], found["schedules_oldest_due_seconds"]) == (1, 30)


async def test_a_type_nobody_here_handles_is_warned_of(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handlers(server: Server) -> None:
        @server.work.handler(REPORT)
        async def report(run: Any) -> None:
            """Nothing to do."""

    def declare(schedules: Schedules) -> None:
        schedules.add("good", cron="@daily", run=REPORT)
        schedules.add("typo", cron="@daily", run="report.dialy.v1")

    async with a_bench(sqlite_url, declare, handlers=handlers):
        [warned] = [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]

    assert "'typo'" in warned
    assert REPORT in warned
