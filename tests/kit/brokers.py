"""Brokers of events for tests: what takes one away, and a process that holds messages."""

from __future__ import annotations

from typing import Any

from maniflex.events import Event
from tests.kit.tcp_relay import Relay


class EventInbox:
    """A handler that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def data(self) -> list[Any]:
        return [event.data for event in self.events]


class RelayedOutage:
    """An outage of a broker behind a relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def begin(self) -> None:
        await self._relay.cut()

    async def end(self) -> None:
        await self._relay.listen()
