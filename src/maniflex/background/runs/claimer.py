"""Claims runs that are due for a worker that has room."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from maniflex.background.loop import Loop
from maniflex.background.runs.claim_cursor import ClaimCursor

if TYPE_CHECKING:
    from maniflex.background.runs.worker import RunWorker


class Claimer(Loop):
    """Claims whenever there is room; a full claim is followed by another at once."""

    name = "maniflex-worker"

    def __init__(self, worker: RunWorker, interval: timedelta) -> None:
        super().__init__(worker.clock, interval, worker.logger)
        self._worker = worker
        self._short = 0
        self._cursor = ClaimCursor()

    def room(self) -> None:
        """A run ended; with work waiting, its place is taken at once."""
        if not self._short:
            self.wake()

    def wake(self) -> None:
        self._short = 0
        super().wake()

    async def tick(self) -> bool:
        worker = self._worker
        room = worker.free
        if room <= 0:
            return False
        short, self._short = self._short, self._short + 1
        runs = await worker.claim(min(room, worker.portion), self._cursor)
        if runs:
            worker.begin(runs)
            self._short = 0
            return worker.free > 0  # else there is no room until one ends, and that wakes us
        return short == 0

    def on_failure(self, error: BaseException) -> None:
        self._worker.metrics.add("runs_poll_errors_total")
