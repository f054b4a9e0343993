"""One run in a worker's hands: from its claim to the outcome it leaves for the settler."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING

from maniflex._backoff import Backoff
from maniflex._fence import Fence, describe
from maniflex.background.jsons import clean
from maniflex.background.runs.executor import (
    NO_HANDLER,
    bad_payload,
    conclude,
    perform,
    read_payload,
    settle,
    without_handler,
)
from maniflex.background.runs.handlers import Handler
from maniflex.background.runs.outcomes import Done, Dropped, Failed, Outcome, Released
from maniflex.background.runs.rows import Claimed
from maniflex.background.runs.run import Run

if TYPE_CHECKING:
    from maniflex.background.runs.worker import Worker


class Attempt:
    """The task that works on a run; it has begun when this is made."""

    __slots__ = ("_worker", "claimed", "run", "task")

    def __init__(self, worker: Worker, claimed: Claimed, context: Context) -> None:
        self._worker = worker
        self.claimed = claimed
        self.run: Run | None = None  # what the handler was given
        self.task = asyncio.create_task(self._work(), context=context)
        self.task.add_done_callback(self._ended)

    def tell_to_stop(self) -> None:
        """The worker cannot wait: cancel what can be cancelled, and tell the rest."""
        handler = self._worker.work.handlers.get(self.claimed.type)
        if self.run is not None:
            self.run.cancelled = self.run.handed_back = True  # all a plain function can be told
        if self.run is None or handler is None or handler.is_async:
            self.task.cancel()

    def lost(self) -> None:
        """Called on the heart's thread when a renewal finds the run not ours any more."""
        if self.run is not None:
            self.run.cancelled = True
        self.task.get_loop().call_soon_threadsafe(self._examine)

    def _examine(self) -> None:
        if not self.task.done():
            self._worker.work.spawn(self._stop_if_lost())

    async def _stop_if_lost(self) -> None:
        if not self.task.done() and not await self._worker.store.is_cancelled(self.claimed.held):
            self.task.cancel()  # what it goes on to do, another worker does already

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began
            self._worker.settler.release(self.claimed)
        self._worker.ended(self)

    async def _work(self) -> None:
        worker, claimed = self._worker, self.claimed
        handler = worker.work.handlers.get(claimed.type)
        outcome: Outcome
        try:
            outcome = await self._outcome(handler)
        except BaseException as error:  # no handler's, those are outcomes: the engine failed, or is closed
            worker.logger.error("run %s was interrupted", claimed.id, exc_info=error)
            outcome = await self._after_interruption(error)
        if isinstance(outcome, Done):
            worker.settler.succeed(claimed, outcome.result)
            return
        if isinstance(outcome, Failed):
            self._tell(outcome)
        change = settle(claimed, outcome, handler.backoff if handler else Backoff(), worker.clock.now())
        if change is None:
            worker.settler.let_go(claimed)
        else:
            worker.settler.change(claimed, change)

    async def _outcome(self, handler: Handler | None) -> Outcome:
        worker, claimed = self._worker, self.claimed
        if claimed.until is not None and worker.clock.now() >= claimed.until:
            # We were stopped, or the loop was blocked, before we could begin: somebody else may have.
            try:
                if not await worker.store.owns(claimed.held):
                    return Dropped()
            except (Exception, asyncio.CancelledError):
                return Released()  # if it still is ours
        if handler is None:
            missing = Failed(NO_HANDLER, f"no handler is registered for {claimed.type}", final=True)
            return await self._hopeless(missing)
        fence = None if handler.payload is None else Fence()  # without a type, there is no code of anybody's
        try:
            payload = read_payload(handler, claimed.payload)
        except BaseException as error:  # a validator may raise anything
            return await self._hopeless(bad_payload((fence or Fence()).absorb(error)))
        self.run = run = Run(claimed, payload, worker.new_memory, worker.work)
        seconds = claimed.timeout
        if seconds is None and handler.timeout is not None:
            seconds = handler.timeout.total_seconds()
        outcome = await perform(run, handler, seconds, worker.threads, self.task)
        claimed.max_attempts = run.max_attempts  # more when it began to take its steps back
        return outcome

    async def _after_interruption(self, error: BaseException) -> Outcome:
        """An attempt that the engine failed is one that failed: its steps end, and may be taken back."""
        failed = Failed("interrupted", clean(describe(error)))
        if self.run is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return failed
        try:
            outcome = await conclude(self.run, failed)
        except BaseException as again:
            self._worker.logger.error("run %s was interrupted again", self.claimed.id, exc_info=again)
            return failed
        self.claimed.max_attempts = self.run.max_attempts
        return outcome

    async def _hopeless(self, failed: Failed) -> Outcome:
        """A run that fails because there is nothing to call with its payload."""
        worker, claimed = self._worker, self.claimed
        return await without_handler(Run(claimed, None, worker.new_memory, worker.work), failed)

    def _tell(self, failed: Failed) -> None:
        claimed = self.claimed
        over = failed.final or claimed.attempt >= claimed.max_attempts
        self._worker.logger.log(
            logging.ERROR if over else logging.WARNING,
            "run %s (%s) failed in attempt %d%s: %s",
            claimed.id,
            claimed.type,
            claimed.attempt,
            " and is given up" if over else f" of {claimed.max_attempts} and is tried again",
            f"{failed.message}\n{failed.trace}" if over and failed.code == "error" else failed.message,
        )
