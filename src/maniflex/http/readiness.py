"""The checks of `/ready`: the databases and those of `server.readiness`, all at once and within one time.

Probes that come while checks run share that run. A check that does not end in time has failed; it is not
begun again before it has ended, so that a service which hangs does not pile up calls.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex.db.current import detached_context

Check = Callable[[], Any]


class ReadinessChecks:
    """Named checks, and the run of them that probes share."""

    def __init__(
        self,
        checks: Mapping[str, Check],
        within: float,
        logger: logging.Logger,
        what: str = "readiness check",
    ) -> None:
        self._checks = checks
        self._within = within
        self._logger = logger
        self._what = what
        self._shared: asyncio.Task[dict[str, bool]] | None = None
        self._going_on: dict[str, asyncio.Task[bool]] = {}
        self._in_threads: set[str] = set()

    async def run(self) -> dict[str, bool]:
        """Which of them passed."""
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(self._run(), context=detached_context())
        return await asyncio.shield(self._shared)

    async def _run(self) -> dict[str, bool]:
        tasks = {name: self._begin(name, check) for name, check in self._checks.items()}
        begun = [task for task in tasks.values() if task is not None]
        if begun:
            await asyncio.wait(begun, timeout=self._within)
        return {name: self._outcome(name, task) for name, task in tasks.items()}

    def _begin(self, name: str, check: Check) -> asyncio.Task[bool] | None:
        before = self._going_on.get(name)
        if before is not None and not before.done():
            return None
        self._going_on[name] = asyncio.create_task(self._passes(name, check))
        return self._going_on[name]

    async def _passes(self, name: str, check: Check) -> bool:
        fence = Fence()
        try:
            outcome = await check() if is_async(check) else await self._call_in_thread(name, check)
            if inspect.isawaitable(outcome):  # of a plain function that calls an async one
                outcome = await outcome
        except BaseException as error:
            fence.absorb(error)
            self._logger.warning("%s %s failed: %r", self._what, name, error)
            return False
        if outcome is False:
            self._logger.warning("%s %s failed", self._what, name)
        return outcome is not False

    async def _call_in_thread(self, name: str, check: Check) -> Any:
        self._in_threads.add(name)
        try:
            return await asyncio.to_thread(check)
        finally:
            self._in_threads.discard(name)

    def _outcome(self, name: str, task: asyncio.Task[bool] | None) -> bool:
        if task is not None and task.done() and not task.cancelled():
            return task.result()
        self._logger.warning("%s %s did not end within %g s", self._what, name, self._within)
        if task is not None and name not in self._in_threads:  # a thread cannot be stopped, and is waited for
            task.cancel()
        return False
