"""The events that a test publishes, as the feed has them after their commits.

>>> async with client(server) as http, capture(server, "order.*") as events:
...     await http.post("/api/orders", json={"total": 7})
>>> [event.type for event in events]
['order.created']
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import overload

from maniflex.app.server import Server
from maniflex.events.event import Event

_MOST = 100_000


class CapturedEvents(Sequence[Event]):
    """The events from the beginning of the block on, in their order: of its end, or of the last `read()`."""

    def __init__(self, server: Server, patterns: Sequence[str], cursor: str) -> None:
        self._server = server
        self._patterns = patterns
        self._cursor = cursor
        self._events: list[Event] = []

    async def read(self) -> list[Event]:
        """What is committed by now; nothing is handed to groups, endpoints or brokers."""
        await self._server.events.route_all()
        self._events = await self._server.events.read(self._cursor, self._patterns, _MOST)
        return list(self._events)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._events[place]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<captured: {', '.join(event.type for event in self._events) or 'nothing'}>"


@asynccontextmanager
async def capture(server: Server, *patterns: str) -> AsyncIterator[CapturedEvents]:
    """The events of these patterns, or all, that are published and committed in the block.

    The server is a started one, as inside of `client(server)`.
    """
    await server.events.route_all()  # what was there before has its position
    captured = CapturedEvents(server, patterns or ("*",), await server.events.position())
    yield captured
    await captured.read()
