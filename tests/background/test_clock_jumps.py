"""Clocks that are set to another time: nothing fires early, nobody living is taken over, work goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from maniflex.background.clock import HOLD_OFF
from maniflex.background.runs.model import WorkflowRun
from tests.kit.machines import HOLD, REPORT, Process, World, a_world
from tests.kit.runs import minutes, seconds

HOUR = minutes(60)
YEARS = timedelta(days=3650)
STEP = seconds(5)


async def live(world: World, duration: timedelta, *, renew: bool = True) -> int:
    """Let all processes live for a while, each in a rhythm of its own; how many schedules fired."""
    fired = 0
    for n in range(duration // STEP):
        await world.pass_time(STEP)
        for place, process in enumerate(world.processes):
            if (n + place) % 3 == 0:  # every 15 seconds
                await process.keeper.tick()
            if renew and (n + place) % 2 == 0:  # every 10
                await process.renew()
            fired += await process.look()
    return fired


async def statuses(world: World) -> list[tuple[str, int]]:
    rows = await world.processes[0].server.db(WorkflowRun).list([("type", "eq", HOLD)], limit=1000)
    return [(row.status, row.attempt) for row in rows]


async def reports(world: World) -> int:
    return len(await world.processes[0].server.db(WorkflowRun).list([("type", "eq", REPORT)]))


async def check_normal_work(world: World) -> None:
    """A run whose worker died is taken back, and the schedule fires once at its time."""
    due = (await world.processes[0].server.schedules.get("report")).next_run_at
    assert due is not None
    await live(world, minutes(3), renew=False)
    assert sum(process.taken_over for process in world.processes) > 0
    before = await reports(world)
    left = due - world.processes[0].clock.now()
    await world.pass_time(left - STEP)
    for process in world.processes:
        await process.keeper.tick()
        assert await process.look() == 0
    assert await live(world, seconds(20)) == 1
    assert await reports(world) == before + 1


@pytest.mark.parametrize("step", [HOUR, -HOUR, YEARS], ids=["hour", "hour back", "years"])
async def test_the_wall_clock_of_one_machine_is_not_believed(postgres_url: str, step: timedelta) -> None:
    async with a_world(postgres_url) as world:
        for process in world.processes:
            await process.hold()

        world.machines[1].wall += step

        assert await live(world, minutes(3)) == 0
        assert await statuses(world) == [("leased", 1)] * 3
        assert all(process.clock.steady for process in world.processes)
        await check_normal_work(world)


@pytest.mark.parametrize("step", [HOUR, -HOUR, YEARS], ids=["hour", "hour back", "years"])
async def test_a_time_that_is_wrong_for_one_look_moves_nothing(database_url: str, step: timedelta) -> None:
    async with a_world(database_url) as world:
        for process in world.processes:
            await process.hold()
        first, *_ = world.processes
        before = first.clock.now()

        await world.step(step)
        await first.keeper.tick()
        for process in world.processes:
            assert await process.look() == 0
        await world.step(-step)

        assert first.clock.doubtful
        assert not first.clock.steady
        assert first.clock.now() - before < minutes(1)
        assert await live(world, minutes(2)) == 0
        assert all(process.clock.steady for process in world.processes)
        assert await statuses(world) == [("leased", 1)] * 3
        await check_normal_work(world)


@pytest.mark.parametrize("step", [HOUR, -HOUR, -seconds(25)], ids=["hour", "hour back", "a little back"])
async def test_a_lasting_jump_is_believed_by_all_and_nobody_living_is_taken_over(
    database_url: str, step: timedelta
) -> None:
    async with a_world(database_url) as world:
        for process in world.processes:
            await process.hold()
        began = world.processes[0].clock.now()

        await world.step(step)
        assert await live(world, seconds(15)) == 0  # it is not believed at once
        assert all(abs(process.clock.now() - began) < minutes(1) for process in world.processes)
        for _ in range(10):
            await live(world, seconds(15))
            for process in world.processes:
                await process.hold()

        passed = step + seconds(15) * 11
        assert all(abs(process.clock.now() - began - passed) < seconds(5) for process in world.processes)
        assert all(process.clock.steady for process in world.processes)
        # Who did not believe the new time yet may have found nothing due.
        assert set(await statuses(world)) <= {("leased", 1), ("pending", 0)}
        assert sum(process.taken_over for process in world.processes) == 0
        await check_normal_work(world)


async def test_messages_of_living_relays_are_not_taken_over_in_a_jump(database_url: str) -> None:
    async with a_world(database_url) as world:
        first, second, third = world.processes
        async with first.server.transaction():
            await first.server.outbox.enqueue_many("note", range(3), keys=["a", "b", None])
        await second.relay._turn(claim=True)  # takes one
        held = second.relay._next
        assert held is not None

        await world.step(HOUR)
        for _ in range(8):
            await live(world, seconds(15))
            assert (await _claimed(first)) in (["b"], [None], [])
            assert (await _claimed(third)) in (["b"], [None], [])

        assert second.relay.lease_keeper.held == held.held_leases()
        assert not second.relay._lost


async def _claimed(process: Process) -> list[str | None]:
    """The keys a relay claims, which it gives back at once."""
    relay = process.relay
    await relay._turn(claim=True)
    keys = [message.key for message in relay._next.messages] if relay._next is not None else []
    await relay.hand_back()
    return keys


async def test_holding_off_outlasts_what_the_slowest_process_needs_to_believe(database_url: str) -> None:
    async with a_world(database_url) as world:
        first, *_ = world.processes
        await world.step(HOUR)
        await first.keeper.tick()
        assert not first.clock.steady

        await world.pass_time(HOLD_OFF + first.server.config.work_lease / 3 - seconds(2))
        assert not first.clock.steady
        await world.pass_time(seconds(4))
        assert first.clock.steady
