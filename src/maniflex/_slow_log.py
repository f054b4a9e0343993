"""Log what was slow: each kind once, and then no more than once in ten seconds with how often it was."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

PAUSE = 10.0  # seconds
MOST_SHAPES = 500


class SlowLog:
    """The slow requests, or the slow statements of one database."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._shapes: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when it may be said again; unsaid

    def note(self, what: str, shape: str, seconds: float) -> None:
        """Write a line with the shape, unless there was one about the same a moment ago."""
        now = self._clock()
        again_at, unsaid = self._shapes.pop(shape, (0.0, 0))
        if now < again_at:
            self._shapes[shape] = again_at, unsaid + 1
            return
        self._shapes[shape] = now + PAUSE, 0
        if len(self._shapes) > MOST_SHAPES:
            self._shapes.popitem(last=False)
        others = f" (and {unsaid} more since the last such line)" if unsaid else ""
        self._logger.warning(
            "%s: %.3f s%s: %s", what, seconds, others, shape, extra={"duration_ms": round(seconds * 1000, 3)}
        )
