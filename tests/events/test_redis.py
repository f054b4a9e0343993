"""What is special about events in Redis."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from maniflex.errors import DeclarationError, Timeout, Unavailable
from maniflex.events import Event, RedisBus
from tests.kit.brokers import EventInbox, assert_silence_times_out
from tests.kit.processes import free_port
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually

LEASE = 0.4


@pytest.fixture
async def bus(redis_url: str) -> AsyncIterator[RedisBus]:
    bus = RedisBus(redis_url, prefix=f"maniflex-test-{uuid4().hex}", lease=LEASE)
    await bus.open()
    yield bus
    await bus.redis.delete(bus.stream)
    await bus.close()


async def group_of(bus: RedisBus) -> str:
    [group] = await bus.redis.xinfo_groups(bus.stream)
    return str(group["name"].decode())


async def test_an_entry_has_one_field_with_the_structured_event(bus: RedisBus) -> None:
    await bus.publish(Event("a.b", {"n": 1}, subject="order/7"))

    [(_, fields)] = await bus.redis.xrange(bus.stream)

    assert list(fields) == [b"data"]
    entry = json.loads(fields[b"data"])
    assert entry["specversion"] == "1.0"
    assert (entry["type"], entry["subject"], entry["data"]) == ("a.b", "order/7", {"n": 1})


async def test_the_stream_is_trimmed_unless_that_is_left_out(bus: RedisBus) -> None:
    small = RedisBus(bus._url, prefix=f"{bus.stream}-small", maxlen=100)
    endless = RedisBus(bus._url, prefix=f"{bus.stream}-endless", maxlen=None)
    lengths = []
    for one in (small, endless):
        await one.publish_many([Event("a.b", n) for n in range(1200)])
        lengths.append(await one.redis.xlen(one.stream))
        await one.redis.delete(one.stream)
        await one.close()

    assert lengths[0] < 400  # trimmed in blocks
    assert lengths[1] == 1200


async def test_an_entry_that_was_trimmed_in_the_hand_of_a_dead_consumer_is_told_lost(
    bus: RedisBus, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await bus.subscribe("*", handler=EventInbox())
    await handle.cancel()
    await bus.publish_many([Event("a.b"), Event("a.b")])
    group = await group_of(bus)
    await bus.redis.xreadgroup(group, "dead", {bus.stream: ">"})
    await bus.redis.xtrim(bus.stream, maxlen=0, approximate=False)

    await bus.subscribe("*", handler=EventInbox())

    await eventually(lambda: bus.lost == 2)
    assert "events are lost" in caplog.text


async def test_entries_that_were_trimmed_unread_are_told_lost_once(
    bus: RedisBus, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await bus.subscribe("*", handler=EventInbox())
    await handle.cancel()
    await bus.publish_many([Event("a.b", n) for n in range(5)])
    await bus.redis.xtrim(bus.stream, maxlen=2, approximate=False)

    inbox = EventInbox()
    handle = await bus.subscribe("*", handler=inbox)
    await eventually(lambda: inbox.data == [3, 4])
    await handle.cancel()
    await bus.subscribe("*", handler=inbox)
    await bus.publish(Event("a.b", 5))
    await eventually(lambda: inbox.data == [3, 4, 5])

    assert bus.lost == 3
    assert caplog.text.count("events are lost") == 1


async def test_a_handler_that_blocks_the_event_loop_keeps_its_message(bus: RedisBus) -> None:
    idle: list[int] = []
    group = asyncio.get_running_loop().create_future()

    async def block(event: Event) -> None:
        time.sleep(LEASE * 3)  # noqa: ASYNC251  # just what the thread has to outlive
        [entry] = await bus.redis.xpending_range(bus.stream, await group, "-", "+", 1)
        idle.append(entry["time_since_delivered"])

    await bus.subscribe("*", handler=block)
    group.set_result(await group_of(bus))
    await bus.publish(Event("a.b"))

    await eventually(lambda: idle)
    assert idle[0] < LEASE * 1000


async def test_an_entry_without_data_is_dead_lettered_with_its_fields(bus: RedisBus) -> None:
    letters = EventInbox()
    await bus.subscribe("dead.*", handler=letters)
    await bus.subscribe("a.*", handler=EventInbox(), dead_letter="dead.a")

    await bus.redis.xadd(bus.stream, {"other": "thing", "bytes": b"\xff"})

    await eventually(lambda: letters.events)
    assert json.loads(letters.data[0]) == {"other": "thing", "bytes": "\\xff"}


async def test_a_group_or_stream_that_is_removed_under_a_consumer_is_made_again(bus: RedisBus) -> None:
    inbox = EventInbox()
    await bus.subscribe("*", handler=inbox)
    await bus.publish(Event("a.b", 0))
    await eventually(lambda: inbox.data == [0])

    await bus.redis.xgroup_destroy(bus.stream, await group_of(bus))
    await bus.publish(Event("a.b", 1))
    await eventually(lambda: inbox.data == [0, 1])

    await bus.redis.delete(bus.stream)
    await bus.publish(Event("a.b", 2))
    await eventually(lambda: inbox.data == [0, 1, 2])


async def test_a_consumer_that_ended_leaves_no_trace(bus: RedisBus) -> None:
    inbox = EventInbox()
    handle = await bus.subscribe("*", handler=inbox)
    await bus.publish(Event("a.b"))
    group = await group_of(bus)
    await eventually(lambda: inbox.events)
    assert await bus.redis.xinfo_consumers(bus.stream, group)

    await handle.cancel()

    assert await bus.redis.xinfo_consumers(bus.stream, group) == []


async def test_a_server_that_falls_silent_is_given_up_after_the_timeout(redis_url: str) -> None:
    relay = Relay(redis_url)
    await relay.listen()
    bus = RedisBus(relay.same_url, timeout=0.5)
    await bus.open()
    await assert_silence_times_out(bus, relay, within=2)
    await bus.close()
    await relay.cut()


async def test_credentials_are_in_no_text(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = redis_url.removeprefix("redis://")
    for address in (server, f"127.0.0.1:{free_port()}"):
        bus = RedisBus(f"redis://someone:not%21so-secret@{address}", timeout=1)
        with pytest.raises((Unavailable, Timeout)) as refusal:
            await bus.open()
        texts = [repr(bus), str(refusal.value), repr(refusal.value), caplog.text]
        assert not any("so-secret" in text for text in texts)
        await bus.close()


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"lease": 0}, {"timeout": -1}, {"maxlen": 0}, {"on_disconnected": "no"}):
        with pytest.raises(DeclarationError, match=next(iter(wrong))):
            RedisBus(**wrong)
