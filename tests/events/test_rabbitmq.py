"""What is special about events by RabbitMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import aio_pika
import pytest

from maniflex.errors import DeclarationError, Timeout, Unavailable
from maniflex.events import Event, RabbitBus, patterns
from maniflex.events.rabbitmq import binding_of
from tests.kit.brokers import (
    EventInbox,
    PrivateRabbit,
    TidyRabbitBus,
    assert_silence_times_out,
    publish_through_kills,
    tidy_rabbit_bus,
)
from tests.kit.processes import free_port
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually


@pytest.fixture
async def settings(rabbitmq_url: str) -> dict[str, Any]:
    return {"url": rabbitmq_url, "exchange": f"maniflex-test-{uuid4().hex}.events", "confirm_timeout": 2}


@pytest.fixture
async def bus(settings: dict[str, Any]) -> AsyncIterator[TidyRabbitBus]:
    async with tidy_rabbit_bus(**settings) as bus:
        yield bus


@pytest.fixture
async def channel(bus: RabbitBus) -> AsyncIterator[Any]:
    connection = await bus.dial()
    yield await connection.channel()
    await connection.close()


async def test_a_message_is_a_persistent_cloudevent(bus: TidyRabbitBus, channel: Any) -> None:
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(bus.exchange, "#")

    await bus.publish(Event("order.made", {"n": 1}, id="7", subject="order/7 ü"))

    message = await queue.get(timeout=5)
    assert message.routing_key == "order.made"
    assert message.body == b'{"n":1}'
    assert (message.message_id, message.content_type) == ("7", "application/json")
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert message.headers["cloudEvents_type"] == "order.made"
    assert message.headers["cloudEvents_subject"] == "order/7 ü"
    await message.ack()


def test_a_binding_lets_through_all_that_its_pattern_matches() -> None:
    types = ("a", "a.b", "a.c.b", "order.made", "order.line.made", "ordermade.b", "x.b")
    for pattern in ("*", "a.*", "*.b", "a.*.b", "ord*", "order.*made", "order.made", "*.*.*", "o*r.m*e"):
        binding = binding_of(pattern)
        for type in types:
            if patterns.matches(pattern, type):
                assert _is_routed(binding.split("."), type.split(".")), (pattern, binding, type)


def _is_routed(binding: list[str], words: list[str]) -> bool:
    """Topic routing, as AMQP describes it."""
    if not binding:
        return not words
    if binding[0] == "#":
        return any(_is_routed(binding[1:], words[place:]) for place in range(len(words) + 1))
    return bool(words) and binding[0] == words[0] and _is_routed(binding[1:], words[1:])


async def test_a_queue_or_exchange_with_other_arguments_is_a_clear_error(
    bus: TidyRabbitBus, channel: Any
) -> None:
    handle: Any = await bus.subscribe("a.*", handler=EventInbox())
    name = bus.queue_of(handle.plan)
    await handle.cancel()
    await channel.queue_delete(name)
    await channel.declare_queue(name, durable=True)

    with pytest.raises(DeclarationError, match=name):
        await bus.subscribe("a.*", handler=EventInbox())

    await bus.close()
    await channel.exchange_delete(bus.exchange)
    await channel.declare_exchange(bus.exchange, "fanout")
    with pytest.raises(DeclarationError, match="no durable topic exchange"):
        await bus.open()


async def test_retries_that_outlast_an_acknowledgement_are_refused(bus: TidyRabbitBus) -> None:
    with pytest.raises(DeclarationError, match="half an hour"):
        await bus.subscribe("a.*", handler=EventInbox(), backoff=lambda failures: timedelta(minutes=10))


async def test_a_queue_that_is_deleted_under_a_consumer_is_made_again(
    bus: TidyRabbitBus, channel: Any
) -> None:
    inbox, lost = EventInbox(), asyncio.Event()
    bus.on_disconnected = lambda group, error: lost.set()
    handle: Any = await bus.subscribe("a.*", handler=inbox)
    await channel.queue_delete(bus.queue_of(handle.plan))

    await asyncio.wait_for(lost.wait(), 20)

    async def arrives() -> bool:
        await bus.publish(Event("a.b"))
        return bool(inbox.events)

    await eventually(arrives)


async def test_an_acknowledgement_that_is_cut_off_causes_no_second_call(
    bus: TidyRabbitBus, settings: dict[str, Any]
) -> None:
    relay = Relay(settings["url"])
    await relay.listen()
    calls: dict[str, int] = {}

    async def work(event: Event) -> None:
        calls[event.id] = calls.get(event.id, 0) + 1
        relay.hush()  # what is said from now on is not heard

    through = TidyRabbitBus(**{**settings, "url": relay.same_url})
    through.queues = bus.queues
    await through.subscribe("a.*", handler=work)
    for n in range(3):
        event = Event("a.b", n)
        await bus.publish(event)
        await eventually(lambda event=event: event.id in calls)  # type: ignore[misc]
        await relay.cut()
        relay.speak()
        await relay.listen()
    last = Event("a.last")
    await bus.publish(last)
    await eventually(lambda: last.id in calls)
    relay.speak()
    await through.close()
    await relay.cut()

    assert set(calls.values()) == {1}


async def test_a_server_that_falls_silent_is_given_up_after_the_timeout(settings: dict[str, Any]) -> None:
    relay = Relay(settings["url"])
    await relay.listen()
    async with tidy_rabbit_bus(**settings):
        silent = RabbitBus(**{**settings, "url": relay.same_url, "confirm_timeout": 0.5})
        await silent.open()
        await assert_silence_times_out(silent, relay, within=3)
        await silent.publish(Event("a.b"))
        await silent.close()
    await relay.cut()


async def test_credentials_are_in_no_text(rabbitmq_url: str, caplog: pytest.LogCaptureFixture) -> None:
    place = rabbitmq_url.rpartition("@")[2]
    for address in (place, f"127.0.0.1:{free_port()}/"):
        bus = RabbitBus(f"amqp://someone:not%21so-secret@{address}", confirm_timeout=1)
        with pytest.raises((Unavailable, Timeout)) as refusal:
            await bus.open()
        texts = [repr(bus), str(refusal.value), repr(refusal.value), caplog.text]
        assert not any("so-secret" in text for text in texts)
        await bus.close()


async def _cut_and_publish(settings: dict[str, Any], cuts: int) -> None:
    """Cut the connections of a bus again and again: it resumes, and nothing it confirmed is lost."""
    relay = Relay(settings["url"])
    await relay.listen()
    async with tidy_rabbit_bus(**settings) as other:
        bus = TidyRabbitBus(**{**settings, "url": relay.same_url, "confirm_timeout": 1})
        bus.queues = other.queues
        inbox, confirmed, refused = EventInbox(), list[str](), 0
        await bus.subscribe("a.*", handler=inbox, concurrency=4)
        for cut in range(cuts):
            for n in range(5):
                event = Event("a.b", [cut, n])
                await bus.publish(event)
                confirmed.append(event.id)
            await relay.cut()
            try:
                await bus.publish(Event("a.refused"))
            except (Unavailable, Timeout):
                refused += 1
            await relay.listen()
            event, start = Event("a.after", cut), time.monotonic()
            await other.publish(event)
            confirmed.append(event.id)
            await eventually(lambda event=event: event in inbox.events)  # type: ignore[misc]
            assert time.monotonic() - start < 30
        await eventually(lambda: set(confirmed) <= {event.id for event in inbox.events})
        await bus.close()
    await relay.cut()
    assert refused == cuts


async def test_cut_connections_are_made_again_and_nothing_confirmed_is_lost(settings: dict[str, Any]) -> None:
    await _cut_and_publish(settings, 5)


@pytest.mark.long
async def test_fifty_cuts_lose_nothing(settings: dict[str, Any]) -> None:
    await _cut_and_publish(settings, 50)


@pytest.mark.long
async def test_a_killed_server_loses_nothing_it_confirmed() -> None:
    with PrivateRabbit() as server:
        bus, inbox = RabbitBus(server.url, confirm_timeout=2), EventInbox()
        await bus.subscribe("a.*", handler=inbox)
        # RabbitMQ 3.10 does not find a quorum queue again if it is killed in the moment the queue was made.
        await asyncio.sleep(2)
        confirmed_ids = await publish_through_kills(bus, server)
        await eventually(lambda: confirmed_ids <= {event.id for event in inbox.events})
        await bus.close()
