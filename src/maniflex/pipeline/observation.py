"""One HTTP request as it is seen from outside when it is over: what `server.observe` gives to observers.

It names the route by its template and the path without its query string; nothing of a body, a token or a
cookie is in it.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from maniflex._access_json import escape_breaks
from maniflex._logging import LineHandler, line_handler

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
    code: str = ""  # of the error it was answered with
    service: str = ""  # that answered, as the settings name it
    traceparent: str = ""  # the whole header that names the trace


def refused_before(status: int, bytes_sent: int, code: str, client_ip: str) -> Observation:
    """A request that could not be read, or not as a whole: nothing is known but what came of it."""
    return Observation("", "", "", "", "", status, 0.0, bytes_sent, "", "", "", "", client_ip, "", code)


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
    handler = line_handler(logger)
    if handler is not None:
        _write_quickly(handler, logger, level, seen)
    else:
        # What a formatter of ours adds, and one of the application has to find in the record.
        about = {"service": seen.service, "traceparent": seen.traceparent}
        logger.log(level, "%s", _line(seen), extra=_fields(seen) | about)


def _write_quickly(handler: LineHandler, logger: logging.Logger, level: int, seen: Observation) -> None:
    """The same line without a record of logging, which costs more than all the rest of an access log."""
    if handler.as_json:
        handler.write_json(level, logger.name, _line(seen), _fields(seen))
    else:
        handler.write_text(level, _line(seen), seen.request_id)


def _line(seen: Observation) -> str:
    actor = f" {escape_breaks(seen.actor_id)}" if seen.actor_id else ""
    path, method = escape_breaks(seen.path) or "-", seen.method or "-"
    return f"{method} {path} {seen.status} {seen.duration * 1000:.1f} ms {seen.bytes_sent} B{actor}"


def _fields(seen: Observation) -> dict[str, Any]:
    return {
        "method": seen.method,
        "route": seen.route,
        "path": escape_breaks(seen.path),
        "status": seen.status,
        "duration_ms": round(seen.duration * 1000, 3),
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
