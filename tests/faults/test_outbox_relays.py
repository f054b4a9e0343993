"""Relays that are killed again and again while writers commit and roll back: every message arrives."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.outbox import Bench, a_bench
from tests.kit.processes import Nursery, nursery
from tests.kit.waiting import PATIENCE, eventually

WRITERS = 16
RELAYS = 2
KEYS_OF_A_WRITER = 3
ROLLED_BACK = 0.2
PAUSE = 0.004  # the longest a transaction stays open after it has written

# All relays append to one file: what the kernel has taken survives the kill, and its lines are one order.
LIFE = """
import asyncio, os, sys
import asyncpg  # noqa
from tests.kit.outbox import a_bench

url, log = sys.argv[1:]

async def relay():
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def declare(outbox):
        @outbox.handler("note")
        async def note(message):
            os.write(out, f"{message.id} {message.key} {message.payload}\\n".encode())
            await asyncio.sleep(0)

    async with a_bench(url, declare, auto_migrate=False, work_lease=1.0, outbox_poll_interval=0.2,
                       lock_timeout=30, outbox_max_attempts=30) as bench:
        await bench.outbox.worker().run()

def live(line):
    asyncio.run(relay())
"""


class Delivery(NamedTuple):
    id: str
    key: str
    number: int


class Log:
    """What the relays have delivered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def deliveries(self) -> list[Delivery]:
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [Delivery(id, key, int(number)) for id, key, number in lines]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "deliveries.txt")


@pytest.fixture
def relays(database_url: str, log: Log) -> Iterator[list[Nursery]]:
    with ExitStack() as stack:
        yield [stack.enter_context(nursery(LIFE, database_url, log.path)) for _ in range(RELAYS)]


class Writers:
    """Enqueue numbered messages; each key belongs to one writer, so its transactions are in order."""

    def __init__(self, bench: Bench, wanted: int) -> None:
        self.committed: dict[str, tuple[str, int]] = {}
        self._bench = bench
        self._wanted = wanted
        self._numbers: dict[str, int] = defaultdict(int)

    async def run(self) -> None:
        await asyncio.gather(*(self._write(writer) for writer in range(WRITERS)))

    async def _write(self, writer: int) -> None:
        chance = random.Random(writer)
        while len(self.committed) < self._wanted:
            key = f"{writer}-{chance.randrange(KEYS_OF_A_WRITER)}"
            with suppress(ZeroDivisionError):
                self.committed.update(await self._transaction(key, chance))

    async def _transaction(self, key: str, chance: random.Random) -> dict[str, tuple[str, int]]:
        made = {}
        async with self._bench.server.transaction():
            for _ in range(chance.randint(1, 8)):
                self._numbers[key] += 1
                message = await self._bench.outbox.enqueue("note", self._numbers[key], key=key)
                made[message.id] = (key, self._numbers[key])
            await asyncio.sleep(chance.random() * PAUSE)
            if chance.random() < ROLLED_BACK:
                raise ZeroDivisionError
        return made


def grown(log: Log, size: int, working: asyncio.Task[None]) -> bool:
    return log.size > size or working.done()


async def kill_now_and_then(relays: list[Nursery], log: Log, working: asyncio.Task[None], least: int) -> int:
    """Kill a random relay whenever some more was delivered; how often that was."""
    kills, size, chance = 0, 0, random.Random(7)
    while not working.done() or kills < least:
        await eventually(partial(grown, log, size, working), patience=PATIENCE * 2)
        await asyncio.sleep(chance.random() * 0.5)
        relay = chance.choice(relays)
        relay.kill()
        relay.start()
        kills, size = kills + 1, log.size
    return kills


async def settled(bench: Bench) -> bool:
    return not await bench.server.raw_query("SELECT id FROM outbox_event WHERE status = 'pending' LIMIT 1")


async def test_no_message_is_skipped_made_up_or_out_of_order(
    database_url: str,
    relays: list[Nursery],
    log: Log,
    long_mode: bool,
    record_property: Callable[[str, object], None],
) -> None:
    wanted, least = (50_000, 60) if long_mode else (3_000, 8)
    async with a_bench(database_url, lock_timeout=30) as bench:
        for relay in relays:
            relay.start()
        writers = Writers(bench, wanted)
        working = asyncio.create_task(writers.run())
        kills = await kill_now_and_then(relays, log, working, least)
        await working
        await eventually(partial(settled, bench), patience=1800 if long_mode else 120)
        dead = [row.id for row in await bench.rows(status="dead")]

    deliveries = log.deliveries()
    first = {delivery.id: delivery for delivery in reversed(deliveries)}
    in_order: dict[str, list[int]] = defaultdict(list)
    for delivery in dict.fromkeys(deliveries):
        in_order[delivery.key].append(delivery.number)
    record_property(
        "outcome", f"{len(first)} messages, {kills} kills, {len(deliveries) - len(first)} repeated"
    )
    assert writers.committed.keys() - first.keys() == set(), "skipped"
    assert first.keys() - writers.committed.keys() == set(), "ghosts"
    assert {id: (d.key, d.number) for id, d in first.items()} == writers.committed
    assert all(numbers == sorted(set(numbers)) for numbers in in_order.values()), "order or a second id"
    assert dead == []
    assert kills >= least
