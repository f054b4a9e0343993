"""Log a database that is away or full once a second, not once for each request it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from maniflex.errors import RequestError, Unavailable

PAUSE = 1.0  # seconds


def is_outage(error: RequestError) -> bool:
    """Whether the error says no more than that the database is away, which it will say again."""
    return isinstance(error, Unavailable) or isinstance(error.__cause__, Unavailable)


class OutageLog:
    """The outages of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again_at = 0.0
        self._unsaid = 0

    def note(self, error: RequestError, logger: Any) -> None:
        """Write one line with the causes, unless one was written just now."""
        now = self._clock()
        if now < self._again_at:
            self._unsaid += 1
            return
        others = f" (and {self._unsaid} more since the last such line)" if self._unsaid else ""
        self._again_at, self._unsaid = now + PAUSE, 0
        logger.error("%s %s: %s%s", error.status, error.code, _with_causes(error), others)


def _with_causes(error: BaseException) -> str:
    texts = [str(error)]
    while (cause := error.__cause__) is not None:
        texts.append(repr(cause))
        error = cause
    return ": ".join(texts)
