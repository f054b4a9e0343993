"""How long an upload may take: as long as it moves.

A body of JSON has one time in all, and a request `query_timeout`. A file may be large and a line slow,
so the body of an upload has `WITHIN` seconds for every `PROGRESS` bytes, and only the time spent
waiting for the client counts: a storage that takes long is not the client's doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from maniflex.errors import BodyTooSlow

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

PROGRESS = 64 * 1024  # bytes
WITHIN = 60.0  # seconds
PATIENCE = "maniflex.patience"  # in the scope of a request: the patience of its connection


class Patience:
    """What the application tells the connection of a request about its body."""

    __slots__ = ("is_upload",)

    def __init__(self) -> None:
        self.is_upload = False


class UploadBody:
    """The body of an upload, part by part; `BodyTooSlow` when it does not move."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._arrived = 0
        self._seconds_left = WITHIN
        patience = ctx.scope.get(PATIENCE)
        if patience is not None:
            patience.is_upload = True

    async def receive(self) -> Any:
        """The next message of the client; of a body that code has read before, the whole of it."""
        ctx = self._ctx
        if ctx.raw_body is not None:
            return {"type": "http.request", "body": ctx.raw_body, "more_body": False}
        ctx.body_asked = True
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await ctx.receive()
        except TimeoutError:
            raise BodyTooSlow() from None
        ctx.body_complete = not message.get("more_body")
        self._arrived += len(message.get("body", b""))
        if self._arrived >= PROGRESS:
            self._arrived, self._seconds_left = 0, WITHIN
        else:
            self._seconds_left -= asyncio.get_running_loop().time() - began
        return message


@contextmanager
def uploading(ctx: Context) -> Iterator[None]:
    """Let the request take as long as its files move; `query_timeout` counts anew afterwards."""
    ctx.is_uploading = True
    try:
        yield
    finally:
        ctx.is_uploading = False
