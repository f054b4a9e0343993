"""Requests that come although the process is to stop: balancers need a while to notice.

They are answered, and told that the connection ends, so that the next request of the client goes elsewhere.
"""

from __future__ import annotations

import time

from maniflex.http.asgi import with_headers
from maniflex.pipeline.exchange import AsgiScope, Send

QUIET_AFTER = 1.0  # seconds
_PROBES = ("/ready", "/live", "/health", "/metrics")
_CLOSE = [(b"connection", b"close")]


class LateRequests:
    """Notices whether requests still come."""

    def __init__(self) -> None:
        self._last = 0.0

    @property
    def are_coming(self) -> bool:
        return time.monotonic() - self._last < QUIET_AFTER

    def note(self, scope: AsgiScope, send: Send) -> Send:
        """How to answer this request."""
        if not scope["path"].endswith(_PROBES):
            self._last = time.monotonic()
        is_http_1 = scope.get("http_version", "").startswith("1")  # later ones have no such header
        return with_headers(send, _CLOSE) if is_http_1 else send
