"""Counts what a PostgreSQL connection receives, and hangs up when a statement sends too much.

The protocol has no way to stop rows that are on their way outside a transaction, and the driver keeps
them all until the last one is there. So the connection is closed; the pool opens another.
"""

from __future__ import annotations

from typing import Any

_ANY = 1 << 62


class Meter:
    """Stands between the transport and the driver's protocol while it counts."""

    def __init__(self, transport: Any, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol
        self._feed = protocol.data_received
        self._most = _ANY
        self.received = 0

    def begin(self, most: int) -> None:
        """Count from here; hang up after `most` bytes."""
        self.received, self._most = 0, most
        self._transport.set_protocol(self)

    def end(self) -> None:
        # A statement nobody counts for is not to pay for a meter.
        self._transport.set_protocol(self._protocol)

    @property
    def exceeded(self) -> bool:
        return self.received > self._most

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received > self._most:
            self._transport.abort()
        else:
            self._feed(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)
