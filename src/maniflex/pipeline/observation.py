"""One HTTP request as it is seen from outside when it is over: what `server.observe` gives to observers.

It names the route by its template and the path without its query string; nothing of a body, a token or a
cookie is in it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from maniflex._logging import LineHandler, escape_breaks, line_handler
from maniflex.db.statements import StatementObserver
from maniflex.pipeline.exchange import App

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
    """Write the access line without a `LogRecord`, which costs more than all the rest of an access log."""
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


# How many requests there were, and how long they took: the numbers of `/metrics` about requests.
#
# Labels come from a fixed set: known methods, templates of routes, statuses, codes. Clients make no new
# one.


BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
MOST_DURATIONS = 1000  # of one route and status that wait to be counted
MOST_CODES = 200  # of errors; an application that makes codes of what clients send has the others as one
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def method_label(method: str) -> str:
    """The method, or `other`: a client may send any word."""
    return method if method in _METHODS else OTHER


class RouteNumbers:
    """The requests to one route by one method."""

    __slots__ = ("durations", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}  # how many had each
        self.durations = [0] * (len(BUCKETS) + 1)  # by the first bucket that holds them; the longest last
        self.seconds = 0.0


class RequestNumbers:
    """Counts the requests of one process.

    A request leaves its duration in a list, which is counted when the numbers are read or it is long.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.durations: dict[tuple[object, int], list[float]] = {}  # by endpoint and status; not counted yet
        self._labels: dict[tuple[object, int], tuple[str, str]] = {}  # method and route of each
        self._routes: dict[tuple[str, str], RouteNumbers] = {}  # by method and route
        self.errors: dict[str, int] = {}  # by code
        self.admin_logins: Counter[str] = Counter()  # to the panel, by outcome

    @property
    def routes(self) -> Mapping[tuple[str, str], RouteNumbers]:
        """The numbers by method and route."""
        self.fold()
        return self._routes

    @property
    def in_flight(self) -> int:
        """How many requests are being answered."""
        return self.begun - self.totals()[0]

    def totals(self) -> tuple[int, int, float]:
        """How many requests there were, how many of them the server failed, and their seconds."""
        routes = self.routes.values()
        counts = [item for numbers in routes for item in numbers.statuses.items()]
        errors = sum(count for status, count in counts if status >= 500)
        seconds = sum(numbers.seconds for numbers in routes)
        return sum(count for _, count in counts), errors, seconds

    def observe(self, seen: Observation) -> None:
        """Count a request that is over."""
        self.add_durations(None, seen.method, seen.route, seen.status).append(seen.duration)
        if seen.code:
            self.count_error(seen.code)

    def add_durations(self, endpoint: object, method: str, route: str, status: int) -> list[float]:
        """The list in which requests of this route, method and status leave their durations."""
        labels = method_label(method), route
        key = (labels if endpoint is None else endpoint), status
        self._labels[key] = labels
        return self.durations.setdefault(key, [])

    def fold(self) -> None:
        """Count the durations that requests have left."""
        for key, durations in self.durations.items():
            if not durations:
                continue
            numbers, (_, status) = self._routes.setdefault(self._labels[key], RouteNumbers()), key
            numbers.statuses[status] = numbers.statuses.get(status, 0) + len(durations)
            numbers.seconds += sum(durations)
            for place, count in Counter(map(bisect_left, repeat(BUCKETS), durations)).items():
                numbers.durations[place] += count
            durations.clear()

    def count_error(self, code: str) -> None:
        """Count a refusal or a failure."""
        if code not in self.errors and len(self.errors) >= MOST_CODES:
            code = OTHER
        self.errors[code] = self.errors.get(code, 0) + 1


# The seam for tracing: what spans are made around. `maniflex.ext.otel` stands behind it.


class Tracing(Protocol):
    """Makes spans; an application without it pays nothing for any of them."""

    def layer(self, app: App) -> App:
        """The application with a span around each request."""

    def step(self, label: str) -> AbstractContextManager[Any]:
        """A span around a step or a middleware."""

    def statements(self, database: str, system: str) -> StatementObserver:
        """An observer that makes a span of each statement."""

    def run(self, run: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """A span around one attempt of a run; it is told what came of it."""

    def message(self, message: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """A span around one delivery of a message; likewise."""
