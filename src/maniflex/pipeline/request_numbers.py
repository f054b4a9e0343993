"""How many requests there were, and how long they took: the numbers of `/metrics` about requests.

Labels come from a fixed set: known methods, templates of routes, statuses, codes. Clients make no new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import repeat

from maniflex.pipeline.observation import Observation

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

    A request leaves its duration in a list; they are counted when somebody asks, or when there are many.
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
        """Where the durations of such requests go."""
        labels = method_label(method), route
        key = (labels if endpoint is None else endpoint), status
        self._labels[key] = labels
        return self.durations.setdefault(key, [])

    def fold(self) -> None:
        """Count what was left here."""
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
