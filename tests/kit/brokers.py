"""Brokers of events for tests: what takes one away, and a process that holds messages."""

from __future__ import annotations

from tests.kit.tcp_relay import Relay


class RelayedOutage:
    """An outage of a broker behind a relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def begin(self) -> None:
        await self._relay.cut()

    async def end(self) -> None:
        await self._relay.listen()
