"""Many processes write, some are killed: no event is lost, invented, numbered twice or out of order."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from maniflex import Model, Server, field
from tests.kit.processes import run_program
from tests.kit.waiting import eventually

RECORDS = 3
WRITER = """
import asyncio, random, sys
from maniflex import Model, Server, field

url, seed, writes, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
choice = random.Random(seed)


class Counter(Model, events=True, table="counters"):
    total: int = field(default=0)


class Handled(Model, table="handled"):
    event: str = field(filterable=True)


server = Server(url, event_poll_interval=0.05, work_lease=1)
server.register(Counter, Handled)


@server.events.subscribe("counter.*", group="g", ordered=False)
async def take(event):
    await server.db(Handled).create(event=event.id)


async def write(n):
    counters = server.db(Counter)
    async with server.transaction():
        if n % 5 == 0:
            await counters.create()
        await counters.increment(f"c{choice.randrange(3)}", total=1)
        if choice.random() < 0.3:
            raise ZeroDivisionError


async def main():
    async with server.lifespan():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # its loops may have the lock of SQLite
        for n in range(writes):
            try:
                await write(n)
            except ZeroDivisionError:
                pass
            if how == "told":
                print(n, flush=True)
    print("done", flush=True)


asyncio.run(main())
"""


class Counter(Model, events=True, table="counters"):
    """What the processes count up."""

    total: int = field(default=0)


class Handled(Model, table="handled"):
    """The events that were handed on."""

    event: str = field(filterable=True)


def a_server(url: str) -> Server:
    server = Server(url, background=False)
    server.register(Counter, Handled)

    @server.events.subscribe("counter.*", group="g", ordered=False)
    async def take(event: object) -> None:
        await server.db(Handled).create(event=event.id)  # type: ignore[attr-defined]  # an Event

    return server


async def prepare(url: str) -> None:
    async with a_server(url).lifespan() as server:
        for n in range(RECORDS):
            await server.db(Counter).create(id=f"c{n}")


async def check(url: str) -> int:
    """Deliver what is left, and compare the feed with the rows; how many events there are."""
    server = a_server(url)
    async with server.lifespan():
        await eventually(lambda: is_drained(server))
        events = await server.events.read(limit=1_000_000)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert len({event.id for event in events}) == len(events)
        rows = {row.id: row.total for row in await server.db(Counter).list(limit=1_000_000)}
        created = [event.record_id for event in events if event.type == "counter.created"]
        assert sorted(created, key=str) == sorted(rows)
        for record_id in [f"c{n}" for n in range(RECORDS)]:
            totals = [event.data["total"] for event in events if event.record_id == record_id]
            assert totals == list(range(rows[record_id] + 1))
        handled = {row.event for row in await server.db(Handled).list(limit=1_000_000)}
        assert handled == {event.id for event in events}
        return len(events)


async def is_drained(server: Server) -> bool:
    """Whether nothing waits; what a killed process has claimed is free again when its lease is over."""
    await server.events.drain()
    return not any(group.waiting or group.behind for group in await server.events.standings())


def test_many_processes_write_and_route_side_by_side(database_url: str, long_mode: bool) -> None:
    processes, writes = (16, 2600) if long_mode else (4, 40)
    asyncio.run(prepare(database_url))
    with ExitStack() as stack:
        programs = [
            stack.enter_context(run_program(WRITER, database_url, seed, writes, "untold"))
            for seed in range(processes)
        ]
        for program in programs:
            assert program.hear() == "ready"
        for program in programs:
            program.say()
        assert [program.hear() for program in programs] == ["done"] * processes

    count = asyncio.run(check(database_url))

    assert count > processes * writes / 2


def test_a_process_that_is_killed_between_commit_and_delivery_loses_nothing(
    database_url: str, long_mode: bool
) -> None:
    asyncio.run(prepare(database_url))
    for seed in range(200 if long_mode else 4):
        with run_program(WRITER, database_url, seed, 1_000_000, "told") as program:
            assert program.hear() == "ready"
            program.say()
            for _ in range(5 + seed % 7):
                program.hear()
            program.kill()

    assert asyncio.run(check(database_url)) > RECORDS
