"""Many schedulers, clock changes and deaths in between: every due time once, and by its policy.

200 schedules in six zones live through 30 days twice, once for each direction of the clock, with five
schedulers on one database. One of them dies in the middle of its transactions and then for good.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.cron import Cron
from maniflex.background.schedules.model import ScheduleFiring
from maniflex.testing.clock import FakeClock
from tests.kit.processes import Program, run_program
from tests.kit.schedules import Bench, a_bench

ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Europe/London",
    "Australia/Lord_Howe",
    "America/Havana",  # at midnight
    "Australia/Sydney",
)
COARSE = (
    "30 2 * * *",
    "15 1,2,3 * * *",
    "*/30 2 * * *",
    "0 */6 * * *",
    "@daily",
    "45 23 * * 1,3",
    "0 3 * * *",
)
FINE = (*COARSE, "*/20 * * * *", "@hourly", "5 * * * *", "*/10 1-3 * * *")
POLICIES = ("once", "all", "skip")
# The first sees the northern spring and the southern autumn, the second the other way round.
WINDOWS = {"march": datetime(2026, 3, 7, tzinfo=UTC), "october": datetime(2026, 10, 3, tzinfo=UTC)}
DAYS = 30
SCHEDULES = 200
GRACE = timedelta(minutes=1)

Said = tuple[str, str, str]


def declared(crons: Sequence[str]) -> dict[str, Said]:
    """Name → cron, zone and policy; every mixture comes up."""
    return {
        f"s{n:03}": (crons[n % len(crons)], ZONES[n // 3 % len(ZONES)], POLICIES[n % len(POLICIES)])
        for n in range(SCHEDULES)
    }


def declare(schedules: Schedules, said: dict[str, Said]) -> None:
    for name, (cron, zone, policy) in said.items():
        schedules.add(name, cron=cron, timezone=zone, policy=policy, run="sim.v1", payload={"name": name})


def moments(start: datetime, chance: random.Random, minutes: Sequence[int]) -> list[datetime]:
    """When somebody looks: often on the minute, sometimes too late for `skip` or hours after an outage."""
    found, base, end = list[datetime](), start, start + timedelta(days=DAYS)
    while base < end:
        base = min(base + timedelta(minutes=chance.choice(minutes)), end)
        found.append(base + timedelta(seconds=chance.choice((0, 0, 20, 300))))
    return sorted(found)


def expected(said: Said, start: datetime, looks: Sequence[datetime]) -> list[datetime]:
    """The due times that must have fired, told from the policy alone."""
    cron, dues = Cron.parse(said[0], said[1]), list[datetime]()
    while (due := cron.after(dues[-1] if dues else start)) is not None and due <= looks[-1]:
        dues.append(due)
    if said[2] == "all":
        return dues
    fired, since = [], start
    for look in looks:
        missed = dues[bisect_right(dues, since) : bisect_right(dues, look)]
        if missed and (said[2] == "once" or look - missed[-1] <= GRACE):
            fired.append(missed[-1])
        since = look
    return fired


async def die_in_the_middle(bench: Bench, chance: random.Random) -> bool:
    """Start a tick and take it away somewhere inside; whether there was anything left to take."""
    tick = asyncio.create_task(bench.scheduler.tick())
    for _ in range(chance.randrange(40)):
        await asyncio.sleep(0)
    tick.cancel()
    await asyncio.wait([tick])
    return tick.cancelled()


async def live(benches: list[Bench], looks: Sequence[datetime], chance: random.Random) -> int:
    """Let the schedulers work; how often the victim died while it did."""
    first, victim, deaths = benches[0], benches[-1], 0
    dying: asyncio.Task[bool] | None = None
    for n, now in enumerate(looks):
        first.clock.move_to(now)
        others = chance.sample(benches[:-1], chance.randint(1, len(benches) - 1))
        if n < len(looks) // 2:  # afterwards it is dead for good
            if n % 4 == 0:
                dying = asyncio.create_task(die_in_the_middle(victim, chance))
            else:
                others.append(victim)
        await asyncio.gather(*(bench.scheduler.tick() for bench in others))
        deaths += await dying if dying is not None else 0
        dying = None
        # What the dead one held is passed by until its connection has rolled back, which is a moment
        # later on PostgreSQL; a scheduler that runs by itself looks again after half a second.
        async with asyncio.timeout(30):
            while await first.schedules.due(limit=1):
                await first.scheduler.tick()
    return deaths


@pytest.mark.parametrize("window", WINDOWS)
async def test_every_due_time_fires_once_and_by_its_policy(
    database_url: str, window: str, long_mode: bool
) -> None:
    chance, start = random.Random(window), WINDOWS[window]
    said = declared(FINE if long_mode else COARSE)
    looks = moments(start, chance, (10, 20, 30, 60, 90) if long_mode else (30, 60, 120, 360, 720))
    clock = FakeClock(start)
    async with AsyncExitStack() as stack:
        made = [a_bench(database_url, lambda s: declare(s, said), clock=clock) for _ in range(5)]
        benches = [await stack.enter_async_context(bench) for bench in made]

        assert await live(benches, looks, chance) > 5

        firings = await benches[0].server.db(ScheduleFiring).list()
        runs = await benches[0].server.db(WorkflowRun).list()
    times: dict[str, list[ScheduleFiring]] = defaultdict(list)
    skipped: dict[str, list[ScheduleFiring]] = defaultdict(list)
    for firing in firings:
        (times if firing.outcome == "fired" else skipped)[firing.schedule_name].append(firing)
    for name, definition in said.items():
        wanted = expected(definition, start, looks)
        assert sorted(f.due_at for f in times[name]) == wanted, (name, definition)
        for gap in skipped[name]:  # what is recorded as skipped was not fired
            assert gap.skipped_until is not None
            at = bisect_left(wanted, gap.due_at)
            assert wanted[at : bisect_left(wanted, gap.skipped_until)] == [], (name, definition, gap)
    fired = [f for found in times.values() for f in found]
    assert {f.run_id for f in fired} == {run.id for run in runs}
    assert len(fired) == len(runs)


CHILD = """
import asyncio, sys
from datetime import datetime, timedelta
from tests.kit.schedules import a_bench
from maniflex.testing.clock import FakeClock

