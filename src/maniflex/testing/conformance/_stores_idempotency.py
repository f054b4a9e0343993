"""What an `IdempotencyStore` promises."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from maniflex.middleware.stores.port import ClaimState, KeyClaim
from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance._stores_case import MINUTE, SECOND, StoreCase

LEASE = timedelta(seconds=30)
DAY = timedelta(days=1)


async def claim(store: Any, clock: FakeClock, key: str = "key", fingerprint: str = "body") -> KeyClaim:
    answer: KeyClaim = await store.claim(key, fingerprint, lease=LEASE, now=clock.now())
    return answer


async def look(store: Any, clock: FakeClock, key: str = "key", fingerprint: str = "body") -> KeyClaim:
    answer: KeyClaim = await store.look(key, fingerprint, now=clock.now())
    return answer


async def settle(
    store: Any, clock: FakeClock, token: str, answer: bytes | None = b"answer", key: str = "key"
) -> bool:
    is_settled: bool = await store.settle(key, token, answer, ttl=DAY, now=clock.now())
    return is_settled


class Claiming(StoreCase):
    """Claims of keys and what came of them."""

    async def test_a_new_key_is_claimed_with_a_token(self, store: Any, clock: FakeClock) -> None:
        assert (await look(store, clock)).state is ClaimState.FREE
        first, other = await claim(store, clock), await claim(store, clock, "other")
        assert (first.state, other.state) == (ClaimState.CLAIMED, ClaimState.CLAIMED)
        assert first.token
        assert first.token != other.token

    async def test_a_claimed_key_is_running_for_others(self, store: Any, twin: Any, clock: FakeClock) -> None:
        await claim(store, clock)
        for other in (await claim(twin, clock), await look(twin, clock)):
            assert other.state is ClaimState.RUNNING
            assert 0 < other.retry_after <= LEASE.total_seconds()
            assert not other.token

    async def test_another_fingerprint_is_told_while_it_runs_and_afterwards(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        mine = await claim(store, clock)
        assert (await claim(twin, clock, fingerprint="other")).state is ClaimState.REUSED
        assert (await look(twin, clock, fingerprint="other")).state is ClaimState.REUSED
        await settle(store, clock, mine.token)
        assert (await claim(twin, clock, fingerprint="other")).state is ClaimState.REUSED
        assert (await claim(twin, clock)).answer == b"answer"

    async def test_a_settled_key_gives_its_answer_until_its_time_is_over(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        answer = b"\x00\xff" * 1000
        mine = await claim(store, clock)
        assert await settle(store, clock, mine.token, answer)
        clock.advance(DAY - MINUTE)
        for seen_claim in (await claim(twin, clock), await look(twin, clock)):
            assert (seen_claim.state, seen_claim.answer) == (ClaimState.SETTLED, answer)
        clock.advance(MINUTE + SECOND)
        assert (await claim(twin, clock, fingerprint="new")).state is ClaimState.CLAIMED

    async def test_a_key_can_be_settled_without_an_answer(self, store: Any, clock: FakeClock) -> None:
        mine = await claim(store, clock)
        assert await settle(store, clock, mine.token, None)
        seen_claim = await claim(store, clock)
        assert (seen_claim.state, seen_claim.answer) == (ClaimState.SETTLED, None)

    async def test_an_empty_answer_is_an_answer(self, store: Any, clock: FakeClock) -> None:
        mine = await claim(store, clock)
        await settle(store, clock, mine.token, b"")
        assert (await claim(store, clock)).answer == b""

    async def test_a_released_key_is_free_at_once(self, store: Any, twin: Any, clock: FakeClock) -> None:
        mine = await claim(store, clock)
        await store.release("key", mine.token)
        assert (await look(twin, clock)).state is ClaimState.FREE
        assert (await claim(twin, clock, fingerprint="new")).state is ClaimState.CLAIMED

    async def test_the_claim_of_a_dead_owner_ends_with_its_lease(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        dead = await claim(store, clock)
        clock.advance(LEASE - SECOND)
        assert (await claim(twin, clock)).state is ClaimState.RUNNING
        clock.advance(2 * SECOND)
        successor = await claim(twin, clock)
        assert successor.state is ClaimState.CLAIMED
        assert successor.token != dead.token

    async def test_a_renewed_claim_lives_on(self, store: Any, twin: Any, clock: FakeClock) -> None:
        mine = await claim(store, clock)
        for _ in range(4):
            clock.advance(LEASE * 0.75)
            assert await store.renew("key", mine.token, lease=LEASE, now=clock.now())
            assert (await claim(twin, clock)).state is ClaimState.RUNNING
        assert await settle(store, clock, mine.token)

    async def test_who_has_lost_a_claim_changes_nothing_any_more(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        asleep = await claim(store, clock)
        clock.advance(LEASE + SECOND)
        successor = await claim(twin, clock)

        assert not await store.renew("key", asleep.token, lease=LEASE, now=clock.now())
        assert not await settle(store, clock, asleep.token, b"late")
        await store.release("key", asleep.token)

        assert (await look(store, clock)).state is ClaimState.RUNNING
        assert await settle(twin, clock, successor.token, b"mine")
        assert (await claim(store, clock)).answer == b"mine"

    async def test_a_settled_key_is_neither_settled_again_nor_released(
        self, store: Any, clock: FakeClock
    ) -> None:
        mine = await claim(store, clock)
        await settle(store, clock, mine.token, b"first")
        assert not await settle(store, clock, mine.token, b"second")
        assert not await store.renew("key", mine.token, lease=LEASE, now=clock.now())
        await store.release("key", mine.token)
        assert (await claim(store, clock)).answer == b"first"

    async def test_of_many_twins_one_claims(self, store: Any, twin: Any, clock: FakeClock) -> None:
        for turn in range(20):
            key = f"key-{turn}"
            calls = [claim(one, clock, key) for _ in range(10) for one in (store, twin)]
            states = sorted(one.state for one in await asyncio.gather(*calls))
            assert states == [ClaimState.CLAIMED] + [ClaimState.RUNNING] * 19

    async def test_of_many_that_find_a_lease_over_one_claims(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        for turn in range(10):
            key = f"key-{turn}"
            await claim(store, clock, key)
            clock.advance(LEASE + SECOND)
            calls = [claim(one, clock, key) for _ in range(10) for one in (store, twin)]
            states = [one.state for one in await asyncio.gather(*calls)]
            assert states.count(ClaimState.CLAIMED) == 1
