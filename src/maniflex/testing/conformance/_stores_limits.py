"""What a `RateLimitBackend` promises."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance._stores_case import MINUTE, SECOND, StoreCase


async def take(store: Any, clock: FakeClock, key: str = "key", limit: int = 10, **options: Any) -> Any:
    window, cost = options.get("window", MINUTE), options.get("cost", 1)
    return await store.take(key, limit, window, cost, clock.now())


class Limiting(StoreCase):
    """Token buckets."""

    @pytest.mark.parametrize("limit", [1, 7, 10, 60, 999])
    async def test_a_full_bucket_has_exactly_its_tokens(
        self, store: Any, clock: FakeClock, limit: int
    ) -> None:
        answers = [await take(store, clock, limit=limit) for _ in range(limit + 2)]
        assert [one.allowed for one in answers] == [True] * limit + [False, False]
        assert [one.remaining for one in answers] == [*reversed(range(limit)), 0, 0]

    async def test_an_empty_bucket_says_when_there_is_a_token(self, store: Any, clock: FakeClock) -> None:
        for _ in range(10):
            assert (await take(store, clock)).retry_after == 0
        refusal = await take(store, clock)
        assert refusal.retry_after == pytest.approx(6, abs=0.01)
        clock.advance(timedelta(seconds=5.9))
        assert not (await take(store, clock)).allowed
        clock.advance(timedelta(seconds=0.2))
        assert (await take(store, clock)).allowed
        assert not (await take(store, clock)).allowed

    @pytest.mark.parametrize("limit", [3, 7, 9, 11, 13])
    async def test_it_is_worth_to_wait_exactly_as_long_as_told(
        self, store: Any, clock: FakeClock, limit: int
    ) -> None:
        for _ in range(limit):
            await take(store, clock, limit=limit)
        for _ in range(5):
            refusal = await take(store, clock, limit=limit)
            assert not refusal.allowed
            clock.advance(timedelta(seconds=refusal.retry_after, microseconds=2))
            assert (await take(store, clock, limit=limit)).allowed

    async def test_a_bucket_refills_evenly_and_not_beyond_its_size(
        self, store: Any, clock: FakeClock
    ) -> None:
        for _ in range(10):
            await take(store, clock)
        clock.advance(MINUTE / 2)
        assert (await take(store, clock)).remaining == 4
        clock.advance(10 * MINUTE)
        assert (await take(store, clock)).remaining == 9

    async def test_a_refusal_takes_nothing(self, store: Any, clock: FakeClock) -> None:
        assert (await take(store, clock, cost=8)).remaining == 2
        assert not (await take(store, clock, cost=3)).allowed
        assert (await take(store, clock, cost=2)).allowed

    async def test_a_cost_is_waited_for_as_a_whole(self, store: Any, clock: FakeClock) -> None:
        await take(store, clock, cost=10)
        refusal = await take(store, clock, cost=5)
        assert refusal.retry_after == pytest.approx(30, abs=0.01)
        clock.advance(timedelta(seconds=30.01))
        assert (await take(store, clock, cost=5)).allowed

    async def test_more_than_a_bucket_holds_is_never_allowed(self, store: Any, clock: FakeClock) -> None:
        refusal = await take(store, clock, cost=11)
        assert (refusal.allowed, refusal.retry_after) == (False, 60)
        assert (await take(store, clock, cost=10)).allowed

    async def test_keys_have_buckets_of_their_own(self, store: Any, clock: FakeClock) -> None:
        await take(store, clock, "ada", limit=1)
        assert (await take(store, clock, "bob", limit=1)).allowed
        assert (await take(store, clock, "x" * 5000, limit=1)).allowed
        assert not (await take(store, clock, "ada", limit=1)).allowed

    async def test_a_window_may_be_a_number_of_seconds(self, store: Any, clock: FakeClock) -> None:
        assert (await take(store, clock, limit=1, window=60)).allowed
        assert (await take(store, clock, limit=1, window=60)).retry_after == pytest.approx(60, abs=0.01)

    async def test_a_clock_that_went_back_empties_no_bucket_for_long(
        self, store: Any, clock: FakeClock
    ) -> None:
        await take(store, clock, limit=1)
        clock.move_to(clock.now() - timedelta(days=1))
        assert (await take(store, clock, limit=1)).allowed

    async def test_of_many_at_once_as_many_pass_as_there_are_tokens(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        calls = [take(one, clock, limit=25) for _ in range(40) for one in (store, twin)]
        answers = await asyncio.gather(*calls)
        assert sum(one.allowed for one in answers) == 25
        clock.advance(SECOND)
        assert not (await take(twin, clock, limit=25)).allowed
