"""Every bus keeps the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex.events import InProcessBus
from maniflex.testing.conformance import BusConformance


class TestInProcess(BusConformance):
    keeps = False
    has_log = False

    @pytest.fixture
    async def bus(self) -> AsyncIterator[InProcessBus]:
        bus = InProcessBus()
        yield bus
        await bus.close()

    async def twin(self, bus: Any) -> Any:
        return InProcessBus()

    @asynccontextmanager
    async def other(self, bus: Any) -> AsyncIterator[Any]:
        yield bus  # no other process has it
