"""Every bus keeps the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from maniflex.events import InProcessBus, RedisBus
from maniflex.testing.conformance import BusConformance
from tests.kit.brokers import RelayedOutage
from tests.kit.tcp_relay import Relay


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


class TestRedis(BusConformance):
    resumes_within = 5.0

    @pytest.fixture
    def settings(self, redis_url: str) -> dict[str, Any]:
        return {"url": redis_url, "prefix": f"maniflex-test-{uuid4().hex}", "lease": 0.6, "timeout": 2}

    @pytest.fixture
    async def bus(self, settings: dict[str, Any]) -> AsyncIterator[RedisBus]:
        bus = RedisBus(**settings)
        await bus.open()
        yield bus
        await bus.redis.delete(bus.stream)
        await bus.close()

    async def twin(self, bus: Any) -> Any:
        twin = RedisBus(**self._settings_of(bus))
        await twin.open()
        return twin

    def _settings_of(self, bus: Any) -> dict[str, Any]:
        prefix = bus.stream.removesuffix(":events")
        return {"url": bus._url, "prefix": prefix, "lease": bus.lease, "timeout": bus.timeout}

    def recipe(self, bus: Any) -> tuple[str, Mapping[str, Any]]:
        return "maniflex.events:RedisBus", self._settings_of(bus)

    async def put_raw(self, bus: Any, body: bytes) -> None:
        await bus.redis.xadd(bus.stream, {"data": body})

    @pytest.fixture
    async def away(self, settings: dict[str, Any]) -> AsyncIterator[tuple[RedisBus, RelayedOutage]]:
        relay = Relay(settings["url"])
        await relay.listen()
        bus = RedisBus(**{**settings, "url": relay.same_url, "timeout": 1})
        yield bus, RelayedOutage(relay)
        await bus.close()
        await relay.cut()
