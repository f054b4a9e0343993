"""The heart renews from a thread of its own, whatever the loop is busy with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from maniflex.background.leases import Held, LeaseKeeper
from maniflex.db.sqlite.adapter import SqliteAdapter
from tests.kit.waiting import PATIENCE, until

log = logging.getLogger("test.heart")
EVERY = timedelta(milliseconds=20)


class Renewals:
    """What a heart asked for; some of it is lost, and now and then the database is away."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.gone: set[str] = set()
        self.away = False
        self.hangs = False

    async def __call__(self, adapter: Any, held: Sequence[Held]) -> set[str]:
        self.asked.append((time.monotonic(), tuple(one.id for one in held)))
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise OSError("away")
        return self.gone


class CountingKeeper(LeaseKeeper[SqliteAdapter]):
    """Counts its beats, also those with nothing to renew."""

    beats = 0

    async def beat(self, adapter: SqliteAdapter) -> None:
        self.beats += 1
        await super().beat(adapter)


async def test_it_beats_while_the_loop_is_blocked_and_says_what_is_lost() -> None:
    renewals = Renewals()
    lost: list[str] = []
    lease_keeper = LeaseKeeper(SqliteAdapter(":memory:"), renewals, EVERY, log)
    one, two = Held("one", "a"), Held("two", "b")
    await opened(lease_keeper)
    lease_keeper.hold(one, lambda: lost.append("one"))
    lease_keeper.hold(two, lambda: lost.append("two"))
    renewals.gone = {"two"}
    until(lambda: len(renewals.asked) >= 3, "three beats while this thread, and with it the loop, is blocked")
    lease_keeper.drop(one)
    lease_keeper.drop(two)
    await lease_keeper.stop()
    assert set(lost) == {"two"}
    assert lease_keeper.holding == 0


async def test_it_rests_when_there_is_nothing_to_hold_and_goes_on_after_failures() -> None:
    renewals, errors = Renewals(), list[BaseException]()
    lease_keeper = CountingKeeper(SqliteAdapter(":memory:"), renewals, EVERY, log, errors.append)
    await opened(lease_keeper)
    until(lambda: lease_keeper.beats >= 3, "beats without anything to hold")
    assert renewals.asked == []
    renewals.away = True
    lease_keeper.hold(Held("one", "a"), lambda: None)
    until(lambda: errors, "a failure")
    renewals.away = False
    failed = len(errors)
    until(lambda: len(renewals.asked) > failed + 1, "renewals after the failures")
    await lease_keeper.stop()


async def test_a_renewal_that_hangs_does_not_hold_up_the_stop() -> None:
    renewals = Renewals()
    renewals.hangs = True
    lease_keeper = LeaseKeeper(SqliteAdapter(":memory:"), renewals, EVERY, log)
    await opened(lease_keeper)
    lease_keeper.hold(Held("one", "a"), lambda: None)
    until(lambda: renewals.asked, "the renewal that hangs")
    async with asyncio.timeout(PATIENCE):
        await lease_keeper.stop()
    await lease_keeper.stop()


async def opened(lease_keeper: LeaseKeeper[Any]) -> None:
    await lease_keeper._adapter.open()
    await lease_keeper.start()
