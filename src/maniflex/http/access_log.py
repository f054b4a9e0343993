"""One log line for every request that was answered, or whose client left: the logger `maniflex.access`.

A line says method, path, status, milliseconds, bytes, the request id and who asked; never a query
string or a body. In JSON each is a field of its own, and the route too. Probes and metrics are left out.
Only our own servers write it (`maniflex run`, `server.run()`): others have access logs of their own.
"""

from __future__ import annotations

import logging
from time import time
from typing import Any

from maniflex._client_address import TrustedProxies
from maniflex._logging import ACCESS, MOST_WAITING, LineHandler, WaitingLine, escape_breaks, line_handler
from maniflex.http.layers import Observed, ObservedRequest
from maniflex.http.protocol import PatientProtocol
from maniflex.pipeline.exchange import App, AsgiScope
from maniflex.pipeline.observation import Observation, write_access_line

log = logging.getLogger(ACCESS)

_QUIET = frozenset({"/health", "/live", "/ready", "/metrics"})
_QUIET_LENGTH = max(map(len, _QUIET))


class AccessLines:
    """Writes the lines of requests; those that succeed wait in our own handler, where it is the only one."""

    def __init__(self) -> None:
        self._handler: LineHandler | None = None
        self._waiting: list[WaitingLine] = []
        self._as_json = False

    def note(self, request: ObservedRequest, scope: AsgiScope, status: int, duration: float) -> None:
        """Write the line of a request that is over."""
        path, context = scope["path"], request.context
        if len(path) <= _QUIET_LENGTH and path in _QUIET:
            return
        # A path that was sent without "%" has nothing in it that begins another line.
        if (
            status >= 400
            or context is None
            or b"%" in scope["raw_path"]
            or not (self._waiting or self._begin())
        ):
            write_access_line(log, request.observation(scope, status, duration))
            return
        auth, waiting = context.auth, self._waiting
        if self._as_json:
            endpoint = request.endpoint
            names = (request.route, "", "") if endpoint is None else endpoint.names
            user, tenant = ("", "") if auth is None else (auth.user_id, auth.tenant_id)
            waiting.append(
                (
                    time(), names, scope["method"], path, status, duration * 1000, request.size,
                    context.request_id, context.trace_id, user, tenant, context.client_ip,
                    context.resource_id,
                )
            )  # fmt: skip
        else:
            actor = "" if auth is None or not auth.user_id else " " + escape_breaks(auth.user_id)
            waiting.append(
                (scope["method"], path, status, duration * 1000, request.size, actor, context.request_id)
            )
        # Counted afterwards, because another thread may have written those that waited.
        if not 1 < len(waiting) < MOST_WAITING and self._handler is not None:
            self._handler.flush_in_time()

    def _begin(self) -> bool:
        """Whether lines may wait; asked when none does, so that a handler or level set later counts soon."""
        handler = self._handler = line_handler(log)
        may_wait = handler is not None and log.isEnabledFor(logging.INFO)
        self._waiting = handler.waiting if handler is not None and may_wait else []
        self._as_json = handler is not None and handler.as_json
        return may_wait


lines = AccessLines()


class AccessLog(Observed):
    """The application, and a line about each request."""

    def __init__(self, app: App) -> None:
        super().__init__(app, (), lines=lines)


def with_access_log(app: App, proxies: TrustedProxies, service: str) -> Observed:
    """The application of a server, and a line about each request."""
    if isinstance(app, Observed):
        return app.with_lines(lines)
    return Observed(app, (), proxies, lines=lines, service=service)


# uvicorn's HTTP protocol, ours, with an access log.


class LoggingProtocol(PatientProtocol):
    """One connection whose requests are logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = getattr(self._server, "serve_logged", None) or AccessLog(self.app).serve

    def note_refused(self, seen: Observation) -> None:
        super().note_refused(seen)
        settings = getattr(self._server, "config", None)
        write_access_line(log, seen._replace(service=getattr(settings, "service_name", "")))
