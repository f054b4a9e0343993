"""What is special about events in NATS."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from nats.js.errors import NotFoundError

from maniflex.errors import DeclarationError, Timeout, Unavailable, ValidationFailed
from maniflex.events import Event, NatsBus, patterns
from maniflex.events.nats import covers_subject, filter_of
from tests.kit.brokers import EventInbox, assert_silence_times_out, publish_through_kills, publishes
from tests.kit.nats_queue import PrivateNats
from tests.kit.processes import free_port
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    name = f"maniflex-test-{uuid4().hex}"
    bus = NatsBus(nats_url, stream=name, prefix=name, ack_wait=1)
    await bus.open()
    yield bus
    with suppress(NotFoundError):
        await (await bus.jetstream()).delete_stream(name)
    await bus.close()


async def stored(bus: NatsBus, sequence: int = 1) -> Any:
    return await (await bus.jetstream()).get_msg(bus.stream, sequence)


async def test_a_message_is_a_cloudevent_in_binary_form(bus: NatsBus) -> None:
    event = Event("order.made", {"n": 1}, subject="order/7 ü")

    await bus.publish(event)

    message = await stored(bus)
    assert message.subject == f"{bus.prefix}.order.made"
    assert message.data == b'{"n":1}'
    assert message.headers["Nats-Msg-Id"] == message.headers["ce-id"] == event.id
    assert message.headers["ce-subject"] == "order/7%20%C3%BC"
    assert message.headers["content-type"] == "application/json"


async def test_an_event_that_is_published_again_is_stored_once(bus: NatsBus) -> None:
    event = Event("order.made")

    await bus.publish_many([event, event])
    await bus.publish(event)

    info = await (await bus.jetstream()).stream_info(bus.stream)
    assert info.state.messages == 1


async def test_a_stream_that_does_not_cover_the_prefix_stops_the_start(bus: NatsBus, nats_url: str) -> None:
    other = NatsBus(nats_url, stream=bus.stream, prefix="elsewhere")
    with pytest.raises(DeclarationError, match=r"does not cover elsewhere\.>"):
        await other.open()

    missing = NatsBus(nats_url, stream="no-such-stream", create=False)
    with pytest.raises(DeclarationError, match="create=False"):
        await missing.open()


async def test_an_event_too_large_for_the_server_is_refused_and_others_go_on(bus: NatsBus) -> None:
    inbox = EventInbox()
    await bus.subscribe("a.*", handler=inbox)
    most = bus.client.max_payload

    with pytest.raises(ValidationFailed, match="larger than"):
        await bus.publish_many([Event("a.b", 1), Event("a.b", "x" * most)])
    await bus.publish(Event("a.b", 2))

    await eventually(lambda: inbox.data == [2])


def test_the_filter_of_a_consumer_lets_through_all_that_matches() -> None:
    types = ("a", "a.b", "a.c.b", "order.made", "order.line.made", "ordermade", "x.b")
    for wanted in (
        ["*"],
        ["a.*"],
        ["*.b"],
        ["order.made"],
        ["order.line.*", "order.made"],
        ["ord*"],
        ["a", "a.b"],
    ):
        subject = filter_of("p", wanted)
        for type in types:
            if patterns.matches_any(wanted, type):
                # A trailing > stands for one token or more, so `a.>` has no `a`.
                assert covers_subject(subject, f"p.{type}.>") or subject == f"p.{type}", (wanted, type)
                assert subject != f"p.{type}.>"


async def test_a_consumer_or_stream_that_is_removed_under_us_is_made_again(bus: NatsBus) -> None:
    inbox = EventInbox()
    handle: Any = await bus.subscribe("a.*", handler=inbox)
    await bus.publish(Event("a.b", 0))
    await eventually(lambda: inbox.data == [0])
    stream = await bus.jetstream()

    await stream.delete_consumer(bus.stream, handle.plan.id)
    await bus.publish(Event("a.b", 1))
    await eventually(lambda: inbox.data == [0, 1])

    await stream.delete_stream(bus.stream)
    await eventually(lambda: publishes(bus, Event("a.b", 2)))
    await eventually(lambda: 2 in inbox.data)


async def test_a_pause_between_attempts_is_kept_by_the_server(bus: NatsBus) -> None:
    moments: list[float] = []

    async def work(event: Event) -> None:
        moments.append(time.monotonic())
        if len(moments) < 3:
            raise OSError("not yet")

    await bus.subscribe("a.*", handler=work, backoff=lambda failures: failures * 0.3)
    await bus.publish(Event("a.b"))

    await eventually(lambda: len(moments) == 3)
    assert moments[1] - moments[0] >= 0.3
    assert moments[2] - moments[1] >= 0.6


async def test_a_killed_server_loses_nothing_it_confirmed() -> None:
    with PrivateNats() as server:
        bus, inbox = NatsBus(server.url, timeout=1), EventInbox()
        await bus.subscribe("a.*", handler=inbox)
        confirmed_ids = await publish_through_kills(bus, server)
        await eventually(lambda: confirmed_ids <= {event.id for event in inbox.events})
        await bus.close()


async def test_a_server_that_falls_silent_is_given_up_after_the_timeout(nats_url: str, bus: NatsBus) -> None:
    relay = Relay(nats_url)
    await relay.listen()
    silent = NatsBus(relay.same_url, stream=bus.stream, prefix=bus.prefix, timeout=0.5)
    await silent.open()
    await assert_silence_times_out(silent, relay, within=2)
    await silent.close()
    await relay.cut()


async def test_credentials_are_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    for login in ("someone:not%21so-secret", "not-so-secret-token"):
        bus = NatsBus(f"nats://{login}@127.0.0.1:{free_port()}", timeout=1)
        with pytest.raises((Unavailable, Timeout)) as refusal:
            await bus.open()
        texts = [repr(bus), str(refusal.value), repr(refusal.value), caplog.text]
        assert not any("so-secret" in text for text in texts)


def test_settings_that_cannot_be_are_refused() -> None:
    settings: list[dict[str, Any]] = [{"ack_wait": 0}, {"max_age": -1}, {"timeout": "5"}, {"prefix": "a b"}]
    for wrong in settings:
        with pytest.raises(DeclarationError, match=next(iter(wrong))):
            NatsBus(**wrong)
