"""The body of a request that is answered before it was read.

A server that closes a connection while the client is still sending makes the client's system throw
the answer away, and the client sees a reset. So the answer is sent first, and what still comes is
read and dropped, up to a size and a time, before the exchange ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from maniflex.pipeline.context import AsgiScope, Receive

DROP_AT_MOST = 32 * 1024 * 1024  # bytes
DROP_WITHIN = 10.0  # seconds
# So little is in the buffers of the server already, or will be; the connection can be kept.
SMALL = 64 * 1024


class Inbound:
    """The part of a body that has not arrived when the answer is ready, and how to answer before it."""

    __slots__ = ("_complete", "_receive", "closes", "comes")

    def __init__(self, receive: Receive, closes: bool, comes: bool) -> None:
        self._receive = receive
        self._complete = False
        self.closes = closes  # say that the connection will be closed
        self.comes = comes  # the client sends it without being told to

    async def drop(self) -> None:
        """Read the rest of the body and forget it, within bounds."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_WITHIN):
                while self.comes and not self._complete and size <= DROP_AT_MOST:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    self._complete = not message.get("more_body")  # the last part, or a client that is gone


def unread_body(scope: AsgiScope, receive: Receive, *, asked: bool) -> Inbound | None:
    """The unread part of the body, which was `asked` for or not; None when the request has no body."""
    size: int | None = 0
    waits = False  # for a sign to send its body, which an answer is not
    for name, value in scope["headers"]:
        if name == b"content-length":
            size = int(value) if value.isdigit() and len(value) < 19 else None
        elif name == b"transfer-encoding":
            size = None
        elif name == b"expect":
            waits = not asked and value.lower() == b"100-continue"
    if size == 0:
        return None
    closes = waits or size is None or size > SMALL
    return Inbound(receive, closes and scope.get("http_version", "1.1").startswith("1"), not waits)
