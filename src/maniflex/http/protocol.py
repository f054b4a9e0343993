"""uvicorn's HTTP protocol with an end to its patience.

A head or a body that arrives too slowly, and a head that is too large, are cut off; never before the
requests that came earlier on the same connection are answered. A body has a time in all, until the
application says that it takes an upload (`Patience`): then each `PROGRESS` bytes have a time of their
own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from maniflex.config import Config
from maniflex.pipeline.body import PATIENCE_KEY, PROGRESS, Patience
from maniflex.pipeline.observation import Observation, refused_before

UPLOAD_TIMEOUT = (
    90.0  # for the next `PROGRESS` bytes of an upload; the application gives up first, with an answer
)
LINGER = 0.5  # seconds that an idle connection stays open when the process stops
# What the kernel takes without having sent it. It would take megabytes, and tell for minutes nothing of a
# client that reads them slowly.
UNSENT = 128 * 1024
CODE = "HEADERS_TOO_LARGE"
_BODY = b'{"error":{"code":"%b","message":"the headers are too large"}}' % CODE.encode()
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_BODY)),
    (b"cache-control", b"no-store"),
    (b"connection", b"close"),
]
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    + b"".join(b"%b: %b\r\n" % header for header in _HEADERS)
    + b"\r\n"
    + _BODY
)


async def refuse_head(
    scope: Any, receive: Any, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]
) -> None:
    """The application of a request whose head is too large."""
    await send({"type": "http.response.start", "status": 431, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


_DEFAULTS = Config()


class ConnectionLimits(NamedTuple):
    """How long a connection waits for the parts of a request, in seconds, and how large its head may be."""

    head: float
    body: float
    head_size: int

    @classmethod
    def of(cls, app: Any) -> ConnectionLimits:
        """As the settings of a server say, or the defaults for another application."""
        config = getattr(app, "config", None)
        settings = config if isinstance(config, Config) else _DEFAULTS
        head, body = settings.head_timeout.total_seconds(), settings.body_timeout.total_seconds()
        return cls(head, body, settings.max_header_size)


class PatientProtocol(HttpToolsProtocol):
    """One connection; `_due` is when what it waits for must have arrived, None while it waits for nothing."""

    _due: float | None = None
    _in_head = True
    _size = 0  # bytes of the head that is arriving
    _reading = 0  # bytes that are being parsed right now
    _began = False  # whether the head began among them
    _shared = False  # and whether they hold the end of another request as well
    _farewell: Callable[[], None] | None = (
        None  # said when earlier requests are answered; nothing more is read
    )
    _watch: asyncio.TimerHandle | None = None
    _arrived = 0  # bytes of an upload since it was last seen to move
    _is_upload = False  # whether `_due` is that of an upload

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server = _inside(self.app)
        self._limits = ConnectionLimits.of(self._server)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._patience = Patience()
        self._patience.transport = transport
        self._due = self.loop.time() + self._limits.head
        self._watch = self.loop.call_later(self._limits.head, self._look)
        report_progress(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._patience.transport = None
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """The connection is another protocol's from here on, which looks after its time itself."""
        if self._watch is not None:
            self._watch.cancel()
        self._patience.transport = None
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        """The process stops: answer what the client sends next, and close when it sends nothing for a while.

        Closed at once, a connection that is kept alive would lose the request that is on its way.
        """
        if self._answers_pending():
            super().shutdown()
        else:
            self.loop.call_later(LINGER, super().shutdown)

    def data_received(self, data: bytes) -> None:
        if self._farewell is not None:
            return
        self._reading, self._began, self._shared = len(data), False, False
        super().data_received(data)
        # Looked at afterwards: a head that is complete may have brought its body along.
        if self._in_head:
            if not self._began:
                self._size += len(data)
            else:
                # Of bytes shared with other requests, those of complete headers are known to be its own.
                self._size = self._size_of_headers() if self._shared else len(data)
            if self._size > self._limits.head_size:
                self._leave(self._refuse_head)
        elif self._patience.is_upload and self._due is not None:
            self._arrived += len(data)
            if self._arrived >= PROGRESS:
                self._arrived, self._due, self._is_upload = 0, self.loop.time() + UPLOAD_TIMEOUT, True

    def send_400_response(self, msg: str) -> None:
        self._leave(lambda: self._refuse_unreadable(msg))

    def _refuse_unreadable(self, msg: str) -> None:
        HttpToolsProtocol.send_400_response(self, msg)
        self._tell_refused(400, len(msg))

    def _leave(self, farewell: Callable[[], None]) -> None:
        """Close the connection with these words, after the answers to earlier requests."""
        self._farewell = farewell
        if self.transport.is_closing():
            return
        if self._answers_pending():
            self.flow.pause_reading()
        else:
            farewell()

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()
        self._tell_refused(431, len(_BODY), CODE)

    def _tell_refused(
        self, status: int, size: int, code: str = "", *, method: str = "", path: str = ""
    ) -> None:
        client = self.client[0] if self.client else ""
        seen = refused_before(status, size, code, client)
        self.note_refused(seen._replace(method=method, path=path))

    def note_refused(self, seen: Observation) -> None:
        """Tell the observers of the server of a request that it never sees."""
        note = getattr(self._server, "note_refused", None)
        if note is not None:
            note(seen)

    def _answers_pending(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete)

    def _size_of_headers(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_message_begin(self) -> None:
        self._due, self._in_head, self._size, self._began = (
            self.loop.time() + self._limits.head,
            True,
            0,
            True,
        )
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._due, self._in_head = self.loop.time() + self._limits.body, False
        self._patience.is_upload = self._is_upload = False
        self._arrived = 0
        self.scope[PATIENCE_KEY] = self._patience  # type: ignore[literal-required]  # of our own
        if (
            self._size + self._reading > self._limits.head_size
            and self._size_of_headers() > self._limits.head_size
        ):
            app, self.app = self.app, refuse_head  # refused in its turn, as any other request is answered
            try:
                super().on_headers_complete()
            finally:
                self.app = app
            method, path = self.scope["method"], self.scope["path"]
            self._tell_refused(431, len(_BODY), CODE, method=method, path=path)
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._due, self._shared, self._began = None, True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._farewell is not None:
            self._leave(self._farewell)
        elif self._due is not None:
            # The rest of the next request could not be read before this one was answered.
            self._due = self.loop.time() + (self._limits.head if self._in_head else self._limits.body)

    def _look(self) -> None:
        """Close a connection that is overdue; one timer per connection, not per request."""
        now = self.loop.time()
        if self._due is not None and self._patience.is_upload and not self._is_upload:
            self._is_upload = True
            self._due += UPLOAD_TIMEOUT - self._limits.body
        if self._due is not None and now >= self._due and not self._waits_for_us():
            self.transport.close()
            return
        wait = self._limits.head if self._due is None else min(max(self._due - now, 0.1), self._limits.head)
        self._watch = self.loop.call_later(wait, self._look)

    def _waits_for_us(self) -> bool:
        """Whether the client cannot go on: earlier requests are unanswered, or an upload is not read on."""
        if self._patience.is_upload and not self._in_head and self.flow.read_paused:
            return True
        return bool(self.pipeline) or (self._in_head and self._answers_pending())


def _inside(app: Any) -> Any:
    """The server, without the middleware that uvicorn may have put around it."""
    while not hasattr(app, "note_refused") and hasattr(app, "app"):
        app = app.app
    return app


def report_progress(transport: Any) -> None:
    """Let the kernel keep little unsent, so that a slow reader shows as slow and not as standing still."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


def unsent_bytes(transport: Any) -> int:
    """What was written and has not arrived: in the buffer of the transport, and in the kernel's."""
    size = int(transport.get_write_buffer_size())
    connection = transport.get_extra_info("socket")
    with suppress(ImportError, OSError, ValueError, AttributeError):  # closed, or no socket of a network
        import fcntl
        import termios

        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        size += struct.unpack("i", answer)[0]
    return size


# WebSocket connections, whose protocol stands in `websocket.py` and is loaded where there are any.


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """How WebSocket connections of a server behave; seconds and bytes."""

    max_message_size: int | None
    ping_interval: float
    read_timeout: float
    send_timeout: float
    compression: bool
