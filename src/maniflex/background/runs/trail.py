"""Where a worker's last claim left off, for the next one to go on from.

What is claimed leaves dead entries at the front of its lane until the database sweeps them, and whoever
looks for the first live one passes them all: under load, a claim would cost more with every run since.
So while claims come back full the next begins behind the last run taken. Every so often one looks at
everything: what became due ahead of that place, or in another lane, waits no longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from maniflex.background.runs.rows import Claimed

WORTHWHILE = 10  # runs; who asks for fewer can afford to look
FOLLOWED_AT_MOST = 20
FOLLOWED_FOR = timedelta(milliseconds=100)


class Spot(NamedTuple):
    """The last run taken of a lane."""

    type: str
    priority: int
    run_at: Any
    id: str


class Trail:
    """The lanes of the last full claim, and where in them it ended."""

    def __init__(self) -> None:
        self._spots: dict[tuple[str, int], Spot] = {}
        self._followed = 0
        self._since: datetime | None = None  # when everything was looked at

    def spots(self, limit: int, now: datetime) -> list[Spot]:
        """Where to go on; nothing when it is time to look at everything."""
        fresh = self._since is not None and self._since <= now < self._since + FOLLOWED_FOR
        if not fresh or self._followed >= FOLLOWED_AT_MOST or limit < WORTHWHILE:
            self._spots.clear()
        self._followed += 1
        return list(self._spots.values())

    def looked(self, now: datetime) -> None:
        """A claim begins that looks at everything."""
        self._spots.clear()
        self._followed, self._since = 0, now

    def left(self, claimed: Sequence[Claimed], *, full: bool) -> None:
        """A claim took these runs, the most urgent first; `full` when there may be more like them."""
        if not full or any(run.group_key is not None for run in claimed):
            self._spots.clear()
            return
        for run in claimed:
            self._spots[run.type, run.priority] = Spot(run.type, run.priority, run.run_at, run.id)
