"""Plots of durable work as SVG paths: bars over one axis of time, one path for each series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from maniflex.background.processes.api import DuePoint, PlotPoint, floor
from maniflex.background.processes.store import Sums

WIDTH, HEIGHT = 600, 110
# What a person may choose: how far back, and how wide a bar is.
SPANS: Mapping[str, tuple[timedelta, timedelta]] = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(hours=24), timedelta(minutes=20)),
    "14d": (timedelta(days=14), timedelta(hours=4)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """One colour of a plot."""

    label: str
    tone: str  # ok, bad, warn or accent
    path: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlot:
    """A plot over time; `text` says the same to those who do not see it."""

    title: str
    series: Sequence[PlotSeries]
    top: str  # the value at the upper edge
    begin: str
    end: str
    text: str


def draw_bars(
    title: str,
    values: Sequence[tuple[str, str, Sequence[float]]],
    ends: tuple[str, str],
    write: Callable[[float], str],
) -> TimePlot:
    """Bars that stand on each other; `values` are labels, tones and a number for each interval."""
    heights = [sum(column) for column in zip(*(numbers for _, _, numbers in values), strict=True)]
    top = max(heights, default=0.0)
    scale = (HEIGHT - 2) / top if top else 0.0
    width = WIDTH / max(len(heights), 1)
    bottoms = [0.0] * len(heights)
    series = []
    for label, tone, numbers in values:
        parts = []
        for place, number in enumerate(numbers):
            if number > 0:
                height = max(number * scale, 0.75)
                low = HEIGHT - bottoms[place]
                parts.append(f"M{place * width:.1f},{low:.1f}v-{height:.1f}h{width * 0.8:.1f}v{height:.1f}z")
                bottoms[place] += height
        last = write(numbers[-1]) if numbers else ""
        series.append(PlotSeries(label=label, tone=tone, path="".join(parts), last=last))
    words = [f"{label}: most {write(max(numbers, default=0))}" for label, _, numbers in values]
    return TimePlot(
        title=title, series=series, top=write(top), begin=ends[0], end=ends[1], text="; ".join(words)
    )


def axis_of(now: datetime, over: timedelta, every: timedelta) -> list[datetime]:
    """The beginnings of the intervals, the last of which goes on."""
    last = floor(now, every)
    return [last - every * n for n in reversed(range(over // every))]


def values_on(
    axis: Sequence[datetime],
    points: Sequence[PlotPoint],
    kind: str,
    value: Callable[[Sums], float],
) -> list[float]:
    """What was done of one kind in each interval."""
    by_time = {point.at: value(point.sums) for point in points if point.kind == kind}
    return [by_time.get(at, 0.0) for at in axis]


def worst_on(
    axis: Sequence[datetime],
    points: Sequence[DuePoint],
    every: timedelta,
    value: Callable[[DuePoint], float],
) -> list[float]:
    """The largest value in each interval."""
    by_time: dict[datetime, float] = {}
    for point in points:
        at = floor(point.at, every)
        by_time[at] = max(by_time.get(at, 0.0), value(point))
    return [by_time.get(at, 0.0) for at in axis]


def ends_of(axis: Sequence[datetime], zone: ZoneInfo) -> tuple[str, str]:
    """What stands below the ends of the axis."""
    form = "%H:%M" if axis[-1] - axis[0] < timedelta(days=2) else "%d %b"
    return axis[0].astimezone(zone).strftime(form), axis[-1].astimezone(zone).strftime(form)


def write_number(value: float) -> str:
    """A count, or a rate with what matters of it."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def write_seconds(value: float) -> str:
    """A duration that may be short."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"
