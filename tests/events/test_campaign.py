"""64 writers and relays that are killed: no event is skipped, invented or out of order, no position left out.

With --long a million events on PostgreSQL and 200,000 on SQLite, and a relay is killed every ten seconds;
else 20,000, and a kill for every few thousand that were handed on. Each transaction of a writer has several
updates, a create and events of its own; every fourth is rolled back. Each relay writes what it hands on to
the end of one file.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from maniflex import Model, Server, field
from tests.kit.processes import Nursery, Program, nursery, run_program
from tests.kit.waiting import eventually, until

PROCESSES, TASKS, RELAYS, COUNTERS = 4, 16, 2, 50
LONG = 4 * 3600.0  # seconds that the long run may take
MODELS = f"""
import asyncio, os, random, sys
from maniflex import Model, Server, field
from maniflex.errors import ManiflexError
from maniflex.events import Event

COUNTERS, TASKS = {COUNTERS}, {TASKS}


class Counter(Model, events=True, table="counters"):
    total: int = field(default=0)


class Item(Model, events=True, table="items"):
    parts: int = field(default=0)


def a_server(url, **settings):
    server = Server(url, pool_size=6, statement_timeout=300, lock_timeout=300, log_level="ERROR", **settings)
    server.register(Counter, Item)
    return server
"""
WRITER = (
    MODELS
    + """
url, seed, quota = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
choice, written, rolled_back, refused = random.Random(seed), 0, 0, 0


async def write(server):
    global written, rolled_back, refused
    while written < quota:
        places = sorted(choice.sample(range(COUNTERS), 3))  # in one order, or they would wait for each other
        count = choice.randrange(40)
        try:
            async with server.transaction():
                for place in places:
                    await server.db(Counter).increment(f"c{place}", total=1)
                item = await server.db(Item).create(parts=count)
                parts = [Event("part.made", n, subject=f"part/{item.id}") for n in range(count)]
                await server.events.publish_many(parts)
                if choice.random() < 0.25:
                    raise ZeroDivisionError
            written += len(places) + 1 + count
        except ZeroDivisionError:
            rolled_back += len(places) + 1 + count
        except ManiflexError:  # no connection in time, on a machine that others use: the next one is another
            refused += 1


async def main():
    server = a_server(url, background=False)
    async with server.lifespan():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(write(server) for _ in range(TASKS)))
    print(rolled_back, refused, flush=True)


asyncio.run(main())
"""
)
RELAY = (
    MODELS
    + """
url, path = sys.argv[1:]


def live(line):
    server = a_server(url, event_poll_interval=0.1, work_lease=2)
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND)

    @server.events.subscribe("*", group="g")
    async def take(event):
        os.write(ledger, f"{event.position} {event.key}\\n".encode())

    async def main():
        async with server.lifespan():
            await asyncio.Event().wait()

    asyncio.run(main())
"""
)


class Counter(Model, events=True, table="counters"):
    """What the writers count up."""

    total: int = field(default=0)


class Item(Model, events=True, table="items"):
    """What they create; of each part of it an event is published."""

    parts: int = field(default=0)


class Ledger:
    """What was handed on, in the order in which that happened."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file, self._rest = path.open("rb"), ""
        self.lines = 0
        self.positions: set[int] = set()
        self._last_of_key: dict[str, int] = {}
        self.out_of_order = 0

    def read(self) -> None:
        """Take in what was written since the last time; a repetition counts for nothing."""
        *lines, self._rest = (self._rest + self._file.read().decode()).split("\n")
        for line in lines:
            self.lines += 1
            digits, _, key = line.partition(" ")
            position = int(digits)
            if position in self.positions:
                continue
            self.positions.add(position)
            self.out_of_order += position < self._last_of_key.get(key, 0)
            self._last_of_key[key] = position


class Killer:
    """Kills one relay after another and starts it again."""

    def __init__(self, relays: list[Nursery], is_due: Callable[[], bool]) -> None:
        self._relays, self._is_due = relays, is_due
        self.kills = 0

    def look(self) -> None:
        if self._is_due():
            relay = self._relays[self.kills % len(self._relays)]
            relay.kill()
            relay.start()
            self.kills += 1


class EveryTenSeconds:
    """Due ten seconds after it was due."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self) -> bool:
        is_due = time.monotonic() > self._at + 10
        if is_due:
            self._at = time.monotonic()
        return is_due


class EveryThousands:
    """Due whenever some thousand more were handed on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._at = ledger, 0

    def __call__(self) -> bool:
        is_due = self._ledger.lines > self._at + 4000
        if is_due:
            self._at = self._ledger.lines
        return is_due


