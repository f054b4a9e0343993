"""The timeline of a run: its events with the time between them, and bars on one axis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from maniflex.admin.operations.desk import read_instant
from maniflex.background.parameters import span

WIDTH = 600.0
_NARROWEST = 3.0  # a short attempt is still seen
_STARTS_WORK = "leased"
# What a run does behind an event, until the next one.
_AFTER = {
    "created": "wait",
    "leased": "work",
    "retried": "pause",
    "suspended": "pause",
    "released": "wait",
    "hurried": "wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A stretch of the axis."""

    x: float
    width: float
    kind: str  # wait, work, pause or failed
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One event."""

    at: datetime
    name: str
    lasted: str  # until the next event
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The axis and the events."""

    bars: Sequence[TimelineBar]
    ticks: Sequence[tuple[float, str]]  # of steps that were done
    events: Sequence[TimelineEvent]
    total: str
    text: str


def draw_timeline(
    events: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    is_over: bool,
) -> Timeline:
    """The timeline of a run whose events and steps these are, the oldest first."""
    times = [_time(one) for one in events]
    end = times[-1] if times and is_over else max([now, *times])
    begin = times[0] if times else end
    whole = max((end - begin).total_seconds(), 0.001)
    bars, rows = [], []
    for place, event in enumerate(events):
        name, until = str(event["event_type"]), times[place + 1] if place + 1 < len(times) else end
        lasts = until - times[place]
        following = str(events[place + 1]["event_type"]) if place + 1 < len(events) else ""
        kind = _AFTER.get(name, "")
        if kind == "work" and following in ("failed", "retried"):
            kind = "failed"
        rows.append(
            TimelineEvent(
                at=times[place],
                name=name,
                lasted=write_lasting(lasts) if kind else "",
                data=event.get("data") or {},
            )
        )
        if kind and lasts > timedelta(0):
            x = (times[place] - begin).total_seconds() / whole * WIDTH
            width = max(lasts.total_seconds() / whole * WIDTH, _NARROWEST)
            x = min(x, WIDTH - width)
            text = f"{kind}: {write_lasting(lasts)}"
            bars.append(TimelineBar(x=round(x, 1), width=round(width, 1), kind=kind, text=text))
    ticks = [
        (round(min((_time(step) - begin).total_seconds() / whole, 1.0) * WIDTH, 1), str(step["name"]))
        for step in steps
        if not str(step["name"]).startswith("@") and _time(step) >= begin
    ]
    words = ", ".join(bar.text for bar in bars[:30])
    return Timeline(bars=bars, ticks=ticks, events=rows, total=write_lasting(end - begin), text=words)


def write_lasting(duration: timedelta) -> str:
    """How long something lasted, to the millisecond where it was short."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(duration)


def _time(record: Mapping[str, Any]) -> datetime:
    moment = read_instant(record["created_at"])
    assert moment is not None
    return moment
