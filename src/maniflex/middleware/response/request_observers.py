"""`response.logging` and `response.metrics`: a line and numbers about every request, for tools of yours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import Logger, LoggerAdapter, getLogger
from typing import Any, Protocol

from maniflex.pipeline.entry import ObserverEntry, describe_nothing
from maniflex.pipeline.observation import Observation, method_label, write_access_line

PROBES = ("/live", "/ready", "/health", "/metrics")


class Collector(Protocol):
    """Where the numbers of `response.metrics` go."""

    def count(self, name: str, labels: Mapping[str, str], /) -> Any: ...
    def observe(self, name: str, value: float, labels: Mapping[str, str], /) -> Any: ...


def logging(logger: Logger | None = None, *, skip: Sequence[str] = PROBES) -> RequestLog:
    """Write the line of the access log about every request to this logger, but for the paths in `skip`."""
    return RequestLog(logger, skip)


def metrics(collector: Collector) -> RequestMetrics:
    """Give the number and the duration of requests to a collector of yours."""
    return RequestMetrics(collector)


class RequestLog(ObserverEntry):
    """Writes one line about every request."""

    name = "response.logging"
    docs = describe_nothing

    def __init__(self, logger: Any, skip: Any) -> None:  # types are only promises until here
        super().__init__()
        if logger is not None and not isinstance(logger, Logger | LoggerAdapter):
            self.mistakes.append(f"{logger!r} is no logger")
        if isinstance(skip, str) or not all(isinstance(path, str) for path in skip):
            self.mistakes.append("skip= is a list of paths such as ['/live']")
        self._logger = getLogger("maniflex.access") if logger is None else logger
        self._skip = frozenset(skip)

    def observe(self, seen: Observation) -> None:
        if seen.path not in self._skip:
            write_access_line(self._logger, seen)


class RequestMetrics(ObserverEntry):
    """Counts and times every request."""

    name = "response.metrics"
    docs = describe_nothing

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = collector
        for method in ("count", "observe"):
            if not callable(getattr(collector, method, None)):
                self.mistakes.append(f"a {type(collector).__name__} has no method {method!r}")

    def observe(self, seen: Observation) -> None:
        labels = {
            "method": method_label(seen.method),
            "route": seen.route,
            "model": seen.model,
            "operation": seen.operation,
        }
        self._collector.observe("maniflex_request_duration_seconds", seen.duration, labels)
        self._collector.count("maniflex_requests_total", {**labels, "status": str(seen.status)})
