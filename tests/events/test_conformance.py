"""Every bus keeps the promises of the port."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from signal import SIGCONT
from typing import Any
from uuid import uuid4

import aio_pika
import confluent_kafka
import pytest
from nats.js.errors import NotFoundError

from maniflex.events import InProcessBus, KafkaBus, NatsBus, RedisBus
from maniflex.testing.conformance import BusConformance
from tests.kit.brokers import (
    KafkaCluster,
    RelayedOutage,
    StoppedCluster,
    TidyRabbitBus,
    kafka_cluster,
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


class TestKafka(BusConformance):
    """Against the mock cluster of the client, unless MANIFLEX_TEST_KAFKA names a real one."""

    @pytest.fixture
    def settings(self, kafka: KafkaCluster) -> dict[str, Any]:
        topic = f"maniflex-test-{uuid4().hex}.events"
        kafka.make_topic(topic)
        # A consumer that was killed is missed after its session, and real brokers want six seconds of it.
        session = 6000 if kafka.is_real else 1500
        config = {"session.timeout.ms": session, "heartbeat.interval.ms": 300}
        return {"bootstrap": kafka.address, "topic": topic, "config": config}

    @pytest.fixture
    async def bus(self, settings: dict[str, Any]) -> AsyncIterator[KafkaBus]:
        bus = KafkaBus(**settings)
        await bus.open()
        yield bus
        await bus.close()

    async def twin(self, bus: Any) -> Any:
        twin = KafkaBus(**self._settings_of(bus))
        await twin.open()
        return twin

    def _settings_of(self, bus: Any) -> dict[str, Any]:
        return {"bootstrap": bus._bootstrap, "topic": bus.topic, "config": bus._config}

    def recipe(self, bus: Any) -> tuple[str, Mapping[str, Any]]:
        return "maniflex.events:KafkaBus", self._settings_of(bus)

    async def put_raw(self, bus: Any, body: bytes) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bus._bootstrap})
        producer.produce(bus.topic, body)
        assert producer.flush(10) == 0

    @pytest.fixture
    async def away(self) -> AsyncIterator[tuple[KafkaBus, StoppedCluster]]:
        with kafka_cluster() as cluster:
            cluster.make_topic("away.events")
            bus = KafkaBus(cluster.address, topic="away.events", timeout=1)
            yield bus, StoppedCluster(cluster)
            cluster.send(SIGCONT)
            await bus.close()

    async def test_a_forgotten_subscription_begins_anew(self, bus: Any) -> None:
        if "MANIFLEX_TEST_KAFKA" not in os.environ:
            pytest.skip("the mock cluster cannot delete groups")
        await super().test_a_forgotten_subscription_begins_anew(bus)

    async def test_consumption_goes_on_after_every_outage(self, bus: Any, away: Any, caplog: Any) -> None:
        pytest.skip("nobody reaches a stopped cluster by another way: see test_kafka.py")

    async def test_a_handler_that_outlasts_an_outage_is_not_called_again(self, bus: Any, away: Any) -> None:
        pytest.skip("nobody reaches a stopped cluster by another way: see test_kafka.py")

    async def test_a_subscription_ends_at_once_while_the_broker_is_away(self, away: Any) -> None:
        pytest.skip("a stopped cluster is missed after a minute: see test_kafka.py")
