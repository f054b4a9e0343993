"""Every bus keeps the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from nats.js.errors import NotFoundError

from maniflex.events import InProcessBus, NatsBus, RedisBus
from maniflex.testing.conformance import BusConformance
from tests.kit.brokers import (
    RelayedOutage,
    TidyRabbitBus,
    remove_from_rabbit,
    tidy_rabbit_bus,
)
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


class TestNats(BusConformance):
    resumes_within = 5.0

    @pytest.fixture
    def settings(self, nats_url: str) -> dict[str, Any]:
        name = f"maniflex-test-{uuid4().hex}"
        return {"servers": nats_url, "stream": name, "prefix": name, "ack_wait": 1, "timeout": 2}

    @pytest.fixture
    async def bus(self, settings: dict[str, Any]) -> AsyncIterator[NatsBus]:
        bus = NatsBus(**settings)
        await bus.open()
        yield bus
        with suppress(NotFoundError):
            await (await bus.jetstream()).delete_stream(bus.stream)
        await bus.close()

    async def twin(self, bus: Any) -> Any:
        twin = NatsBus(**self._settings_of(bus))
        await twin.open()
        return twin

    def _settings_of(self, bus: Any) -> dict[str, Any]:
        names = {"stream": bus.stream, "prefix": bus.prefix}
        return {"servers": bus._servers[0], **names, "ack_wait": bus.ack_wait, "timeout": bus.timeout}

    def recipe(self, bus: Any) -> tuple[str, Mapping[str, Any]]:
        return "maniflex.events:NatsBus", self._settings_of(bus)

    async def put_raw(self, bus: Any, body: bytes) -> None:
        await (await bus.jetstream()).publish(f"{bus.prefix}.a.raw", body)

    @pytest.fixture
    async def away(self, settings: dict[str, Any]) -> AsyncIterator[tuple[NatsBus, RelayedOutage]]:
        relay = Relay(settings["servers"])
        await relay.listen()
        bus = NatsBus(**{**settings, "servers": relay.same_url, "timeout": 1})
        yield bus, RelayedOutage(relay)
        await bus.close()
        await relay.cut()
        last = NatsBus(**settings)
        with suppress(NotFoundError):
            await (await last.jetstream()).delete_stream(last.stream)
        await last.close()

    @pytest.mark.long
    async def test_an_event_that_kills_its_consumers_is_given_up(self, bus: Any) -> None:
        await super().test_an_event_that_kills_its_consumers_is_given_up(bus)


class TestRabbit(BusConformance):
    has_log = False
    resumes_within = 10.0

    @pytest.fixture
    def settings(self, rabbitmq_url: str) -> dict[str, Any]:
        name = f"maniflex-test-{uuid4().hex}.events"
        return {"url": rabbitmq_url, "exchange": name, "confirm_timeout": 2}

    @pytest.fixture
    async def bus(self, settings: dict[str, Any]) -> AsyncIterator[TidyRabbitBus]:
        async with tidy_rabbit_bus(**settings) as bus:
            yield bus

    async def twin(self, bus: Any) -> Any:
        twin = TidyRabbitBus(**self._settings_of(bus))
        twin.queues = bus.queues
        await twin.open()
        return twin

    def _settings_of(self, bus: Any) -> dict[str, Any]:
        return {"url": bus._url, "exchange": bus.exchange, "confirm_timeout": bus.timeout}

    def recipe(self, bus: Any) -> tuple[str, Mapping[str, Any]]:
        return "maniflex.events:RabbitBus", self._settings_of(bus)

    async def put_raw(self, bus: Any, body: bytes) -> None:
        exchange = await bus._publishing.exchange()
        await exchange.publish(aio_pika.Message(body), "a.raw", mandatory=False)

    @pytest.fixture
    async def away(self, settings: dict[str, Any]) -> AsyncIterator[tuple[TidyRabbitBus, RelayedOutage]]:
        relay = Relay(settings["url"])
        await relay.listen()
        bus = TidyRabbitBus(**{**settings, "url": relay.same_url, "confirm_timeout": 1})
        yield bus, RelayedOutage(relay)
        await bus.close()
        await relay.cut()
        await remove_from_rabbit(settings, bus.exchange, bus.queues)

    @pytest.mark.long
    async def test_an_event_that_kills_its_consumers_is_given_up(self, bus: Any) -> None:
        await super().test_an_event_that_kills_its_consumers_is_given_up(bus)
