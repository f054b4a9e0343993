"""What the suites of stores share: a clock, a store on it, and the same store as another process has it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from maniflex.middleware.stores.port import ClaimState, KeyClaim, Revocation
from maniflex.testing.clock import FakeClock

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


class StoreCase:
    """The fixtures. An author overrides `store`: empty, on the suite's clock, closed after."""

    is_shared: ClassVar[bool] = True  # False: every process has one of its own

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def store(self, clock: FakeClock) -> Any:
        raise NotImplementedError("override the `store` fixture with an empty store on this clock")

    @pytest.fixture
    async def twin(self, store: Any, clock: FakeClock) -> Any:
        """The store as another process has it; override it where processes share one."""
        if self.is_shared:
            raise NotImplementedError("override the `twin` fixture with another store of the same place")
        return store

    async def pass_time(self, store: Any, clock: FakeClock, delta: timedelta) -> None:
        """Let time go by; override it where values expire by another clock."""
        clock.advance(delta)


ODD_KEYS = ("", "a b", "ключ", "x" * 5000, "a:b", "a\x00b", "\ud800")
ODD_VALUES = (b"", b"\x00\xff\x00", b"12", b"null", bytes(range(256)) * 400)


class Caching(StoreCase):
    """Values and numbers under keys."""

    @pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: f"{len(value)} bytes")
    async def test_the_same_bytes_come_out(self, store: Any, twin: Any, value: bytes) -> None:
        await store.set("key", value, MINUTE)
        assert await twin.get("key") == value

    async def test_keys_of_any_kind_are_told_apart(self, store: Any) -> None:
        for place, key in enumerate(ODD_KEYS):
            await store.set(key, b"%d" % place, MINUTE)
        values = [await store.get(key) for key in ODD_KEYS]
        assert values == [b"%d" % place for place in range(len(ODD_KEYS))]

    async def test_an_unknown_key_is_a_miss(self, store: Any) -> None:
        assert await store.get("nothing") is None
        await store.delete("nothing", "nothing else")
        await store.delete()

    async def test_a_value_is_replaced(self, store: Any, twin: Any) -> None:
        await store.set("key", b"old", MINUTE)
        await twin.set("key", b"new", None)
        assert await store.get("key") == b"new"

    async def test_a_value_ends_with_its_time(self, store: Any, clock: FakeClock) -> None:
        await store.set("short", b"1", MINUTE)
        await store.set("long", b"2", 120)
        await store.set("kept", b"3", None)
        await self.pass_time(store, clock, MINUTE + SECOND)
        assert [await store.get(key) for key in ("short", "long", "kept")] == [None, b"2", b"3"]

    async def test_a_value_that_is_set_again_begins_anew(self, store: Any, clock: FakeClock) -> None:
        await store.set("key", b"1", MINUTE)
        await self.pass_time(store, clock, MINUTE / 2)
        await store.set("key", b"2", MINUTE)
        await self.pass_time(store, clock, MINUTE * 0.75)
        assert await store.get("key") == b"2"

    async def test_deleted_keys_are_gone_and_others_stay(self, store: Any, twin: Any) -> None:
        for key in ("a", "b", "c"):
            await store.set(key, b"1", MINUTE)
        await twin.delete("a", "c", "unknown")
        assert [await store.get(key) for key in ("a", "b", "c")] == [None, b"1", None]

    async def test_a_number_begins_at_nothing_and_is_readable(self, store: Any) -> None:
        assert await store.increment("count") == 1
        assert await store.increment("count", 5) == 6
        assert await store.increment("count", -10) == -4
        assert await store.get("count") == b"-4"

    async def test_a_number_keeps_the_end_it_got_first(self, store: Any, clock: FakeClock) -> None:
        await store.increment("count", 1, MINUTE)
        await self.pass_time(store, clock, MINUTE / 2)
        assert await store.increment("count", 1, MINUTE) == 2
        await self.pass_time(store, clock, MINUTE / 2 + SECOND)
        assert await store.get("count") is None
        assert await store.increment("count", 1, MINUTE) == 1

    async def test_a_value_that_is_no_number_takes_no_addition(self, store: Any) -> None:
        await store.set("key", b"words", MINUTE)
        with pytest.raises(ValueError, match="number"):
            await store.increment("key")
        assert await store.get("key") == b"words"

    async def test_an_ended_value_is_no_hindrance_to_a_number(self, store: Any, clock: FakeClock) -> None:
        await store.set("key", b"words", MINUTE)
        await self.pass_time(store, clock, MINUTE + SECOND)
        assert await store.increment("key", 3) == 3

    async def test_additions_at_once_all_count(self, store: Any, twin: Any) -> None:
        numbers = await asyncio.gather(*(one.increment("count") for _ in range(50) for one in (store, twin)))
        assert sorted(numbers) == list(range(1, 101))


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


