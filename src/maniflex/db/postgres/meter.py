"""Counts what a PostgreSQL connection receives, and hangs up when a statement sends too much.

The protocol has no way to stop rows that are on their way outside a transaction, and the driver keeps
them all until the last one is there. So the connection is closed; the pool opens another.
"""

from __future__ import annotations

from typing import Any

from maniflex.db.budget import Budget


class Meter:
    """Stands between the transport and the driver's protocol while a statement has a budget.

    `left` is the number of bytes that may still come. A Python method for every packet costs as much as
    a tenth of a read by id, so the statements that cannot send much go without.
    """

    __slots__ = (
        "_feed",
        "_protocol",
        "_transport",
        "connection_lost",
        "eof_received",
        "left",
        "pause_writing",
        "resume_writing",
    )

    def __init__(self, transport: Any, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol
        self._feed = protocol.data_received
        self.left = 0
        # Not by __getattr__: a class that has one is slow at everything else, too.
        self.connection_lost = protocol.connection_lost
        self.eof_received = protocol.eof_received
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def start(self, budget: Budget) -> None:
        """Count from here on."""
        self.left = budget.rows - budget.used
        self._transport.set_protocol(self)

    def stop(self, budget: Budget) -> None:
        """Stop counting; what came in is spent."""
        self._transport.set_protocol(self._protocol)
        budget.used = budget.rows - self.left

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            self._transport.abort()
        else:
            self._feed(data)
