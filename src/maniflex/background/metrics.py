"""Numbers about durable work: counters that only grow, gauges that are asked when read, and minutes.

Minutes are what the plots of operations are made of: how much was done in each, by kind and type, counted in
memory as batches are claimed and settled. The keeper of the process writes them every ten seconds. A count is
the total of this process for its minute, so that writing it twice changes nothing.

Kept without a metrics library; `maniflex.background_api.metrics` hands them to one.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from maniflex.db.current import ApartFromReader

Labels = tuple[tuple[str, str], ...]
Values = list[tuple[Labels, float]]
Reading = Callable[[], Awaitable[Values]]
KEPT = timedelta(minutes=15)  # for so long a minute may get counts, of outcomes that are written late


class Sample(NamedTuple):
    """One number: `runs_claimed_total{type="email.receipt.v1"} 7`."""

    name: str
    labels: Labels
    value: float


class Metrics:
    """The numbers of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = {}
        self.minutes = MinuteCounts()
        self._gauges: dict[tuple[str, ...], Callable[[], Awaitable[Sequence[Values]]]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        key = (name, tuple(sorted(labels.items())) if len(labels) > 1 else tuple(labels.items()))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount

    def value(self, name: str) -> float:
        """The sum of a counter over all its labels."""
        with self._lock:
            return sum(count for (counter, _), count in self._counts.items() if counter == name)

    def gauge(self, name: str, reading: Reading) -> None:
        """Call `reading` for the values of `name` each time the gauges are read."""

        async def alone() -> Sequence[Values]:
            return (await reading(),)

        self._gauges[name,] = alone

    def gauges_of(self, names: Sequence[str], reading: Callable[[], Awaitable[Sequence[Values]]]) -> None:
        """As `gauge`, for several gauges that one query answers, in the order of their names."""
        self._gauges[tuple(names)] = reading

    def counters(self) -> Iterator[Sample]:
        with self._lock:
            counts = sorted(self._counts.items())
        for (name, labels), value in counts:
            yield Sample(name, labels, value)

    async def gauges(self) -> list[Sample]:
        values_by_name: dict[str, Values] = {}
        with ApartFromReader():
            for names, reading in self._gauges.items():
                values_by_name.update(zip(names, await reading(), strict=True))
        return [
            Sample(name, labels, value)
            for name in sorted(values_by_name)
            for labels, value in values_by_name[name]
        ]


class MinuteKey(NamedTuple):
    """What a count is about."""

    minute: datetime
    kind: str  # run, message or request
    type: str


@dataclass(slots=True)
class Counts:
    """What happened to one type in one minute."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0  # for good
    retried: int = 0  # failed, and tried again
    busy: float = 0.0  # seconds that attempts took
    wait: float = 0.0  # seconds between being due and being started


class MinuteCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        self._counts: dict[MinuteKey, Counts] = {}
        self._changed: set[MinuteKey] = set()
        self._latest: datetime | None = None

    def of(self, moment: datetime, kind: str, type: str) -> Counts:
        """The counts to add to."""
        key = MinuteKey(moment.replace(second=0, microsecond=0), kind, type)
        self._changed.add(key)
        counts = self._counts.get(key)
        if counts is None:
            if key.minute != self._latest:
                self._forget(before=key.minute - KEPT)
                self._latest = key.minute
            counts = self._counts[key] = Counts()
        return counts

    def _forget(self, before: datetime) -> None:
        for key in [key for key in self._counts if key.minute < before]:
            del self._counts[key]
            self._changed.discard(key)

    def take_changed(self) -> list[tuple[MinuteKey, Counts]]:
        """The counts that changed since the last time."""
        keys, self._changed = self._changed, set()
        return [(key, self._counts[key]) for key in sorted(keys)]

    def put_back(self, keys: Iterable[MinuteKey]) -> None:
        """They could not be written; the next time has them again."""
        self._changed.update(key for key in keys if key in self._counts)


class MeasuredReplica(Protocol):
    """A read replica: whether it answers, and how old what it shows is."""

    is_up: bool
    lag: float


def measure_replica(metrics: Metrics, replica: MeasuredReplica | None) -> None:
    """Show how the replica is, where there is one."""
    if replica is None:
        return

    async def measure() -> tuple[Values, Values]:
        return [((), float(replica.is_up))], [((), replica.lag)]

    metrics.gauges_of(("replica_up", "replica_lag_seconds"), measure)
