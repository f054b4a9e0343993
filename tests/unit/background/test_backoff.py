"""How long to wait before the next try."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from maniflex._clock import Backoff


def test_it_doubles_from_one_second_to_five_minutes() -> None:
    plain = Backoff(jitter=0)
    assert [plain(n).total_seconds() for n in range(1, 11)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]


@given(st.integers(-5, 10**9), st.floats(0, 0.999999), st.floats(0, 3))
def test_it_is_never_negative_nor_above_its_cap(failures: int, chance: float, jitter: float) -> None:
    pause = Backoff(jitter=jitter, chance=lambda: chance)(failures)
    assert timedelta(0) < pause <= timedelta(minutes=5)


def test_jitter_adds_up_to_half() -> None:
    low, high = Backoff(chance=lambda: 0.0), Backoff(chance=lambda: 1.0)
    assert (low(3), high(3)) == (timedelta(seconds=4), timedelta(seconds=6))