def a_server(url: str) -> Server:
    server = Server(url, background=False, statement_timeout=300)
    server.register(Counter, Item)
    server.events.subscribe("*", group="g")(_handle_nothing)
    return server


async def _handle_nothing(event: object) -> None:
    raise AssertionError("the relays handle all")


async def prepare(url: str) -> None:
    async with a_server(url).lifespan() as server:
        for number in range(COUNTERS):
            await server.db(Counter).create(id=f"c{number}")


async def count_events(url: str) -> int:
    async with a_server(url).lifespan() as server:
        [row] = await server.raw_query("SELECT count(*) AS number FROM event_log")
        return int(row["number"])


async def last_position(url: str) -> int:
    """The last position, once nothing waits for one or for its delivery to be settled."""
    async with a_server(url).lifespan() as server:

        async def is_settled() -> bool:
            unrouted = await server.events.store.unrouted_count()
            standings = await server.events.standings()
            return not unrouted and not any(one.waiting or one.behind for one in standings)

        await eventually(is_settled, "the settlement of every delivery")
        return (await server.events.store.position()).last


async def compare(url: str) -> int:
    """Compare the feed with the rows; how many events there are."""
    async with a_server(url).lifespan() as server:
        totals: Tally[str] = Tally()
        parts: dict[str, int] = {}
        position = 0
        while page := await server.events.store.read(position, 1000):
            for one in page:
                event, position = one.event, position + 1
                assert event.position == position, "a hole"
                if event.model == "Counter" and event.operation == "updated":
                    totals[str(event.record_id)] += 1
                    assert event.data["total"] == totals[str(event.record_id)]
                elif event.model == "Item":
                    assert event.record_id not in parts
                    parts[str(event.record_id)] = 0
                elif event.type == "part.made":
                    item_id = str(event.subject).removeprefix("part/")
                    assert event.data == parts[item_id], "out of order"
                    parts[item_id] += 1
        for counter in await server.db(Counter).list(limit=COUNTERS):
            assert counter.total == totals[counter.id]
        rows = await server.raw_query("SELECT id, parts FROM items")
        assert {row["id"]: row["parts"] for row in rows} == parts, "ghosts, or events that are missing"
        return position


def test_sixty_four_writers_lose_nothing_while_relays_are_killed(
    database_url: str, long_mode: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    in_file = database_url.startswith("sqlite")
    count = (200_000 if in_file else 1_000_000) if long_mode else 20_000
    asyncio.run(prepare(database_url))
    path = tmp_path / "ledger"
    ledger, began = Ledger(path), time.monotonic()
    with ExitStack() as stack:
        relays = [stack.enter_context(nursery(RELAY, database_url, path)) for _ in range(RELAYS)]
        for relay in relays:
            relay.start()
        writers = [
            stack.enter_context(run_program(WRITER, database_url, seed, count // PROCESSES))
            for seed in range(PROCESSES)
        ]
        killer = Killer(relays, EveryTenSeconds() if long_mode else EveryThousands(ledger))
        committed = 0
        for writer in writers:
            assert writer.hear() == "ready"
        for writer in writers:
            writer.say()

        def is_done() -> bool:
            ledger.read()
            killer.look()
            return all(has_ended(writer) for writer in writers) and len(ledger.positions) >= expected()

        def expected() -> int:
            nonlocal committed
            if not committed:
                committed = asyncio.run(count_events(database_url))
            return committed

        until(is_done, "every event", LONG if long_mode else 240)
        seconds = time.monotonic() - began
        figures = [tuple(map(int, writer.hear().split())) for writer in writers]
        last = asyncio.run(last_position(database_url))

    assert asyncio.run(compare(database_url)) == last == committed
    ledger.read()
    assert ledger.positions == set(range(1, last + 1))
    assert ledger.out_of_order == 0
    assert killer.kills > 1
    rolled_back, refused = (sum(each) for each in zip(*figures, strict=True))
    repeated = ledger.lines - last
    record_property(
        "campaign",
        f"{last} events of {PROCESSES * TASKS} writers in {seconds:.0f} s, {rolled_back} rolled back,"
        f" {refused} transactions refused,"
        f" {killer.kills} kills, {repeated} handed on again; skipped 0, ghosts 0, out of order 0",
    )


def has_ended(writer: Program) -> bool:
    return writer.process.poll() is not None
