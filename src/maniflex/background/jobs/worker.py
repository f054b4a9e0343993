"""A worker for jobs that are no runs: claims as it has room, runs jobs side by side, reports their outcomes.

An outcome is reported to the source until it takes it. Only a shutdown whose time is up stops that; the
job is then delivered again once its lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from inspect import isawaitable
from typing import Any

from maniflex._clock import Backoff, Clock, SystemClock
from maniflex._fence import Fence
from maniflex._json import encode
from maniflex._logging import guard_logger
from maniflex.background.declaring import as_duration
from maniflex.background.jobs.inproc import ABANDONED
from maniflex.background.jobs.port import (
    Delivery,
    EventBus,
    Job,
    Recovered,
    Result,
    Source,
    StatusSink,
    dead_letter,
    opened_job,
)
from maniflex.background.leases import LeaseKeeper
from maniflex.background.loop import Loop, WatchedPart
from maniflex.background.metrics import Metrics
from maniflex.background.runs.handlers import RunHandler, RunHandlers
from maniflex.background.runs.outcomes import (
    RESULT,
    UNDECRYPTABLE,
    Failed,
    bad_payload,
    failure,
    later,
    log_failure,
    pause_after,
)
from maniflex.background.runs.run import call
from maniflex.db.current import detached_context
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.sealed_json import WorkSealing
from maniflex.errors import DeclarationError, DecryptionError, EncryptionNotConfigured, RequestError

CONCURRENCY = 8
SHUTDOWN = timedelta(seconds=20)
HAND_BACK = 2.0  # seconds for what is told to stop, when the time is up
_REPORT_RETRY = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=5))


class Worker:
    """Runs the jobs of a source until it is shut down."""

    def __init__(
        self,
        source: Source,
        handlers: Mapping[str, Callable[[Job], Any]] | RunHandlers,
        *,
        concurrency: int = CONCURRENCY,
        status: StatusSink | None = None,
        dlq_type: str | None = None,
        event_bus: EventBus | None = None,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
        poll_interval: timedelta = timedelta(seconds=1),
        metrics: Metrics | None = None,
        sealing: WorkSealing | None = None,
    ) -> None:
        if not hasattr(source, "claim"):
            raise DeclarationError(
                "this queue has no workers of its own; `server.work.worker()` works on runs"
            )
        self.concurrency = concurrency
        self.metrics = metrics or Metrics()
        self._sealing = sealing or WorkSealing(Keyring())
        self._source = source
        self._handlers = _handlers(handlers)
        self._types = [handler.type for handler in self._handlers]
        self._status = status
        self._dlq_type = dlq_type
        self._bus = event_bus
        self._clock = clock or SystemClock()
        self._due_clock: Clock = getattr(source, "clock", self._clock)  # by which the source compares times
        self._logger = guard_logger(logger or logging.getLogger("maniflex.jobs"))
        self._lease_keeper: LeaseKeeper[Any] = LeaseKeeper(
            source, lambda line, held: line.extend(held), source.lease / 3, self._logger
        )
        self._claimer = _JobClaimer(self, poll_interval)
        self._rescuer = _JobRescuer(self, min(poll_interval * 5, source.lease / 2))
        self._running: set[asyncio.Task[None]] = set()
        self._concluding: set[asyncio.Task[None]] = set()  # of those: only the outcome is left to report
        self._stack = AsyncExitStack()
        self._stopped = asyncio.Event()
        self._started = False

    # -- living

    async def run(self) -> None:
        """Work until `shutdown`; when this is cancelled no job is begun any more."""
        await self.start()
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            await self._stop_claiming()
            raise

    async def start(self) -> None:
        """Begin to claim, in tasks of its own."""
        self._started = True
        self._stopped.clear()
        await self._lease_keeper.start()
        await self._stack.enter_async_context(self._source.listen(self._claimer.wake))
        await self._rescuer.start()
        await self._claimer.start()
        types = ", ".join(sorted(self._types))
        self._logger.info("job worker started: %s, %d at a time", types, self.concurrency)

    async def shutdown(self, timeout: timedelta | float = SHUTDOWN) -> None:
        """Claim nothing more, let what runs finish, then hand back the rest; never takes much longer."""
        deadline = asyncio.get_running_loop().time() + as_duration(timeout, "timeout").total_seconds()
        self._started = False
        await self._in_time(self._stop_claiming(), deadline)
        if self._running:
            await asyncio.wait(self._running, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        await self._cancel(set(self._running) - self._concluding)
        await self._cancel(set(self._running))
        await self._in_time(self._stack.aclose(), deadline)
        await self._in_time(self._lease_keeper.stop(), deadline)
        self._stopped.set()

    async def stop(self) -> None:
        """`shutdown` with its usual patience; what a server calls."""
        await self.shutdown()

    async def _stop_claiming(self) -> None:
        await self._claimer.stop()
        await self._rescuer.stop()

    async def _in_time(self, work: Awaitable[None], deadline: float) -> None:
        seconds_left = max(deadline - asyncio.get_running_loop().time(), 0)
        try:
            await asyncio.wait_for(work, seconds_left + HAND_BACK)
        except TimeoutError:
            self._logger.warning("the job queue did not answer before the shutdown deadline")

    async def _cancel(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=HAND_BACK)

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        """The loops that run as long as the worker is started."""
        return (self._claimer, self._rescuer, self._lease_keeper)

    @property
    def busy(self) -> int:
        return len(self._running)

    # -- working

    async def run_once(self) -> int:
        """Run the jobs that are due now, as many as there is room for, to their end; how many there were."""
        await self.recover()
        tasks = await self.begin()
        if tasks:
            await asyncio.wait(tasks)
        return len(tasks)

    async def drain(self) -> int:
        """`run_once` until no job is due; how many jobs there were."""
        total, beating = 0, self._started
        if not beating:
            await self._lease_keeper.start()
        try:
            while count := await self.run_once():
                total += count
        finally:
            if not beating:  # what is left, there is only when we are told to stop
                await self._cancel(set(self._running))
                await self._lease_keeper.stop()
        return total

    async def begin(self) -> list[asyncio.Task[None]]:
        """Claim as many jobs as there is room for and start them."""
        room = self.concurrency - len(self._running)
        if room <= 0:
            return []
        self._types.append(self._types.pop(0))  # so that no type has to wait for all jobs of another
        deliveries = await self._source.claim(self._types, room)
        for delivery in deliveries:
            self._count("claimed", delivery.job)
        return [self._start(delivery) for delivery in deliveries]

    def _start(self, delivery: Delivery) -> asyncio.Task[None]:
        handler = self._handlers.get(delivery.job.type)
        assert handler is not None, "only types that have a handler are claimed"
        task = asyncio.create_task(self._attempt(delivery, handler), context=detached_context())
        self._running.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("a job was left to its lease", exc_info=task.exception())
        if self._started:
            self._claimer.wake()

    async def recover(self) -> int:
        """Take back the jobs of dead workers; how many there were."""
        recoveries = await self._source.recover(self._types, self._dlq_type)
        for recovery in recoveries:
            self._logger.warning(
                "job %s (%s) was abandoned by its worker%s",
                recovery.job.id,
                recovery.job.type,
                "; it is dead" * recovery.dead,
            )
            self._count("reclaimed", recovery.job)
            await self._tell_recovered(recovery)
        return len(recoveries)

    async def _tell_recovered(self, recovery: Recovered) -> None:
        await self._note(
            recovery.job, "dead" if recovery.dead else "failed", error=ABANDONED, error_code=ABANDONED
        )
        if recovery.letter is not None:
            await self._note(recovery.letter, "enqueued")
        if recovery.dead:
            await self._publish(recovery.job, "failed", {"error": ABANDONED, "code": ABANDONED})

    # -- one attempt

    async def _attempt(self, delivery: Delivery, handler: RunHandler) -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None

        def cancel_attempt() -> None:
            loop.call_soon_threadsafe(task.cancel)  # what it goes on to do, another worker does already

        self._lease_keeper.hold(delivery.held, cancel_attempt)
        try:
            await self._note(delivery.job, "running")
            outcome = await self._perform(delivery.job, handler)
            self._concluding.add(task)
            await self._conclude(delivery, outcome, handler)
        except asyncio.CancelledError:
            if task not in self._concluding and handler.is_async:
                await self._hand_back(delivery)
        finally:
            self._lease_keeper.drop(delivery.held)
            self._concluding.discard(task)

    async def _perform(self, job: Job, handler: RunHandler) -> Result | Failed:
        """What came of the job; of an encrypted one without what its result or error says."""
        is_encrypted = job.encrypted is not None or handler.encrypted is not None
        try:
            if handler.encrypted is not None and job.encrypted is None and not self._sealing.keys.takes_plain:
                raise DecryptionError("it is plain, which encryption_legacy refuses")
            open_job = await opened_job(self._sealing, job, is_letter=job.type == self._dlq_type)
        except (DecryptionError, EncryptionNotConfigured) as error:
            return Failed(UNDECRYPTABLE, f"the payload does not open: {error.problem}", final=True)
        except RequestError as error:
            return failure(error)
        outcome = await _perform(open_job, handler)
        if not is_encrypted:
            return outcome
        if isinstance(outcome, Result):
            return Result(url=outcome.url)
        return replace(outcome, message=outcome.code, trace=None)

    async def _hand_back(self, delivery: Delivery) -> None:
        """Not for a plain function, which goes on in its thread: its lease ends as after a crash."""
        async with asyncio.timeout(HAND_BACK):
            if not await self._source.release(delivery):
                self._logger.warning("job %s (%s) is not ours by now", delivery.job.id, delivery.job.type)

    async def _conclude(self, delivery: Delivery, outcome: Result | Failed, handler: RunHandler) -> None:
        job, source = delivery.job, self._source
        if isinstance(outcome, Result):
            await self._note(job, "succeeded", result=outcome)
            if await self._report_outcome(delivery, lambda: source.ack(delivery, outcome)):
                self._count("succeeded", job)
                await self._publish(job, "completed", {"result": outcome.stored()})
            return
        over = outcome.final or job.attempt >= job.max_retry
        self._tell(job, outcome, over)
        if not over:
            delay = outcome.delay if outcome.delay is not None else pause_after(handler.backoff, job.attempt)
            at = later(self._due_clock.now(), delay)
            await self._note(job, "failed", error=outcome.message, error_code=outcome.code)
            if await self._report_outcome(delivery, lambda: source.retry(delivery, at, outcome.message)):
                self._count("retried", job)
            return
        letter = dead_letter(job, outcome.message, self._dlq_type)
        await self._note(job, "dead", error=outcome.message, error_code=outcome.code)
        if letter is not None:
            await self._note(letter, "enqueued")
        if await self._report_outcome(delivery, lambda: source.bury(delivery, outcome.message, letter)):
            self._count("dead", job)
            await self._publish(job, "failed", {"error": outcome.message, "code": outcome.code})

    async def _report_outcome(self, delivery: Delivery, report: Callable[[], Awaitable[bool]]) -> bool:
        """Report to the source until it answers; whether the job was still ours."""
        failures, fence = 0, Fence()
        while True:
            try:
                is_ours = await report()
            except BaseException as error:
                fence.absorb(error)
                failures += 1
                if failures == 1:
                    self._logger.warning("what came of a job is not written yet: %s", error, exc_info=error)
                await asyncio.sleep(_REPORT_RETRY(failures).total_seconds())
            else:
                if not is_ours:
                    self._count("lease_losses", delivery.job)
                    self._logger.warning("job %s (%s) is not ours by now", delivery.job.id, delivery.job.type)
                return is_ours

    # -- telling

    def _tell(self, job: Job, outcome: Failed, over: bool) -> None:
        tries = None if over else job.max_retry
        log_failure(self._logger, f"job {job.id} ({job.type})", outcome, job.attempt, tries)

    def _count(self, what: str, job: Job) -> None:
        self.metrics.add(f"jobs_{what}_total", type=job.type)

    async def _note(self, job: Job, status: str, **about: Any) -> None:
        """Before the source is told: a crash in between repeats the job, not leaves its status behind."""
        if self._status is None:
            return
        fence = Fence()
        try:
            await self._status.put(job, status, **about)
        except BaseException as error:
            fence.absorb(error)
            self._logger.warning("the status of job %s was not written: %s", job.id, error, exc_info=error)

    async def _publish(self, job: Job, what: str, about: dict[str, Any]) -> None:
        if self._bus is not None:
            await publish(self._bus, job, what, about, self._logger)


async def publish(bus: EventBus, job: Job, what: str, about: dict[str, Any], logger: logging.Logger) -> None:
    """Tell the bus `job.{type}.completed` or `.failed`; an error of the bus is only logged."""
    who = {"actor_id": job.actor_id, "tenant_id": job.tenant_id, "trace_id": job.trace_id}
    payload = {"id": job.id, "type": job.type, "attempt": job.attempt, **who, **about}
    fence = Fence()
    try:
        answer = bus.publish(f"job.{job.type}.{what}", payload)
        if isawaitable(answer):
            await answer
    except BaseException as error:
        fence.absorb(error)
        logger.warning("the bus did not take job.%s.%s: %s", job.type, what, error, exc_info=error)


def _handlers(declaration: Mapping[str, Callable[[Job], Any]] | RunHandlers) -> RunHandlers:
    if isinstance(declaration, RunHandlers):
        handlers = declaration
    else:
        handlers = RunHandlers()
        for type, fn in declaration.items():
            handlers.add(type, fn)
    problems = handlers.problems()
    if not len(handlers):
        problems.append("a worker needs a handler")
    if problems:
        raise DeclarationError(*problems)
    return handlers


async def _perform(job: Job, handler: RunHandler) -> Result | Failed:
    """Call the handler and return its outcome; only a cancelled worker makes this raise."""
    fence = Fence()
    try:
        job = replace(job, payload=_payload(job, handler))
    except BaseException as error:  # a validator may raise anything
        return bad_payload(fence.absorb(error))
    try:
        result = Result.of(await _call_handler(job, handler))
        encode(result.stored(), RESULT)
        return result
    except BaseException as error:
        fence.absorb(error)
        return failure(error)


def _payload(job: Job, handler: RunHandler) -> Any:
    return job.payload if handler.payload is None else handler.payload.read_value(job.payload)


async def _call_handler(job: Job, handler: RunHandler) -> Any:
    if handler.timeout is None:
        return await call(handler.fn, job)
    if not handler.is_async:
        return await _call_and_time(job, handler, handler.timeout)
    async with asyncio.timeout(handler.timeout.total_seconds()):
        return await call(handler.fn, job)


async def _call_and_time(job: Job, handler: RunHandler, timeout: timedelta) -> Any:
    """Call a plain function, which cannot be stopped; the timeout is checked when it returns."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    result = await call(handler.fn, job)
    if loop.time() - started_at > timeout.total_seconds():
        raise TimeoutError
    return result


class _JobClaimer(Loop):
    """Claims whenever there is room."""

    name = "maniflex-jobs"

    def __init__(self, worker: Worker, interval: timedelta) -> None:
        super().__init__(worker._clock, interval, worker._logger)
        self._worker = worker

    async def tick(self) -> bool:
        return bool(await self._worker.begin()) and self._worker.busy < self._worker.concurrency

    def on_failure(self, error: BaseException) -> None:
        self._worker.metrics.add("jobs_poll_errors_total")


class _JobRescuer(Loop):
    """Takes back jobs whose workers died, in any process."""

    name = "maniflex-jobs-rescuer"

    def __init__(self, worker: Worker, interval: timedelta) -> None:
        super().__init__(worker._clock, interval, worker._logger)
        self._worker = worker

    async def tick(self) -> bool:
        if await self._worker.recover():
            self._worker._claimer.wake()
        return False
