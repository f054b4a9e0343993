"""The numbers of the feed: what waits, and for how long."""

from __future__ import annotations

from collections.abc import Container, Sequence

from maniflex._clock import Clock
from maniflex.background.feed.bridges import BusUse
from maniflex.background.feed.model import BRIDGE
from maniflex.background.feed.store import FeedStore
from maniflex.background.metrics import Labels, Metrics


class FeedNumbers:
    """Reads the gauges of the feed each time they are asked for."""

    def __init__(
        self, store: FeedStore, clock: Clock, groups: Container[str], uses: Sequence[BusUse]
    ) -> None:
        self._store = store
        self._clock = clock
        self._groups = groups  # with code in this process
        self._uses = uses

    def add_to(self, metrics: Metrics) -> None:
        """Have them read whenever the numbers of the process are."""
        metrics.gauge("events_unrouted", self._count_unrouted)
        metrics.gauge("events_lag_seconds", self._measure_lag)
        metrics.gauge("events_unhandled", self._count_unhandled)
        if self._uses:
            metrics.gauge("events_bridge_lag_seconds", self._measure_bridges)
            metrics.gauge("events_lost_total", self._count_lost)

    async def _count_unrouted(self) -> list[tuple[Labels, float]]:
        return [((), float(await self._store.unrouted_count()))]

    async def _measure_lag(self) -> list[tuple[Labels, float]]:
        now = self._clock.now()
        return [
            ((("group", group),), (now - since).total_seconds())
            for group, _, since in await self._store.group_depth()
        ]

    async def _count_unhandled(self) -> list[tuple[Labels, float]]:
        return [
            ((("group", group),), float(waiting))
            for group, waiting, _ in await self._store.group_depth()
            if group not in self._groups
        ]

    async def _measure_bridges(self) -> list[tuple[Labels, float]]:
        now = self._clock.now()
        lags: list[tuple[Labels, float]] = []
        for group in await self._store.groups():
            if group.kind == BRIDGE:
                waiting = await self._store.read(group.position, 1)
                seconds = (now - waiting[0].event.time).total_seconds() if waiting else 0.0
                lags.append(((("bus", group.name),), seconds))
        return lags

    async def _count_lost(self) -> list[tuple[Labels, float]]:
        """Events that a broker had removed before they were taken, of buses that can tell."""
        return [((("bus", use.name),), float(use.bus.lost)) for use in self._uses if hasattr(use.bus, "lost")]
