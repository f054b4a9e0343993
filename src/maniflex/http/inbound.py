"""The body of a request that is answered before it was read.

A server that closes a connection while the client is still sending makes the client's system throw
the answer away, and the client sees a reset. So the answer is sent first, and what still comes is
read and dropped, up to a size and a time, before the exchange ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from maniflex.pipeline.context import AsgiScope, Receive

DROP_AT_MOST = 32 * 1024 * 1024  # bytes
DROP_WITHIN = 10.0  # seconds
# So little is in the buffers of the server already, or will be; the connection can be kept.
SMALL = 64 * 1024


class Inbound:
    """The messages of one request, and whether its body has arrived."""

    __slots__ = ("_asked", "_receive", "_scope", "complete")

    def __init__(self, scope: AsgiScope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self._asked = False
        self.complete = False  # True: nothing of the body is still to come

    async def receive(self) -> Any:
        self._asked = True
        message = await self._receive()
        if not message.get("more_body"):  # the last part, or a client that is gone
            self.complete = True
        return message

    def rest(self) -> Rest | None:
        """What of the body is still to come; None when nothing is."""
        if self.complete:
            return None
        size: int | None = 0
        waits = False  # for a sign to send its body, which an answer is not
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                size = int(value) if value.isdigit() and len(value) < 19 else None
            elif name == b"transfer-encoding":
                size = None
            elif name == b"expect":
                waits = not self._asked and value.lower() == b"100-continue"
        if size == 0:
            return None
        closes = waits or size is None or size > SMALL
        return Rest(self, closes and self._scope.get("http_version", "1.1").startswith("1"), not waits)

    async def drop(self) -> None:
        """Read the rest of the body and forget it, within bounds."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_WITHIN):
                while not self.complete and size <= DROP_AT_MOST:
                    size += len((await self.receive()).get("body", b""))


class Rest:
    """How to answer while a body is still arriving."""

    __slots__ = ("_inbound", "closes", "comes")

    def __init__(self, inbound: Inbound, closes: bool, comes: bool) -> None:
        self._inbound = inbound
        self.closes = closes  # say that the connection will be closed
        self.comes = comes  # the client sends it without being told to

    async def drop(self) -> None:
        if self.comes:
            await self._inbound.drop()
