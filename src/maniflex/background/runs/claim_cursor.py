"""Where a worker's last claim left off, for the next one to go on from.

A claimed run leaves a dead entry at the front of its lane until the database sweeps it, and a claim that
looks for the first live entry passes them all: under load, a claim would cost more with every run since.
So while claims come back full the next begins behind the last run taken. Every so often one looks at
everything: a run that became due ahead of that place, or in another lane, waits no longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from maniflex.background.runs.rows import ClaimedRun

WORTHWHILE = 10  # runs; who asks for fewer can afford to look
FOLLOWED_AT_MOST = 20
FOLLOWED_FOR = timedelta(milliseconds=100)


class ClaimPosition(NamedTuple):
    """The last run taken of a lane."""

    type: str
    priority: int
    run_at: Any
    id: str


class ClaimCursor:
    """The lanes of the last full claim, and where in them it ended."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, int], ClaimPosition] = {}
        self._followed = 0
        self._since: datetime | None = None  # when everything was looked at

    def positions(self, limit: int, now: datetime) -> list[ClaimPosition]:
        """Where to go on; nothing when it is time to look at everything."""
        fresh = self._since is not None and self._since <= now < self._since + FOLLOWED_FOR
        if not fresh or self._followed >= FOLLOWED_AT_MOST or limit < WORTHWHILE:
            self._positions.clear()
        self._followed += 1
        return list(self._positions.values())

    def restart(self, now: datetime) -> None:
        """Forget the positions, because the next claim looks at all lanes."""
        self._positions.clear()
        self._followed, self._since = 0, now

    def advance(self, runs: Sequence[ClaimedRun], *, full: bool) -> None:
        """Note the last run taken of each lane; without `full` the lanes are empty, so forget them."""
        if not full or any(run.group_key is not None for run in runs):
            self._positions.clear()
            return
        for run in runs:
            self._positions[run.type, run.priority] = ClaimPosition(
                run.type, run.priority, run.run_at, run.id
            )
