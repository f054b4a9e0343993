"""`Poller`: a function that is called now and then as long as the server runs.

    server.add_service(Poller(timedelta(seconds=30), terminal.sync_fingerprints))

A tick that is missed, because the process was away, is missed for good: what has to happen is a schedule.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from maniflex._callables import explain_class, is_async, label_of
from maniflex._clock import Clock, SystemClock
from maniflex._fence import Fence
from maniflex._logging import log_panic
from maniflex._threads import on_thread
from maniflex.background.declaring import as_duration, duration_problems, switch_problems
from maniflex.background.loop import Loop
from maniflex.errors import DeclarationError
from maniflex.middleware.arguments import is_function

log = logging.getLogger("maniflex.integration")


@explain_class
class Poller(Loop):
    """Calls `fn()` every `interval`; one tick ends before the next begins, and a failed one is logged.

    A plain function runs on a thread. With `run_on_start` the first tick comes at once.
    """

    def __init__(
        self,
        interval: timedelta | float,
        fn: Callable[[], Any],
        *,
        run_on_start: bool = False,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        problems = [*duration_problems(interval=interval), *switch_problems(run_on_start=run_on_start)]
        if not is_function(fn, 0):
            problems.append("fn is a function without arguments")
        if problems:
            raise DeclarationError("Poller: " + "; ".join(problems))
        self.name = name or f"poller {label_of(fn)}"
        super().__init__(clock or SystemClock(), as_duration(interval, "interval"), log, jitter=0)
        self._fn = fn
        self._run_on_start = run_on_start
        self._is_waiting = False

    @property
    def is_stalled(self) -> bool:
        return False  # a slow terminal is no reason to send no requests here

    async def start(self) -> None:
        """Begin; it stops with the server."""
        self._is_waiting = not self._run_on_start
        await super().start()

    async def tick(self) -> bool:
        if self._is_waiting:
            self._is_waiting = False
            return False
        fence = Fence()
        try:
            outcome = self._fn() if is_async(self._fn) else await on_thread(self._fn)
            if inspect.isawaitable(outcome):
                await outcome
        except BaseException as error:
            fence.absorb(error)
            log_panic(log, f"{self.name}: a tick failed; the next one comes when it is due", error)
        return False
