"""One log line for every request that was answered, or whose client left: the logger `maniflex.access`.

A line says method, path, status, milliseconds, bytes, the request id and who asked; never a query
string or a body. In JSON each is a field of its own, and the route too. Probes and metrics are left out.
Only our own servers write it (`maniflex run`, `server.run()`): others have access logs of their own.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from time import perf_counter
from typing import Any

from maniflex.http.asgi import App
from maniflex.http.protocol import PatientProtocol
from maniflex.http.streaming import Send
from maniflex.pipeline.context import CONTEXT, AsgiScope, Context, Receive

log = logging.getLogger("maniflex.access")

CLIENT_LEFT = 499
_QUIET = frozenset({"/health", "/live", "/ready", "/metrics"})


class LoggingProtocol(PatientProtocol):
    """One connection whose requests are logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = AccessLog(self.app)


class AccessLog:
    """The application, and a line about each request."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET or not log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        status, size, request_id = CLIENT_LEFT, 0, ""

        async def count(message: MutableMapping[str, Any]) -> None:
            nonlocal status, size, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = next((v.decode() for k, v in message["headers"] if k == b"x-request-id"), "")
            else:
                size += len(message.get("body", b""))
            await send(message)

        scope[CONTEXT] = None
        try:
            await self._app(scope, receive, count)
        finally:
            _write(scope, status, size, request_id, (perf_counter() - began) * 1000)


def _write(scope: AsgiScope, status: int, size: int, request_id: str, milliseconds: float) -> None:
    context: Context | None
    # Taken out: the context has the scope, and in a circle both would wait for the garbage collector,
    # and with them the body.
    context, route = scope.pop(CONTEXT) or (None, "")
    auth = context.auth if context is not None else None
    about = {
        "method": scope["method"],
        "route": route,
        "path": scope["path"],
        "status": status,
        "duration_ms": round(milliseconds, 3),
        "bytes": size,
        "request_id": request_id,
        "trace_id": context.trace_id if context is not None else "",
        "user_id": auth.user_id if auth is not None else "",
        "tenant_id": auth.tenant_id if auth is not None else "",
        "client_ip": (scope.get("client") or ("",))[0],
    }
    who = f" {about['user_id']}" if about["user_id"] else ""
    line = (scope["method"], scope["path"], status, milliseconds, size, who)
    log.info("%s %s %d %.1f ms %d B%s", *line, extra=about)
