"""A ticking service: its pauses, its wake-ups, its bad days and its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from maniflex.background.loop import Loop
from maniflex.testing.clock import FakeClock

log = logging.getLogger("test.loop")


class Counting(Loop):
    """Ticks as its script says: True, False or an exception."""

    name = "counting"

    def __init__(self, clock: FakeClock, *script: bool | Exception) -> None:
        super().__init__(clock, timedelta(seconds=10), log, jitter=0)
        self.script = list(script)
        self.begun = 0

    async def tick(self) -> bool:
        self.begun += 1
        said = self.script.pop(0) if self.script else False
        if isinstance(said, Exception):
            raise said
        return said


async def settled(clock: FakeClock) -> None:
    """Let the loop go as far as it can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_ticks_at_once_then_every_interval() -> None:
    clock = FakeClock()
    loop = Counting(clock)
    await loop.start()
    await settled(clock)
    assert loop.ticks == 1
    clock.advance(timedelta(seconds=9))
    await settled(clock)
    assert loop.ticks == 1
    clock.advance(timedelta(seconds=1))
    await settled(clock)
    assert (loop.ticks, loop.last_ok) == (2, clock.now())
    await loop.stop()


async def test_more_to_do_is_done_at_once() -> None:
    clock = FakeClock()
    loop = Counting(clock, True, True, True)
    await loop.start()
    await settled(clock)
    assert loop.ticks == 4
    await loop.stop()


async def test_it_can_be_woken_from_here_and_from_another_thread() -> None:
    clock = FakeClock()
    loop = Counting(clock)
    loop.wake()  # before it started: no harm
    await loop.start()
    await settled(clock)
    loop.wake()
    await settled(clock)
    assert loop.ticks == 2
    thread = threading.Thread(target=loop.wake)
    thread.start()
    await asyncio.to_thread(thread.join)
    await settled(clock)
    assert loop.ticks == 3
    await loop.stop()


async def test_a_bad_tick_is_survived_counted_and_told_once_per_streak(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    loop = Counting(clock, OSError("one"), OSError("two"), False, OSError("three"))
    await loop.start()
    for _ in range(200):
        clock.advance(timedelta(seconds=1))
        await settled(clock)
    await loop.stop()
    assert loop.errors == 3
    assert loop.ticks > 3
    assert len([r for r in caplog.records if "a tick failed" in r.message]) == 2


async def test_stopping_waits_for_the_tick_that_runs_and_begins_no_other() -> None:
    clock = FakeClock()
    go, ended = asyncio.Event(), asyncio.Event()

    class Slow(Counting):
        async def tick(self) -> bool:
            self.begun += 1
            await go.wait()
            ended.set()
            return True

    loop = Slow(clock)
    await loop.start()
    await settled(clock)
    stopping = asyncio.create_task(loop.stop())
    await settled(clock)
    assert not stopping.done()
    go.set()
    await stopping
    assert (ended.is_set(), loop.begun) == (True, 1)
    await loop.stop()  # twice is no harm


async def test_it_starts_again_after_it_stopped() -> None:
    clock = FakeClock()
    loop = Counting(clock)
    for expected in (1, 2):
        await loop.start()
        await settled(clock)
        await loop.stop()
        assert loop.ticks == expected
