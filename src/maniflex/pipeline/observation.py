"""One HTTP request as it is seen from outside when it is over: what `server.observe` gives to observers.

It names the route by its template and the path without its query string; nothing of a body, a token or a
cookie is in it.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

CLIENT_LEFT = 499


class Observation(NamedTuple):
    """What was asked, who asked, and what came of it; a text that is not known is empty."""

    method: str
    route: str  # with the names of its parameters; empty for a path that has no route
    path: str  # without the query string
    model: str
    operation: str
    status: int  # 499 when the client left before it was answered
    duration: float  # seconds until the last byte was sent
    bytes_sent: int  # of the body
    request_id: str
    trace_id: str
    actor_id: str
    tenant_id: str
    client_ip: str
    resource_id: str


def _level(status: int) -> int:
    """How loud a line is; a client that left has done nothing wrong."""
    if status < 400 or status == 499:
        return logging.INFO
    return logging.WARNING if status < 500 else logging.ERROR


def write_access_line(logger: logging.Logger, seen: Observation) -> None:
    """Write the line of the access log: a success as INFO, a refusal as WARNING, a failure as ERROR."""
    level = _level(seen.status)
    if not logger.isEnabledFor(level):
        return
    milliseconds = seen.duration * 1000
    # A line break in the path would begin a line that somebody else has written.
    path = seen.path if seen.path.isprintable() else seen.path.encode("unicode_escape").decode("ascii")
    about = {
        "method": seen.method,
        "route": seen.route,
        "path": path,
        "status": seen.status,
        "duration_ms": round(milliseconds, 3),
        "bytes": seen.bytes_sent,
        "request_id": seen.request_id,
        "trace_id": seen.trace_id,
        "user_id": seen.actor_id,
        "tenant_id": seen.tenant_id,
        "client_ip": seen.client_ip,
        "model": seen.model,
        "operation": seen.operation,
        "resource_id": seen.resource_id,
    }
    actor = f" {seen.actor_id}" if seen.actor_id else ""
    line = (seen.method, path, seen.status, milliseconds, seen.bytes_sent, actor)
    logger.log(level, "%s %s %d %.1f ms %d B%s", *line, extra=about)
