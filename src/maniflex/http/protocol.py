"""uvicorn's HTTP protocol with an end to its patience.

A head or a body that dribbles in, and a head that is huge, are cut off.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT = 20.0  # seconds for the headers of a request to arrive
BODY_TIMEOUT = 60.0  # and for its body
HEAD_SIZE = 64 * 1024
CODE = "HEADERS_TOO_LARGE"
_BODY = b'{"error":{"code":"%b","message":"the headers are too large"}}' % CODE.encode()
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class PatientProtocol(HttpToolsProtocol):
    """One connection; `_due` is when what it waits for must have arrived, None while it waits for nothing."""

    _due: float | None = None
    _in_head = True
    _size = 0
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._due = self.loop.time() + HEAD_TIMEOUT
        self._watch = self.loop.call_later(HEAD_TIMEOUT, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Looked at afterwards: a head that is complete may have brought its body along.
        if self._in_head:
            self._size += len(data)
            if self._size > HEAD_SIZE and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._due, self._in_head, self._size = self.loop.time() + HEAD_TIMEOUT, True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._due, self._in_head = self.loop.time() + BODY_TIMEOUT, False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._due = None
        super().on_message_complete()

    def _look(self) -> None:
        """Close a connection that is overdue; one timer per connection, not per request."""
        now = self.loop.time()
        if self._due is not None and now >= self._due:
            self.transport.close()
            return
        wait = HEAD_TIMEOUT if self._due is None else min(self._due - now, HEAD_TIMEOUT)
        self._watch = self.loop.call_later(wait, self._look)
