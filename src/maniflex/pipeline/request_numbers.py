"""How many requests there were, and how long they took: the numbers of `/metrics` about requests.

Labels come from a fixed set: known methods, templates of routes, statuses. Clients make no new one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from maniflex.pipeline.observation import Observation

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def method_label(method: str) -> str:
    """The method, or `other`: a client may send any word."""
    return method if method in _METHODS else "other"


class Durations(NamedTuple):
    """The durations of the requests to one route."""

    counts: list[int]  # by the first bucket that holds them; those longer than all stand last
    total: list[float]  # seconds, in its only item


class RequestNumbers:
    """Counts the requests of one process."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], int] = {}  # by method, route and status
        self.durations: dict[tuple[str, str], Durations] = {}  # by method and route

    def observe(self, seen: Observation) -> None:
        method = method_label(seen.method)
        key = (method, seen.route, str(seen.status))
        self.counts[key] = self.counts.get(key, 0) + 1
        durations = self.durations.get((method, seen.route))
        if durations is None:
            durations = Durations([0] * (len(BUCKETS) + 1), [0.0])
            self.durations[method, seen.route] = durations
        durations.counts[bisect_left(BUCKETS, seen.duration)] += 1
        durations.total[0] += seen.duration
