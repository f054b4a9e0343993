"""Server-Sent Events: one endless answer for each client, in chunks that are bounded and carry cursors.

The framing is ours: `id:` is the cursor, `data:` the CloudEvent, and a browser that comes back sends the last
id that it has seen. What waits for a client is sent by the task of its request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import randint
from typing import Any

from starlette.datastructures import MutableHeaders

from maniflex.errors import RequestError
from maniflex.http.protocol import unsent_bytes
from maniflex.pipeline.body import PATIENCE_KEY
from maniflex.pipeline.context import AsgiScope, Receive
from maniflex.pipeline.exchange import Send
from maniflex.realtime.connection import (
    GONE,
    LOST_PERMISSION,
    STUCK_AFTER,
    ClientConnection,
    ClientSubscription,
)
from maniflex.realtime.fanout import Fanout
from maniflex.realtime.log import FeedEntry
from maniflex.realtime.viewer import SeenEvent, Viewer

RETRY = 3000  # milliseconds after which a browser comes back
SOONEST, LATEST = 1000, 5000  # the same, of clients of a server that stops, so that they do not come at once
MOST_WAITING = 64 * 1024  # bytes that wait for the task which sends them
MEDIA_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
Refuse = Callable[[RequestError, AsgiScope, Send], Awaitable[None]]
log = logging.getLogger("maniflex.realtime")


class StreamConnection(ClientConnection):
    """One client of `/sse`."""

    transport = "sse"

    def __init__(self, fanout: Fanout, viewer: Viewer, transport: Any) -> None:
        super().__init__(fanout, viewer)
        self._transport = transport  # of a connection of our own listener
        self._waiting: list[bytes] = []
        self._size = 0
        self._sent = 0
        self._changed = asyncio.Event()
        self._is_ending = False
        self._is_cut = False
        self._main: asyncio.Task[Any] | None = None
        self.stuck_after = STUCK_AFTER if transport is not None else fanout.options.send_timeout

    # -- frames

    def frame(self, subscription: ClientSubscription, view: SeenEvent, entry: FeedEntry) -> bytes:
        frame = view.frames.get("")
        if frame is None:
            frame = view.keep("", b"id: %b\ndata: %b\n\n" % (entry.cursor.encode(), view.data))
        return frame

    def resync_frame(self, subscription: ClientSubscription, cursor: str) -> bytes:
        return f'id: {cursor}\nevent: resync\ndata: {{"cursor":"{cursor}"}}\n\n'.encode()

    def beat_frame(self, cursor: str) -> bytes | None:
        return f"id: {cursor}\n: keepalive\n\n".encode()

    # -- the way out

    @property
    def is_paused(self) -> bool:
        return self._size >= MOST_WAITING

    @property
    def progress(self) -> Any:
        transport = self._transport
        if transport is None or transport.is_closing():
            return self._sent
        return self._sent, unsent_bytes(transport)

    def send(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._size += len(frame)
        self._changed.set()

    def end(self, code: int, reason: str) -> None:
        if code in (GONE, LOST_PERMISSION):
            self.send(b"event: revoked\ndata: {}\n\n")
        elif code == 1001:
            self.send(farewell())
        else:
            self._waiting.clear()
        self._is_ending = True
        self._changed.set()
        asyncio.get_running_loop().call_later(self.fanout.farewell_time, self._cut)

    def _cut(self) -> None:
        """The client has not taken the end of the stream."""
        if self._main is None or self._main.done():
            return
        if self._transport is not None:
            self._transport.abort()
        else:
            self._is_cut = True
            self._main.cancel()

    async def run(self, receive: Receive, send: Send) -> None:
        """Send what comes until the client leaves or the stream ends."""
        self._main = asyncio.current_task()
        departure = asyncio.get_running_loop().create_task(self._notice_departure(receive))
        try:
            await self._send_all(send)
        except asyncio.CancelledError:
            if not self._is_cut or self._main is None:
                raise
            self._main.uncancel()
        except OSError as error:  # some servers tell by this that the client is gone
            log.debug("a client is gone: %r", error)
        finally:
            self._main = None
            departure.cancel()
            self.close()

    async def _send_all(self, send: Send) -> None:
        while True:
            while self._waiting:
                chunk, self._waiting = b"".join(self._waiting), []
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._size = sum(map(len, self._waiting))
                self._sent += 1
                self.on_writable()
            if self._is_ending:
                await send({"type": "http.response.body", "body": b""})
                return
            if self.is_closed:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _notice_departure(self, receive: Receive) -> None:
        with suppress(Exception):  # a server that cannot tell
            while (await receive())["type"] != "http.disconnect":
                pass
            self.close()
            self._changed.set()


def farewell() -> bytes:
    """What a server that stops says: come back, and not all at once."""
    return f"retry: {randint(SOONEST, LATEST)}\n\n".encode()


class EventStream:
    """The answer of `/sse`: it takes a place when it is sent, and gives it back however it ends."""

    status_code = 200

    def __init__(
        self,
        fanout: Fanout,
        viewer: Viewer,
        patterns: Sequence[str],
        position: int | None,
        headers: dict[str, str],
        refuse: Refuse,
    ) -> None:
        self._refuse = refuse
        self._fanout = fanout
        self._viewer = viewer
        self._patterns = patterns
        self._position = position  # that the client goes on from; None: it cannot
        self.headers = MutableHeaders(headers={**HEADERS, **headers, "content-type": MEDIA_TYPE})

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.headers.raw}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        fanout = self._fanout
        if fanout.is_stopping:
            await self._send_end(start, send)
            return
        try:
            slot = fanout.slots.take(self._viewer)
        except RequestError as refusal:
            fanout.note_refused(refusal.code)
            await self._refuse(refusal, scope, send)
            return
        patience = scope.get(PATIENCE_KEY)
        transport = None if patience is None else patience.transport
        connection = StreamConnection(fanout, self._viewer, transport)
        fanout.enter(connection, slot)
        try:
            await send(start)
            self._begin(connection)
            await connection.run(receive, send)
        finally:
            connection.close()

    def _begin(self, connection: StreamConnection) -> None:
        """The first bytes, at once: a client can resume before it has seen an event."""
        last = self._fanout.log.last
        position = last if self._position is None else self._position
        subscription = ClientSubscription(connection, "s_1", self._patterns, position)
        cursor = self._fanout.log.cursor(position)
        connection.told = position
        connection.send(f"retry: {RETRY}\nid: {cursor}\n: connected\n\n".encode())
        if self._position is None:
            connection._resync(subscription)
        if not connection.is_closed:
            connection.add(subscription)

    async def _send_end(self, start: dict[str, Any], send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": farewell()})


class EndedStream(EventStream):
    """What a server that stops answers: browsers give up for good on any other status."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = MutableHeaders(headers={**HEADERS, **headers, "content-type": MEDIA_TYPE})

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.headers.raw}
        await self._send_end(start, send)
