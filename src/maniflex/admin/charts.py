"""Plots as SVG that the server writes: no script draws, no style is inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300.0, 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot: the path of a line, or the bars."""

    path: str
    bars: Sequence[tuple[float, float, float, float]]  # x, y, width, height
    text: str  # the same for those who do not see it


def draw(values: Sequence[float], *, kind: str = "line") -> Plot:
    """The plot of some values, over their whole range."""
    if not values:
        return Plot(path="", bars=(), text="")
    low, high = min(0.0, *values), max(0.0, *values)
    span = (high - low) or 1.0
    step = WIDTH / max(len(values) - (kind == "line"), 1)
    heights = [round((value - low) / span * (HEIGHT - 4), 2) for value in values]
    text = f"{len(values)} values, from {min(values):g} to {max(values):g}, last {values[-1]:g}"
    if kind == "bar":
        bars = [(round(n * step, 2), HEIGHT - h, round(step * 0.8, 2), h) for n, h in enumerate(heights)]
        return Plot(path="", bars=bars, text=text)
    points = [f"{round(n * step, 2)},{round(HEIGHT - 2 - h, 2)}" for n, h in enumerate(heights)]
    return Plot(path="M" + " L".join(points), bars=(), text=text)
