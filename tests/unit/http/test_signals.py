"""Noticing a signal without taking it from whoever handles it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from maniflex.http.serve import on_stop_signal


@pytest.fixture
def handled() -> Iterator[list[str]]:
    """What the host's own SIGTERM handler has seen."""
    seen: list[str] = []

    def host(number: int, frame: FrameType | None) -> None:
        seen.append("host")

    before = signal.signal(signal.SIGTERM, host)
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_the_signal_is_noticed_first_and_still_reaches_its_handler(handled: list[str]) -> None:
    with on_stop_signal(lambda: handled.append("noticed")):
        signal.raise_signal(signal.SIGTERM)

    assert handled == ["noticed", "host"]


def test_afterwards_the_handler_is_what_it_was(handled: list[str]) -> None:
    with on_stop_signal(lambda: handled.append("noticed")):
        pass
    signal.raise_signal(signal.SIGTERM)

    assert handled == ["host"]
