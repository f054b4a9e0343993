"""An outbox on a database of its own, and relays that do what a test needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from maniflex import Model, Server, field
from maniflex._clock import Clock
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import Batch, Claim, OutboxMessage
from tests.kit.internals import metrics_of, outbox_parts


class Order(Model):
    """What messages are about."""

    number: int = field(filterable=True)


class Bench:
    """A started server and its outbox, for tests that look at rows."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.outbox = server.outbox
        self.metrics = metrics_of(server)

    async def rows(self, **equal: Any) -> list[OutboxMessage]:
        """The messages in the order of enqueueing."""
        filters = [(name, "eq", value) for name, value in equal.items()]
        return await self.server.db(OutboxMessage).list(filters=filters, sorts=["seq"], limit=1000)

    async def enqueue(self, *messages: tuple[str, Any] | tuple[str, Any, str | None]) -> list[str]:
        """Enqueue kind, payload and perhaps key, each in a transaction of its own; their ids."""
        ids = []
        for kind, payload, *key in messages:
            async with self.server.transaction():
                made = await self.outbox.enqueue(kind, payload, key=key[0] if key else None)
            ids.append(made.id)
        return ids

    async def drain(self, **options: Any) -> int:
        return await self.outbox.drainer(**options).drain()


@asynccontextmanager
async def a_bench(
    url: str,
    declare: Callable[[Outbox], object] = Outbox.enable,
    *,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A server whose outbox `declare` has filled with handlers, and which delivers only when told."""
    server = Server(url, clock=clock, background=False, **settings)
    declare(server.outbox)
    server.register(Order)
    async with server.lifespan():
        yield Bench(server)


async def abandon(outbox: Outbox, limit: int = 50) -> Batch | None:
    """Claim as a relay does that is killed before it has done anything."""
    parts, store = outbox_parts(outbox)
    now = parts.clock.now()
    _, batch = await store.turn([], Claim("dead", None, limit, now + parts.config.work_lease), now)
    return batch


class Seen:
    """A handler that remembers, and fails for the payloads it is told to."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds or ("note",)
        self.messages: list[Message] = []
        self.failing: set[Any] = set()

    def __call__(self, outbox: Outbox) -> None:
        for kind in self.kinds:
            outbox.handler(kind)(self.handle)

    async def handle(self, message: Message) -> None:
        self.messages.append(message)
        if str(message.payload) in map(str, self.failing):
            raise RuntimeError(f"no {message.payload}")

    @property
    def payloads(self) -> list[Any]:
        return [message.payload for message in self.messages]