class Revoking(StoreCase):
    """Revoked tokens and users."""

    async def test_a_revoked_token_is_known_everywhere_until_it_would_have_expired(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        await store.revoke_token("jti", clock.now() + MINUTE)
        assert await twin.is_revoked("jti")
        assert not await twin.is_revoked("other")
        clock.advance(MINUTE - SECOND)
        assert await twin.is_revoked("jti")
        clock.advance(2 * SECOND)
        assert not await twin.is_revoked("jti")

    async def test_revoking_twice_keeps_the_later_end(self, store: Any, clock: FakeClock) -> None:
        for minutes in (2, 1):
            await store.revoke_token("jti", clock.now() + minutes * MINUTE)
        clock.advance(1.5 * MINUTE)
        assert await store.is_revoked("jti")

    async def test_a_cutoff_is_given_back_to_the_microsecond(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        cutoff = clock.now() + timedelta(microseconds=123_457)
        await store.revoke_user("ada", cutoff, clock.now() + MINUTE)
        assert await twin.user_cutoff("ada") == cutoff
        assert await twin.user_cutoff("bob") is None

    async def test_a_cutoff_only_moves_forward(self, store: Any, twin: Any, clock: FakeClock) -> None:
        now, keep = clock.now(), clock.now() + MINUTE
        for seconds in (5, 1, 9, 3):
            await store.revoke_user("ada", now + seconds * SECOND, keep)
        assert await twin.user_cutoff("ada") == now + 9 * SECOND

    async def test_cutoffs_that_arrive_at_once_leave_the_last(
        self, store: Any, twin: Any, clock: FakeClock
    ) -> None:
        now, keep = clock.now(), clock.now() + MINUTE
        calls = [
            one.revoke_user("ada", now + timedelta(milliseconds=(7 * n) % 40), keep)
            for n in range(40)
            for one in (store, twin)
        ]
        await asyncio.gather(*calls)
        assert await store.user_cutoff("ada") == now + timedelta(milliseconds=39)

    async def test_a_cutoff_stops_counting_at_its_deadline(self, store: Any, clock: FakeClock) -> None:
        await store.revoke_user("ada", clock.now(), clock.now() + MINUTE)
        await store.revoke_user("ada", clock.now() + SECOND, clock.now() + MINUTE / 2)
        clock.advance(MINUTE - SECOND)
        assert await store.user_cutoff("ada") is not None
        clock.advance(2 * SECOND)
        assert await store.user_cutoff("ada") is None

    async def test_a_token_and_a_user_of_one_name_are_two_things(self, store: Any, clock: FakeClock) -> None:
        await store.revoke_token("same", clock.now() + MINUTE)
        assert await store.user_cutoff("same") is None
        await store.revoke_user("other", clock.now(), clock.now() + MINUTE)
        assert not await store.is_revoked("other")

    async def test_both_questions_are_answered_at_once(self, store: Any, clock: FakeClock) -> None:
        if not hasattr(store, "look_up"):
            pytest.skip("it answers one question at a time")
        cutoff = clock.now()
        await store.revoke_token("jti", cutoff + MINUTE)
        await store.revoke_user("ada", cutoff, cutoff + MINUTE)
        assert await store.look_up("jti", "bob") == Revocation(True, None)
        assert await store.look_up("other", "ada") == Revocation(False, cutoff)

    async def test_moments_without_a_time_zone_are_refused(self, store: Any) -> None:
        with pytest.raises(ValueError, match="time zone"):
            await store.revoke_token("jti", datetime(2026, 1, 1))
        with pytest.raises(ValueError, match="time zone"):
            await store.revoke_user("ada", datetime(2026, 1, 1), datetime(2026, 1, 1))
