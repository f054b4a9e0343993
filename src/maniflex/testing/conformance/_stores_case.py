"""What the suites of stores share: a clock, a store on it, and the same store as another process has it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

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
