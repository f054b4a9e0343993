"""What is special about the bus within one process."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from maniflex.errors import DeclarationError, QueueFull
from maniflex.events import Event, InProcessBus
from tests.kit.waiting import eventually


async def test_a_full_queue_is_told_and_the_other_groups_get_the_event() -> None:
    bus, may_go = InProcessBus(queue_size=2), asyncio.Event()
    seen: list[str] = []

    async def stuck(event: Event) -> None:
        await may_go.wait()

    async def note(event: Event) -> None:
        seen.append(event.type)

    await bus.subscribe("*", handler=stuck, group="stuck")
    await bus.subscribe("*", handler=note, group="quick")
    await bus.publish(Event("a.0"))
    await eventually(lambda: seen == ["a.0"])
    await bus.publish_many([Event("a.1"), Event("a.2")])
    await eventually(lambda: seen == ["a.0", "a.1", "a.2"])

    with pytest.raises(QueueFull, match=r"stuck \(1\)"):
        await bus.publish(Event("a.3"))

    await eventually(lambda: seen == ["a.0", "a.1", "a.2", "a.3"])
    may_go.set()
    await bus.close()


async def test_closing_handles_what_waits_and_says_what_was_left(caplog: pytest.LogCaptureFixture) -> None:
    bus, seen = InProcessBus(drain_timeout=0.3), list[int]()

    async def work(event: Event) -> None:
        seen.append(event.data)
        if event.data == 3:
            await asyncio.Event().wait()

    await bus.subscribe("*", handler=work)
    await bus.publish_many([Event("a.b", n) for n in range(6)])
    with caplog.at_level(logging.WARNING, "maniflex.events"):
        await bus.close()

    assert seen == [0, 1, 2, 3]
    assert "3 events are left unhandled" in caplog.text  # the one that hung, and two behind it


async def test_a_handler_cannot_change_what_another_one_gets() -> None:
    bus, data = InProcessBus(), {"n": [1]}
    seen: list[object] = []

    async def change(event: Event) -> None:
        event.data["n"].append(2)
        seen.append(event.data)

    for group in ("one", "two"):
        await bus.subscribe("*", handler=change, group=group)
    await bus.publish(Event("a.b", data))
    await bus.close()

    assert seen == [{"n": [1, 2]}, {"n": [1, 2]}]
    assert data == {"n": [1]}


async def test_a_failing_event_holds_up_its_own_key_alone() -> None:
    bus, seen, may_succeed = InProcessBus(), list[str](), asyncio.Event()

    async def work(event: Event) -> None:
        seen.append(str(event.data))
        if event.data == "x1" and not may_succeed.is_set():
            raise OSError("not yet")

    await bus.subscribe("*", handler=work, concurrency=2, max_retry=1000, backoff=lambda failures: 0.01)
    await bus.publish_many([Event("a.b", name, key=name[0]) for name in ("x1", "x2", "y1")])
    await eventually(lambda: "y1" in seen)
    assert "x2" not in seen
    may_succeed.set()
    await bus.close()

    assert seen[-2:] == ["x1", "x2"]


async def test_arguments_that_cannot_be_are_refused_together() -> None:
    bus = InProcessBus()

    with pytest.raises(DeclarationError) as refusal:
        await bus.subscribe("a..b", handler=None, group="no spaces", concurrency=0, max_retry=-1)  # type: ignore[arg-type]

    assert len(refusal.value.problems) == 5
    for wrong in ({"queue_size": 0}, {"drain_timeout": -1}):
        with pytest.raises(DeclarationError, match=next(iter(wrong))):
            InProcessBus(**wrong)


async def test_a_backoff_that_fails_is_no_end() -> None:
    bus, calls = InProcessBus(), list[float]()

    async def work(event: Event) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise OSError("no")

    def backoff(failures: int) -> float:
        raise ZeroDivisionError

    await bus.subscribe("*", handler=work, backoff=backoff)
    await bus.publish(Event("a.b"))
    await eventually(lambda: len(calls) == 2)
    await bus.close()

    assert calls[1] - calls[0] > 0.9  # n seconds behind the n-th attempt
