"""What a `Revoker` promises."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from maniflex.middleware.stores.port import Revocation
from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance._stores_case import MINUTE, SECOND, StoreCase


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
