"""How long to wait before trying again: doubling, capped, and spread by chance.

The only home of retry arithmetic; workers, relays and reconnecting listeners all ask here.

>>> Backoff(base=timedelta(seconds=1), cap=timedelta(minutes=5), jitter=0)(3)
datetime.timedelta(seconds=4)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

_MOST_DOUBLINGS = 62  # beyond this every cap is reached and a float could overflow


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after the n-th failure: `base` doubled each time, up to `jitter` more, never above `cap`."""

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)
    jitter: float = 0.5
    chance: Callable[[], float] = random.random

    def __call__(self, failures: int) -> timedelta:
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        # Room for the jitter is left below the cap: there most of all, many would otherwise wake at once.
        most = self.cap.total_seconds() / (1 + self.jitter)
        seconds = min(self.base.total_seconds() * 2**doublings, most)
        return timedelta(seconds=seconds * (1 + self.jitter * self.chance()))
