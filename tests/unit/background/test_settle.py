"""What the row of a run becomes, branch by branch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from maniflex._json import clean, decode, encode
from maniflex.background.leases import Held
from maniflex.background.runs.handlers import RunHandlers, prefix_range
from maniflex.background.runs.outcomes import (
    FOREVER,
    NO_HANDLER,
    Done,
    Dropped,
    Failed,
    Outcome,
    Paused,
    Released,
    settle,
)
from maniflex.background.runs.rows import ClaimedRun, RunChange
from maniflex.errors import ValidationFailed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(attempt: int = 1, max_attempts: int = 3) -> ClaimedRun:
    who = (None, None, None, None, None, None)
    return ClaimedRun("id", "default.x", "{}", attempt, max_attempts, None, 0, NOW, *who, Held("id", "lease"))


def settled(outcome: Outcome, attempt: int = 1) -> RunChange:
    change = settle(claimed(attempt), outcome, lambda n: timedelta(seconds=n), NOW)
    assert change is not None
    assert change.held == ("id", "lease")
    return change


@pytest.mark.parametrize("outcome", [Done("1"), Dropped()])
def test_success_and_what_is_not_ours_change_nothing_here(outcome: Outcome) -> None:
    assert settle(claimed(), outcome, lambda n: timedelta(0), NOW) is None


@pytest.mark.parametrize(
    ("attempt", "status"), [(1, "pending"), (2, "pending"), (3, "failed"), (4, "failed")]
)
def test_a_failure_is_retried_while_attempts_are_left(attempt: int, status: str) -> None:
    change = settled(Failed("error", "no"), attempt)
    assert (change.status, change.unspent, change.last_error) == (status, 0, "no")
    assert change.run_at == (NOW + timedelta(seconds=attempt) if status == "pending" else None)


def test_a_final_failure_is_not_retried() -> None:
    assert settled(Failed("fatal", "no", final=True)).status == "failed"


def test_a_delay_of_its_own_wins_over_the_backoff() -> None:
    assert settled(Failed("retry", "later", delay=timedelta(hours=1))).run_at == NOW + timedelta(hours=1)
    assert settled(Failed("retry", "later", delay=timedelta.max)).run_at == FOREVER


def test_a_missing_handler_is_named_in_the_last_error() -> None:
    assert settled(Failed(NO_HANDLER, "no handler for x", final=True)).last_error == NO_HANDLER


def test_a_pause_and_a_stop_cost_no_attempt() -> None:
    paused = settled(Paused(NOW + timedelta(days=1), "signal"))
    assert (paused.status, paused.unspent, paused.waiting_for) == ("pending", 1, "signal")
    assert paused.run_at == NOW + timedelta(days=1)
    released = settled(Released())
    assert (released.status, released.unspent, released.run_at) == ("pending", 1, NOW)


def test_prefixes_become_ranges_of_text() -> None:
    low, high = prefix_range("email.")
    assert low <= "email." < high
    assert low <= "email.zzz" < high
    assert not low <= "emailx" < high
    assert not low <= "email" < high


def test_without_prefixes_exactly_the_handled_types_and_the_default_ones_are_asked_for() -> None:
    handlers = RunHandlers()
    handlers.add("email.a", print)
    handlers.add("default.b", print)

    def asked(type: str) -> bool:
        return any(low <= type < high for low, high in handlers.ranges(()))

    assert [asked(type) for type in ("email.a", "default.x")] == [True, True]
    assert [asked(type) for type in ("email.", "email.b", "email.a.b", "email.aa", "defaultx")] == [False] * 5


@pytest.mark.parametrize("value", [{"a": "\\u0000"}, "\\\\u0000", "NaN", ["Infinity"], {"NaN": 1}, 10**30])
def test_json_that_only_looks_odd_is_kept(value: object) -> None:
    assert decode(encode(value, "payload")) == value


@pytest.mark.parametrize("value", [{"a": ["\x00"]}, {"\x00": 1}, "\\\x00", float("-inf"), {"x": "\udc00"}])
def test_json_that_no_database_gives_back_is_refused(value: object) -> None:
    with pytest.raises(ValidationFailed, match="the payload cannot be stored as JSON"):
        encode(value, "payload")


def test_text_is_cleaned_and_cut() -> None:
    assert clean("a\x00b\ud800") == "a\\0b\\ud800"
    assert clean("x" * 50, 10) == "x" * 9 + "…"
