"""`Poller`: ticks of a function as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Server
from maniflex.errors import DeclarationError
from maniflex.ext.integration import Poller
from maniflex.testing import FakeClock
from tests.kit.waiting import eventually

MINUTE = timedelta(minutes=1)


async def test_it_ticks_with_the_server_and_stops_with_it() -> None:
    ticks: list[int] = []
    clock = FakeClock()
    server = Server(":memory:")
    server.add_service(Poller(MINUTE, lambda: ticks.append(1), clock=clock))
    async with server.lifespan():
        await eventually(lambda: clock.sleepers > 0, "the poller sleeps")
        assert ticks == []  # the first one comes after the interval
        clock.advance(MINUTE)
        await eventually(lambda: len(ticks) == 1, "a tick")
    clock.advance(MINUTE)

    assert len(ticks) == 1


async def test_with_run_on_start_the_first_tick_comes_at_once() -> None:
    ticked = asyncio.Event()

    async def tick() -> None:
        ticked.set()

    poller = Poller(3600, tick, run_on_start=True)
    await poller.start()
    async with asyncio.timeout(10):
        await ticked.wait()
    await poller.stop()


async def test_a_failed_tick_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock, ticks = FakeClock(), []

    async def tick() -> None:
        ticks.append(1)
        if len(ticks) < 3:
            raise SystemExit(f"no terminal {len(ticks)}")

    def sleeping_after(number: int) -> Callable[[], bool]:
        return lambda: len(ticks) == number and clock.sleepers > 0

    poller = Poller(MINUTE, tick, run_on_start=True, name="terminals", clock=clock)
    await poller.start()
    for number in (1, 2, 3):
        await eventually(sleeping_after(number), "a tick, and the pause behind it")
        clock.advance(MINUTE)
    await poller.stop()

    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert all("terminals" in text for text in errors)
    assert "no terminal 2" in caplog.text


async def test_ticks_never_overlap() -> None:
    clock, running, most = FakeClock(), 0, 0
    go_on, began = asyncio.Event(), asyncio.Event()

    async def tick() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        began.set()
        await go_on.wait()
        running -= 1

    poller = Poller(MINUTE, tick, run_on_start=True, clock=clock)
    await poller.start()
    await began.wait()
    for _ in range(5):
        clock.advance(MINUTE)
        poller.wake()
        await asyncio.sleep(0)
    go_on.set()
    await eventually(lambda: poller.ticks >= 2, "two ticks")
    await poller.stop()

    assert most == 1


async def test_a_plain_function_runs_on_a_thread() -> None:
    threads: list[str] = []
    done = threading.Event()

    def tick() -> None:
        threads.append(threading.current_thread().name)
        done.set()

    poller = Poller(3600, tick, run_on_start=True)
    await poller.start()
    await eventually(done.is_set, "a tick")
    await poller.stop()

    assert threads != [threading.main_thread().name]


@pytest.mark.parametrize("interval", [0, -1, "often", True])
def test_an_interval_is_above_zero(interval: Any) -> None:
    with pytest.raises(DeclarationError, match="interval"):
        Poller(interval, lambda: None)


def test_it_calls_a_function_without_arguments() -> None:
    for wrong in (None, "fn", lambda x: x):
        with pytest.raises(DeclarationError, match="fn is a function"):
            Poller(1, wrong)  # type: ignore[arg-type]
