"""Relays that are killed again and again while writers commit and roll back: every message arrives."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.background.outboxes import Bench, a_bench, until
from tests.processes import PATIENCE

WRITERS = 16
RELAYS = 2
KEYS_OF_A_WRITER = 3
ROLLED_BACK = 0.2
PAUSE = 0.004  # the longest a transaction stays open after it has written
ROOT = Path(__file__).parents[2]

# Imports once and forks for every life, so that a kill costs a start and not an interpreter. All relays
# append to one file: what the kernel has taken survives the kill, and the lines are one order of all.
NURSERY = """
import asyncio, os, sys
import asyncpg  # noqa
from tests.background.outboxes import a_bench

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

for line in sys.stdin:
    child = os.fork()
    if not child:
        asyncio.run(relay())
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Delivery(NamedTuple):
    id: str
    key: str
    number: int


class Relay:
    """One place for a relay, filled again after every kill."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pid = 0

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._pid = int(self._line())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        assert self._line() == "gone"


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
def relays(database_url: str, log: Log, tmp_path: Path) -> Iterator[list[Relay]]:
    script = tmp_path / "nursery.py"
    script.write_text(NURSERY)
    processes = [
        subprocess.Popen(
            [sys.executable, script, database_url, log.path],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(RELAYS)
    ]
    relays = [Relay(process) for process in processes]
    yield relays
    for relay, process in zip(relays, processes, strict=True):
        relay.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE)


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


async def kill_now_and_then(relays: list[Relay], log: Log, working: asyncio.Task[None], least: int) -> int:
    """Kill a random relay whenever some more was delivered; how often that was."""
    kills, size, chance = 0, 0, random.Random(7)
    while not working.done() or kills < least:
        await until(partial(grown, log, size, working), PATIENCE * 2, 0.02)
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
    relays: list[Relay],
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
        await until(partial(settled, bench), 1800 if long_mode else 120, 0.05)
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
