"""One run in a worker's hands: from its claim to the outcome it leaves for the settler."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING

from maniflex._backoff import Backoff
from maniflex._fence import Fence, describe
from maniflex.background.json_text import clean
from maniflex.background.runs.executor import (
    NO_HANDLER,
    bad_payload,
    conclude,
    perform,
    read_payload,
    settle,
    without_handler,
)
from maniflex.background.runs.handlers import RunHandler
from maniflex.background.runs.outcomes import Done, Dropped, Failed, Outcome, Released
from maniflex.background.runs.rows import ClaimedRun
from maniflex.background.runs.run import Run

if TYPE_CHECKING:
    from maniflex.background.runs.worker import RunWorker


class Attempt:
    """The task that works on a run; it has begun when this is made."""

    __slots__ = ("_worker", "claimed", "run", "task")

    def __init__(self, worker: RunWorker, claimed: ClaimedRun, context: Context) -> None:
        self._worker = worker
        self.claimed = claimed
        self.run: Run | None = None  # what the handler was given
        self.task = asyncio.create_task(self._work(), context=context)
        self.task.add_done_callback(self._on_end)

    def tell_to_stop(self) -> None:
        """The worker cannot wait: cancel what can be cancelled, and tell the rest."""
        handler = self._worker.work.handlers.get(self.claimed.type)
        if self.run is not None:
            self.run.cancelled = self.run.handed_back = True  # all a plain function can be told
        if self.run is None or handler is None or handler.is_async:
            self.task.cancel()

    def notice_loss(self) -> None:
        """Called on the lease keeper's thread when a renewal finds that the run is not ours any more."""
        if self.run is not None:
            self.run.cancelled = True
        self.task.get_loop().call_soon_threadsafe(self._examine)

    def _examine(self) -> None:
        if not self.task.done():
            self._worker.work.spawn(self._stop_if_lost())

    async def _stop_if_lost(self) -> None:
        if not self.task.done() and not await self._worker.store.is_cancelled(self.claimed.held):
            self.task.cancel()  # what it goes on to do, another worker does already

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began
            self._worker.settler.release(self.claimed)
        self._worker.note_end(self)

    async def _work(self) -> None:
        worker, row = self._worker, self.claimed
        handler = worker.work.handlers.get(row.type)
        outcome: Outcome
        try:
            outcome = await self._outcome(handler)
        except BaseException as error:  # no handler's, those are outcomes: the engine failed, or is closed
            worker.logger.error("run %s was interrupted", row.id, exc_info=error)
            outcome = await self._after_interruption(error)
        if isinstance(outcome, Done):
            worker.settler.succeed(row, outcome.result)
            return
        if isinstance(outcome, Failed):
            self._tell(outcome)
        change = settle(row, outcome, handler.backoff if handler else Backoff(), worker.clock.now())
        if change is None:
            worker.settler.let_go(row)
        else:
            worker.settler.change(row, change)

    async def _outcome(self, handler: RunHandler | None) -> Outcome:
        worker, row = self._worker, self.claimed
        if row.until is not None and worker.clock.now() >= row.until:
            # We were stopped, or the loop was blocked, before we could begin: another worker may have.
            try:
                if not await worker.store.owns(row.held):
                    return Dropped()
            except (Exception, asyncio.CancelledError):
                return Released()  # if it still is ours
        if handler is None:
            missing = Failed(NO_HANDLER, f"no handler is registered for {row.type}", final=True)
            return await self._hopeless(missing)
        fence = None if handler.payload is None else Fence()  # without a type, no code of users runs
        try:
            payload = read_payload(handler, row.payload)
        except BaseException as error:  # a validator may raise anything
            return await self._hopeless(bad_payload((fence or Fence()).absorb(error)))
        self.run = run = Run(row, payload, worker.new_memory, worker.work)
        seconds = row.timeout
        if seconds is None and handler.timeout is not None:
            seconds = handler.timeout.total_seconds()
        outcome = await perform(run, handler, seconds, worker.threads, self.task)
        row.max_attempts = run.max_attempts  # more when it began to take its steps back
        return outcome

    async def _after_interruption(self, error: BaseException) -> Outcome:
        """An attempt that the engine failed is one that failed: its steps end, and may be taken back."""
        failure = Failed("interrupted", clean(describe(error)))
        if self.run is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return failure
        try:
            outcome = await conclude(self.run, failure)
        except BaseException as again:
            self._worker.logger.error("run %s was interrupted again", self.claimed.id, exc_info=again)
            return failure
        self.claimed.max_attempts = self.run.max_attempts
        return outcome

    async def _hopeless(self, failure: Failed) -> Outcome:
        """A run that fails because there is nothing to call with its payload."""
        worker, row = self._worker, self.claimed
        return await without_handler(Run(row, None, worker.new_memory, worker.work), failure)

    def _tell(self, failure: Failed) -> None:
        row = self.claimed
        over = failure.final or row.attempt >= row.max_attempts
        self._worker.logger.log(
            logging.ERROR if over else logging.WARNING,
            "run %s (%s) failed in attempt %d%s: %s",
            row.id,
            row.type,
            row.attempt,
            " and is given up" if over else f" of {row.max_attempts} and is tried again",
            f"{failure.message}\n{failure.trace}" if over and failure.code == "error" else failure.message,
        )
