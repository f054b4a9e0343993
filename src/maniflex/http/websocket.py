"""uvicorn's WebSocket protocol as a server of streams needs it.

Framing is uvicorn's and `websockets`'. Here is what they leave to us: frames that are written at once,
without a task; the silence of a peer; 1001 where the server goes away; an end to every farewell, because a
peer that reads nothing keeps even the close frame from leaving. No line of the log shows a query string, a
header or a frame, which may carry a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode

from maniflex.http.protocol import SocketOptions, report_progress, unsent_bytes
from maniflex.pipeline.exchange import SOCKET

GOING_AWAY, NOT_UTF8, OUR_FAULT = 1001, 1007, 1011
ANSWERED_WITHIN = 1.0  # seconds that a farewell waits for its answer
_log = logging.getLogger("maniflex.websocket")


class _Quiet:
    """Takes the lines of uvicorn and `websockets`, which quote requests and frames, and writes none of them.

    A failure of the application is told, without what it was asked.
    """

    level = logging.CRITICAL

    def isEnabledFor(self, level: int) -> bool:
        return False

    def exception(self, *args: Any, **options: Any) -> None:
        _log.exception("a WebSocket connection failed")

    def error(self, *args: Any, **options: Any) -> None:
        _log.error("a WebSocket connection ended without a word")

    def _nothing(self, *args: Any, **options: Any) -> None:
        """Say nothing."""

    debug = info = warning = log = _nothing


_quiet: Any = _Quiet()


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    _options: SocketOptions
    _heard_at = 0.0  # by the clock of the loop: when the peer last sent anything
    _pinged_at = 0.0
    _beat: asyncio.TimerHandle | None = None
    _end: asyncio.TimerHandle | None = None  # when the connection is cut, farewell or not
    _gone_at = 0.0
    _is_failed = False  # nothing that the peer sends counts any more
    is_paused = False  # the peer has to read before more is written
    on_writable: Callable[[], None] | None = None  # called when it takes frames again

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = _quiet
        self.conn.debug = False
        self.ping_interval = None  # its own pings count pongs alone as signs of life
        self._options = _options_of(self.app)

    # -- what the application does besides ASGI

    @staticmethod
    def frame(text: bytes) -> bytes:
        """A text as the frame that every connection without compression sends of it."""
        return Frame(Opcode.TEXT, text).serialize(mask=False)

    @property
    def is_shared(self) -> bool:
        """Whether the frames of `frame` can be written as they are."""
        return not self.conn.extensions

    @property
    def is_open(self) -> bool:
        """Whether frames can be written."""
        return self.handshake_complete and not (
            self.close_sent or self.disconnected or self.transport.is_closing()
        )

    @property
    def unsent(self) -> int:
        """The bytes that the peer has not taken yet."""
        return 0 if self.disconnected else unsent_bytes(self.transport)

    def write_frame(self, frame: bytes) -> None:
        """Write a frame that `frame` has made, unless the connection ends."""
        if not (self.close_sent or self.disconnected):
            self.transport.write(frame)

    def write_text(self, text: bytes) -> None:
        """Write a text, unless the connection ends."""
        if self.close_sent or self.disconnected:
            return
        try:
            self.conn.send_text(text)
        except InvalidState:  # the peer has just said that it leaves
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    def close_now(self, code: int, reason: str = "") -> None:
        """Say farewell, also behind what the peer has not taken; it is cut off where that does not leave."""
        if not self.is_open:
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        with suppress(InvalidState, ProtocolError):
            self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self._end_soon()

    def abort(self) -> None:
        """Cut the connection, whatever waits to be sent."""
        self.transport.abort()

    def _end_soon(self, within: float | None = None) -> None:
        """See to it that the connection is gone within `send_timeout`, whether or not the farewell leaves.

        A farewell that has left need not be answered for that long.
        """
        if self._end is None or within is not None:
            if self._end is not None:
                self._end.cancel()
            seconds = self._options.send_timeout if within is None else within
            self._gone_at = self.loop.time() + seconds
            self._end = self.loop.call_later(min(seconds, ANSWERED_WITHIN), self._cut)
            self.close_timer = self._end  # by which uvicorn knows that a farewell is on its way

    def _cut(self) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size() > 0:
            seconds = self._gone_at - self.loop.time()
            if seconds > 0:
                self._end = self.close_timer = self.loop.call_later(seconds, self.transport.abort)
                return
            self.transport.abort()
        else:
            self.transport.close()

    # -- what happens to the connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        report_progress(transport)
        self._heard_at = self._pinged_at = self.loop.time()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._beat, self._end):
            if timer is not None:
                timer.cancel()
        self._beat = None
        super().connection_lost(exc)
        if self.on_writable is not None:
            self.on_writable()
            self.on_writable = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self.is_paused = False
        if self.on_writable is not None:
            self.on_writable()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if not self._is_failed:
            super().data_received(data)

    def eof_received(self) -> None:
        self._end_soon()  # what the peer has not read need not keep the connection

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_text(self.frames):
            _log.debug("a client sent bytes that are no UTF-8")
            self.conn.fail(NOT_UTF8)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def handle_close(self, event: Frame) -> None:
        was_sent = self.close_sent
        super().handle_close(event)
        if not was_sent:
            self._end_soon()

    def handle_parser_exception(self) -> None:
        """Say what was wrong, and let the peer read it: to close with its bytes unread is a reset."""
        self._is_failed = self.close_sent = True
        farewell = self.conn.close_sent
        code = OUR_FAULT if farewell is None else farewell.code
        _log.debug("a client broke the protocol of WebSockets: %d", code)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_soon()

    def shutdown(self) -> None:
        """The process stops; whoever serves the connection has been told before."""
        if self.handshake_complete:
            self.close_now(GOING_AWAY)
        self._end_soon(min(self._options.send_timeout, ANSWERED_WITHIN))

    async def run_asgi(self) -> None:
        scope: Any = self.scope
        scope[SOCKET] = self
        await super().run_asgi()
        self._end_soon()

    # -- signs of life

    def _look_later(self) -> None:
        options = self._options
        due = min(self._pinged_at + options.ping_interval, self._heard_at + options.read_timeout)
        self._beat = self.loop.call_at(max(due, self.loop.time() + 0.01), self._look)

    def _look(self) -> None:
        """Ping the peer, or leave one that has been silent for too long."""
        self._beat = None
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        now, options = self.loop.time(), self._options
        if self.read_paused:  # a message of its own is being worked on
            self._heard_at = now
        if now >= self._heard_at + options.read_timeout:
            if self.is_open:
                self.close_now(GOING_AWAY, "nothing was heard of the client")
            else:
                self.abort()
            return
        if now >= self._pinged_at + options.ping_interval:
            self._pinged_at = now
            if self.handshake_complete and not self.is_paused:
                self.conn.send_ping(b"")
                self.transport.write(b"".join(self.conn.data_to_send()))
        self._look_later()


def _options_of(app: Any) -> SocketOptions:
    """As the server says that is inside."""
    while not hasattr(app, "websocket_options") and hasattr(app, "app"):
        app = app.app
    options: SocketOptions | None = getattr(app, "websocket_options", None)
    return SocketOptions(64 * 1024, 30.0, 60.0, 5.0, False) if options is None else options


def _is_text(frames: list[bytes]) -> bool:
    try:
        (frames[0] if len(frames) == 1 else b"".join(frames)).decode()
    except UnicodeDecodeError:
        return False
    return True
