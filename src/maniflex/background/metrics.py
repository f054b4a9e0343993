"""Numbers about durable work: counters that only grow, and gauges that are asked when read.

Kept without a metrics library; `maniflex.background_api.metrics` hands them to one.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]
Values = list[tuple[Labels, float]]
Reading = Callable[[], Awaitable[Values]]


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
        for names, reading in self._gauges.items():
            values_by_name.update(zip(names, await reading(), strict=True))
        return [
            Sample(name, labels, value)
            for name in sorted(values_by_name)
            for labels, value in values_by_name[name]
        ]
