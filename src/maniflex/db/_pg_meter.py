"""Counts what a PostgreSQL connection receives, and hangs up when a statement sends too much.

The protocol has no way to stop rows that are on their way outside a transaction, and the driver keeps
them all until the last one is there. So the connection is closed; the pool opens another.
"""

from __future__ import annotations

from typing import Any

ANY = 1 << 62  # bytes


class Meter:
    """Stands between the transport and the driver's protocol; `left` is what may still come."""

    __slots__ = ("_feed", "_protocol", "_transport", "left")

    def __init__(self, transport: Any, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol
        self._feed = protocol.data_received
        self.left = ANY
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            self._transport.abort()
        else:
            self._feed(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)