def minutely(schedules):
    for name in sys.argv[3:]:
        schedules.add(name, cron="* * * * *", run="sim.v1", policy="all")

async def main():
    clock = FakeClock(datetime.fromisoformat(sys.argv[2]))
    async with a_bench(sys.argv[1], minutely, clock=clock) as bench:
        print("ready", flush=True)
        while True:
            clock.advance(timedelta(minutes=1))
            await bench.scheduler.tick()
            print(clock.now().isoformat(), flush=True)

asyncio.run(main())
"""
NAMES = [f"m{n}" for n in range(40)]


def minutely(schedules: Schedules) -> None:
    for name in NAMES:
        schedules.add(name, cron="* * * * *", run="sim.v1", policy="all")


def seen(program: Program, lines: int, last: datetime) -> datetime:
    """The time a scheduler has come to, after so many ticks."""
    for _ in range(lines):
        line = program.hear()
        if line not in ("", "ready"):
            last = datetime.fromisoformat(line)
    return last


async def test_schedulers_killed_at_any_moment_lose_and_double_nothing(
    database_url: str, long_mode: bool
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    chance, now = random.Random(7), start
    async with a_bench(database_url, minutely, clock=FakeClock(start)) as bench:
        for _ in range(20 if long_mode else 2):
            with ExitStack() as stack:
                programs = [
                    stack.enter_context(run_program(CHILD, database_url, now, *NAMES)) for _ in range(2)
                ]
                for program in programs:
                    now = max(now, await asyncio.to_thread(seen, program, chance.randint(3, 12), now))
        bench.clock.move_to(now + timedelta(minutes=30))
        await bench.scheduler.tick()
        while bench.scheduler.more:
            await bench.scheduler.tick()

        rows = await bench.server.db(ScheduleFiring).list()
        runs = await bench.server.db(WorkflowRun).count()
    found = defaultdict(list)
    for row in rows:
        found[row.schedule_name].append(row.due_at)
    last = max(due for dues in found.values() for due in dues)
    every = [start + timedelta(minutes=n + 1) for n in range((last - start) // timedelta(minutes=1))]
    for name in NAMES:
        assert sorted(found[name]) == every, name
    assert runs == len(rows) == len({row.run_id for row in rows})
