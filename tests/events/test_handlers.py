"""`log_handler` and `dedupe`: handlers for a bus that is used without the feed."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from maniflex import Model, Server
from maniflex._logging import JsonFormatter
from maniflex.errors import DeclarationError
from maniflex.events import Event, InProcessBus, MemoryDedupe, dedupe, log_handler
from tests.kit.waiting import eventually


async def test_a_line_names_the_event_and_never_its_data() -> None:
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("mine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    await log_handler(logger)(Event("a.b", {"pin": "1234"}, id="7", subject="order/\n8", tenant_id="red"))

    [text] = out.getvalue().splitlines()
    line = json.loads(text)
    assert line["message"] == "event a.b event_id=7 subject=order/\\n8 tenant_id=red"
    assert (line["event_type"], line["event_id"], line["subject"], line["tenant_id"]) == (
        "a.b",
        "7",
        "order/\n8",
        "red",
    )
    assert "1234" not in text


async def test_an_event_is_handled_once_and_a_failed_one_again() -> None:
    calls: list[str] = []

    async def work(event: Event) -> None:
        calls.append(event.id)
        if len(calls) == 1:
            raise OSError("not yet")

    bus = InProcessBus()
    await bus.subscribe("*", handler=dedupe(work, MemoryDedupe()), backoff=lambda failures: 0)
    await bus.publish_many(
        [Event("a.b", id="1"), Event("a.b", id="1"), Event("a.b", id="1", source="/other")]
    )
    await bus.close()

    assert calls == ["1", "1", "1"]  # it failed, it succeeded, and another one's


async def test_a_second_delivery_waits_for_what_becomes_of_the_first() -> None:
    begun, may_fail, calls = asyncio.Event(), asyncio.Event(), list[int]()

    async def work(event: Event) -> None:
        calls.append(1)
        begun.set()
        if len(calls) == 1:
            await may_fail.wait()
            raise OSError("no")

    handle, event = dedupe(work, MemoryDedupe()), Event("a.b")
    first = asyncio.create_task(handle(event))
    await begun.wait()
    second = asyncio.create_task(handle(event))
    may_fail.set()

    with pytest.raises(OSError, match="no"):
        await first
    await second
    assert len(calls) == 2


async def test_memory_is_bounded_in_number_and_time() -> None:
    calls: list[str] = []

    def work(event: Event) -> None:
        calls.append(event.id)

    small = dedupe(work, MemoryDedupe(size=2))
    for id in ("1", "2", "3", "3", "1"):
        await small(Event("a.b", id=id))
    assert calls == ["1", "2", "3", "1"]

    short = dedupe(work, MemoryDedupe(ttl=timedelta(milliseconds=20)))
    await short(Event("a.b", id="9"))

    async def is_handled_again() -> bool:
        await short(Event("a.b", id="9"))
        return calls.count("9") == 2

    await eventually(is_handled_again)
    for wrong in ({"size": 0}, {"ttl": 0}):
        with pytest.raises(DeclarationError, match=next(iter(wrong))):
            MemoryDedupe(**wrong)
    with pytest.raises(DeclarationError, match=r"server\.inbox"):
        dedupe(work, None)


class Receipt(Model):
    order: str


async def test_with_the_inbox_an_event_is_remembered_with_what_was_written(database_url: str) -> None:
    calls: list[Any] = []

    server = Server(database_url)
    server.register(Receipt)
    server.outbox.enable()
    async with server.lifespan():

        async def book(event: Event) -> None:
            await server.db(Receipt).create(order=event.data)
            calls.append(event.data)
            if len(calls) == 1:
                raise OSError("behind the write")

        handle, event = dedupe(book, server.inbox), Event("order.placed", "7")
        with pytest.raises(OSError, match="behind"):
            await handle(event)
        await handle(event)
        await handle(event)

        assert calls == ["7", "7"]
        assert await server.db(Receipt).count() == 1
