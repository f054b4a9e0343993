"""A server with durable work on an empty database, and a clock that moves by hand."""

from __future__ import annotations

import pytest

from maniflex import Server
from maniflex.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(database_url: str, clock: FakeClock) -> Server:
    """Not started: a test declares its handlers first, then says `async with working(server)`."""
    return Server(database_url, clock=clock, pool_size=4)
