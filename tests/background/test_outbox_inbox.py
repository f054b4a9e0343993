"""A message that comes twice is dealt with once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from maniflex.background.outbox.api import Outbox
from maniflex.errors import DeclarationError, TransactionError
from maniflex.testing.clock import FakeClock
from tests.kit.outbox import Bench, Order, a_bench


async def take(bench: Bench, id: str, *, fail: bool = False, consumer: str = "default") -> bool:
    """Make an order of a message, unless that was done before."""
    async with bench.server.transaction() as tx:
        first = await bench.outbox.inbox.once(id, tx, consumer=consumer)
        if first:
            await bench.server.db(Order).create(number=1)
        if fail:
            raise ZeroDivisionError
    return first


async def test_only_the_first_time_counts(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        assert [await take(bench, id) for id in ("a", "a", "b", "a")] == [True, False, True, False]
        assert len(await bench.server.db(Order).list()) == 2


async def test_what_was_rolled_back_was_not_dealt_with(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        with pytest.raises(ZeroDivisionError):
            await take(bench, "a", fail=True)

        assert await take(bench, "a")


async def test_consumers_do_not_disturb_each_other(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        assert await take(bench, "a", consumer="mail")
        assert await take(bench, "a", consumer="ledger")
        assert not await take(bench, "a", consumer="mail")


async def test_of_many_at_once_one_is_the_first(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        firsts = await asyncio.gather(*(take(bench, "a") for _ in range(8)))

        assert sorted(firsts) == [False] * 7 + [True]


async def test_it_needs_a_transaction_and_a_started_server(database_url: str) -> None:
    with pytest.raises(DeclarationError, match="started"):
        await Outbox().inbox.once("a")
    async with a_bench(database_url) as bench:
        with pytest.raises(TransactionError, match="transaction") as refused:
            await bench.outbox.inbox.once("a")
        assert refused.value.code == "TX_REQUIRED"


async def test_old_records_are_removed(database_url: str) -> None:
    clock = FakeClock()
    async with a_bench(database_url, clock=clock) as bench:
        await take(bench, "old")
        clock.advance(timedelta(days=7, seconds=1))
        await take(bench, "new")
        [*_, pruner] = bench.outbox.services()

        await pruner.tick()  # type: ignore[attr-defined]  # the pruner is a loop

        assert await take(bench, "old")
        assert not await take(bench, "new")
