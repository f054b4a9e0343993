"""What a message becomes after each outcome."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from maniflex._clock import Backoff
from maniflex.background.outbox.delivery import DeliveryFailed, HandedBack, Hopeless, Policy, change
from maniflex.background.outbox.model import ClaimedMessage, MessageChange, MessageStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BACKOFF = Backoff(timedelta(seconds=5), timedelta(hours=1), jitter=0)
POLICY = Policy("me", 50, 1, 10, BACKOFF, timedelta(seconds=30))


def a_message(attempts: int) -> ClaimedMessage:
    return ClaimedMessage("m", 1, "note", "k", "{}", attempts, NOW, orphaned=False)


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(1, 5), (2, 10), (3, 20), (8, 640), (9, 1280)], ids=lambda n: str(n)
)
def test_a_failure_is_tried_again_after_a_doubling_pause(attempts: int, seconds: int) -> None:
    assert change(a_message(attempts), DeliveryFailed("no"), POLICY, NOW) == MessageChange(
        "m", MessageStatus.PENDING, NOW + timedelta(seconds=seconds), last_error="no", key="k"
    )


def test_the_last_failure_is_the_end() -> None:
    assert change(a_message(10), DeliveryFailed("no"), POLICY, NOW) == MessageChange(
        "m", MessageStatus.DEAD, last_error="no"
    )


def test_what_is_hopeless_ends_at_once_and_keeps_its_bytes() -> None:
    assert change(a_message(1), Hopeless("not JSON", "{"), POLICY, NOW) == MessageChange(
        "m", MessageStatus.DEAD, last_error="not JSON", raw="{"
    )


def test_what_is_handed_back_is_not_charged() -> None:
    assert change(a_message(4), HandedBack(), POLICY, NOW) == MessageChange(
        "m", MessageStatus.PENDING, unspent=1
    )
