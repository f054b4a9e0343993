"""What is special about events in Kafka; the mock cluster of the client, unless a real one is named."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]

from maniflex.errors import DeclarationError, Timeout, Unavailable, ValidationFailed
from maniflex.events import Event, KafkaBus
from tests.kit.brokers import EventInbox, KafkaCluster, kafka_cluster
from tests.kit.processes import free_port
from tests.kit.waiting import eventually


@pytest.fixture
async def bus(kafka: KafkaCluster) -> AsyncIterator[KafkaBus]:
    topic = f"maniflex-test-{uuid4().hex}.events"
    kafka.make_topic(topic, 1)
    bus = KafkaBus(kafka.address, topic=topic, partitions=1)
    await bus.open()
    yield bus
    await bus.close()


async def test_another_client_reads_a_record_as_a_cloudevent(bus: KafkaBus) -> None:
    await bus.publish(Event("order.made", {"n": 1}, id="7", subject="order/7 ü", key="customer/9"))

    reader = AIOKafkaConsumer(bus.topic, bootstrap_servers=bus._bootstrap, auto_offset_reset="earliest")
    await reader.start()
    record = await asyncio.wait_for(reader.getone(), 20)
    await reader.stop()

    headers = {name: value.decode() for name, value in record.headers}
    assert record.key == b"customer/9"
    assert json.loads(record.value) == {"n": 1}
    assert headers["content-type"] == "application/json"
    assert (headers["ce_id"], headers["ce_type"], headers["ce_subject"]) == ("7", "order.made", "order/7 ü")


async def test_an_offset_is_committed_only_behind_all_earlier_ones(bus: KafkaBus) -> None:
    may_end, inbox = asyncio.Event(), EventInbox()

    async def work(event: Event) -> None:
        if event.data == 0:
            await may_end.wait()
        await inbox(event)

    handle: Any = await bus.subscribe("a.*", handler=work, concurrency=3)
    await bus.publish_many([Event("a.b", n, key=str(n)) for n in range(5)])
    await eventually(lambda: inbox.data == [1, 2, 3, 4])
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": bus._bootstrap, "group.id": bus.group_of(handle.plan)}
    )

    def committed() -> int:
        [place] = reader.committed([confluent_kafka.TopicPartition(bus.topic, 0)], timeout=10)
        return int(place.offset)

    assert committed() == 0
    may_end.set()
    await eventually(lambda: committed() == 5)
    reader.close()


async def test_a_stopped_cluster_costs_no_event() -> None:
    with kafka_cluster() as cluster:
        cluster.make_topic("stopped.events", 1)
        bus, inbox = KafkaBus(cluster.address, topic="stopped.events", timeout=1), EventInbox()
        await bus.subscribe("a.*", handler=inbox)
        confirmed = []
        for cycle in range(2):
            event = Event("a.b", cycle)
            await bus.publish(event)
            confirmed.append(event)
            cluster.send(signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises((Timeout, Unavailable)):
                await bus.publish(Event("a.lost"))
            assert time.monotonic() - start < 3
            cluster.send(signal.SIGCONT)

            async def publishes() -> bool:
                try:
                    await bus.publish(Event("a.back"))
                except (Timeout, Unavailable):
                    return False
                return True

            await eventually(publishes)
        await eventually(lambda: {event.id for event in confirmed} <= {event.id for event in inbox.events})
        await bus.close()


async def test_a_cluster_that_is_gone_is_told_and_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost: list[str] = []
    with kafka_cluster() as cluster:
        cluster.make_topic("gone.events", 1)
        bus = KafkaBus(cluster.address, topic="gone.events", timeout=1)
        bus.on_disconnected = lambda group, error: lost.append(group)
        handle = await bus.subscribe("a.*", handler=EventInbox(), group="billing")
        await bus.publish(Event("a.b"))
    await eventually(lambda: lost == ["billing"])
    assert any(r.levelname == "ERROR" and "billing" in r.getMessage() for r in caplog.records)

    start = time.monotonic()
    await handle.cancel()
    assert time.monotonic() - start < 1.5
    await bus.close()


async def test_a_record_that_is_too_large_is_refused_before_any_is_sent(bus: KafkaBus) -> None:
    inbox = EventInbox()
    await bus.subscribe("a.*", handler=inbox)

    with pytest.raises(ValidationFailed, match="larger than"):
        await bus.publish_many([Event("a.b", 1), Event("a.b", "x" * 1_100_000)])
    await bus.publish(Event("a.b", 2))

    await eventually(lambda: inbox.data == [2])


async def test_a_topic_that_is_missing_stops_the_start(kafka: KafkaCluster) -> None:
    with pytest.raises(DeclarationError, match="create=False"):
        await KafkaBus(kafka.address, topic="no-such-topic", create=False).open()


async def test_credentials_reach_every_client_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    config = {"sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "not-so-secret"}
    bus = KafkaBus(
        f"127.0.0.1:{free_port()}", config={**config, "security.protocol": "SASL_PLAINTEXT"}, timeout=1
    )

    with pytest.raises((Unavailable, Timeout)) as refusal:
        await bus.open()

    assert not any("so-secret" in text for text in (repr(bus), str(refusal.value), caplog.text))
    assert bus.settings()["sasl.password"] == "not-so-secret"


def test_settings_that_cannot_be_are_refused() -> None:
    settings: list[tuple[dict[str, Any], str]] = [
        ({"partitions": 0}, "partitions"),
        ({"replication": 0}, "replication"),
        ({"timeout": 0}, "timeout"),
        ({"config": {"group.id": "mine"}}, r"group\.id"),
    ]
    for wrong, name in settings:
        with pytest.raises(DeclarationError, match=name):
            KafkaBus(**wrong)
