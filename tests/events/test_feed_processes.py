"""Events cross processes: written by one, handled by another."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from maniflex import Model, Server
from maniflex.events import Event

LONG = timedelta(hours=1)  # between looks: whoever has to be told is not found out by chance


class Order(Model, events=True):
    """What emits."""

    total: int = 0


async def test_a_writer_that_works_on_nothing_wakes_those_that_do(postgres_url: str) -> None:
    arrived: asyncio.Queue[str] = asyncio.Queue()
    worker = Server(postgres_url, event_poll_interval=LONG)
    worker.register(Order)

    @worker.events.subscribe("*", group="g")
    async def take(event: Event) -> None:
        arrived.put_nowait(event.type)

    writer = Server(postgres_url, background=False, event_poll_interval=LONG)
    writer.register(Order)
    async with worker.lifespan(), writer.lifespan(), asyncio.timeout(30):
        order = await writer.db(Order).create(total=1)
        assert await arrived.get() == "order.created"

        async with writer.transaction():
            await writer.db(Order).update(order.id, total=2)
        assert await arrived.get() == "order.updated"

        await writer.events.publish("mine", outside_transaction=True)
        assert await arrived.get() == "mine"
