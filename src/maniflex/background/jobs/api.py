"""`server.jobs`: the job queue over durable runs, or over another queue.

>>> @server.jobs.handler("send_receipt")
... async def send_receipt(job: Job) -> None: ...
>>> id = await server.jobs.enqueue("send_receipt", {"order_id": 7})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from maniflex._callables import explain_arguments, is_async
from maniflex._caller import caller
from maniflex._json import decode
from maniflex._service import Service
from maniflex.background.declaring import chosen_key_id, role_problems, switch_problems
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.jobs.port import (
    Cancellable,
    EventBus,
    Job,
    Queue,
    Result,
    sealed_job,
    validate_job,
)
from maniflex.background.jobs.status import JobStatus, StatusModel, StatusPruner, TableStatus
from maniflex.background.jobs.worker import CONCURRENCY, Worker, publish
from maniflex.background.parameters import PACKAGE
from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import RunHandlers, check_type, payload_text
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.rows import RunDraft
from maniflex.background.runs.run import Run
from maniflex.db.port import Tx
from maniflex.errors import Conflict, DeclarationError
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql, schema_statements

F = TypeVar("F", bound=Callable[..., Any])


class Jobs(DeclaredPart):
    """The jobs of one server."""

    too_late = "the server is sealed; jobs and their status are declared before it starts"
    too_early = "jobs begin when the server is sealed"

    def __init__(
        self, work: Work, schedules: ScheduleDeclarations | None = None, feed: object = None
    ) -> None:
        super().__init__()
        self._feed = feed  # `server.events`
        self.queue: Queue = SqlQueue(work)
        self.status: tuple[str, bool] | None = None  # admin role and whether strangers see the rows
        self.types: set[str] = set()  # which runs are jobs: those with a handler here, or named so
        self._work = work
        self._schedules = schedules
        self._handlers = RunHandlers()  # of a queue other than ours; ours are handlers of runs
        self._bus: EventBus | None = None
        self.feed_bus: EventBus | None = None  # where that is `server.events` and jobs are in another queue
        self._dlq_type: str | None = None
        self._concurrency: int | None = None
        self._declared = False
        self._problems: list[str] = []
        self._sink: TableStatus | None = None

    # -- declaring

    def use(
        self,
        queue: Queue | None = None,
        *,
        event_bus: EventBus | None = None,
        dlq_type: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Say which queue has the jobs and who hears of them, before the first handler.

        `concurrency` is how many jobs a process has at once; without it jobs that are runs share the worker
        of runs (`work_concurrency`), and another queue has 8.
        """
        if self._declared or self._environment is not None:
            raise DeclarationError("jobs.use(...) comes before the handlers of jobs")
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise DeclarationError("the concurrency of jobs is a whole number above zero")
        self.queue = self.queue if queue is None else queue
        self._bus = event_bus
        self._dlq_type = dlq_type
        self.types.update(() if dlq_type is None else (dlq_type,))
        self._concurrency = concurrency

    @explain_arguments("server.jobs.handler")
    def handler(
        self,
        type: str,
        *,
        payload: Any = None,
        timeout: timedelta | float | None = None,
        lease: timedelta | float | None = None,
        backoff: Callable[[int], timedelta] | None = None,
        encrypted: bool | str | None = None,
    ) -> Callable[[F], F]:
        """Give jobs of exactly this type to the decorated function, async or plain.

        With `encrypted`, True or a key id, what they hold is stored encrypted, in any queue.
        """
        options = {"payload": payload, "timeout": timeout, "backoff": backoff, "encrypted": encrypted}

        def decorate(fn: F) -> F:
            self.require_open()
            self._declared = True
            self.types.add(type)
            if self.uses_runs:
                letter = self._dlq_type if self._dlq_type != type else None
                # Internal: a job is enqueued by the application, not submitted by its clients.
                take = self._work.handler(type, lease=lease, dead_letter=letter, internal=True, **options)
                take(_of_job(fn, is_letter=type == self._dlq_type))
                if self._concurrency is not None:
                    self._work.handlers.separate[type] = self._concurrency
            else:
                self._handlers.add(type, fn, **options)
            return fn

        return decorate

    def cron(self, type: str, schedule: str, payload: Any = None, **options: Any) -> None:
        """Enqueue a job of this type at the times of a cron expression; see `server.schedules.add`."""
        if self._schedules is None:
            raise DeclarationError("there are no schedules to put a job on")
        if not self.uses_runs and self._work.handlers.get(RELAY) is None:
            self._work.handler(RELAY, internal=True)(self._relay)
        add_entry(self._schedules, type, schedule, payload, relayed=not self.uses_runs, **options)

    async def _relay(self, run: Run) -> None:
        type, payload = run.payload["type"], run.payload["payload"]
        job = Job(type, payload, run.actor_id, run.tenant_id, run.trace_id, id=run.id)
        try:
            await self.enqueue(job)
        except Conflict:  # an attempt before this one got so far
            run.logger.info("job %s is enqueued already", run.id)

    def mount_status(
        self, *, admin_role: str = "admin", public: bool = False, types: Sequence[str] = ()
    ) -> None:
        """Serve `GET /job_statuses`: everyone their own jobs, the role all; `public` asks for no identity.

        Jobs that are runs are shown when their type has a handler here or is among `types`.
        """
        self.require_open()
        option_problems = [*role_problems(admin_role), *switch_problems(public=public)]
        self._problems += [f"jobs.mount_status: {problem}" for problem in option_problems]
        self.status = (admin_role, public)
        self.types.update((types,) if isinstance(types, str) else types)
        if self.uses_runs and not self._work.is_used:
            self._work.enable()

    # -- being wired

    @property
    def handlers(self) -> RunHandlers:
        """The handlers of jobs that are in a queue other than ours."""
        return self._handlers

    @property
    def is_used(self) -> bool:
        return True  # jobs are enqueued without a declaration where other processes handle them

    @property
    def uses_runs(self) -> bool:
        """Whether jobs are runs of `server.work`."""
        return isinstance(self.queue, SqlQueue)

    @property
    def has_external_handlers(self) -> bool:
        """Whether there are handlers of jobs that are in a queue other than ours."""
        return len(self._handlers) > 0

    @property
    def tells_feed(self) -> bool:
        """Whether the ends of jobs are events of `server.events`."""
        return self._bus is not None and self._bus is self._feed

    @property
    def _keeps_status_rows(self) -> bool:
        return not self.uses_runs and self.status is not None

    def models(self) -> Sequence[type[Model]]:
        models: list[type[Model]] = [JobStatus] if self._keeps_status_rows else []
        return [*models, StatusModel] if self.status is not None else models

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "jobs", dialect) if self._keeps_status_rows else ()

    def problems(self) -> list[str]:
        return [*self._handlers.problems(), *self._problems]

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self._sink = TableStatus(environment) if self._keeps_status_rows else None
        if self.uses_runs and self._bus is not None and not self.tells_feed:
            environment.runs.observers.append(self._on_run_settled)

    def services(self) -> Sequence[Service]:
        """The worker of a queue other than ours; runs have their own."""
        services: list[Service] = []
        if self._sink is not None and self._environment is not None:
            services.append(StatusPruner(self._sink, self._environment))
        if len(self._handlers):
            services.append(self.worker())
        return services

    def worker(self) -> Worker:
        """A worker of the queue in use; of ours, `server.work.worker()` is one."""
        environment = self.require_sealed()
        source: Any = self.queue
        return Worker(
            source,
            self._handlers,
            concurrency=self._concurrency or CONCURRENCY,
            status=self._sink,
            dlq_type=self._dlq_type,
            event_bus=self.feed_bus if self.tells_feed else self._bus,
            logger=environment.logger,
            clock=environment.clock,
            metrics=environment.metrics,
            sealing=environment.runs.sealing,
        )

    async def close(self) -> None:
        """Close the connections of the queue."""
        close = getattr(self.queue, "close", None)
        if close is not None:
            await close()

    # -- using

    async def enqueue(
        self, job: Job | str, payload: Any = None, *, tx: Tx | None = None, **fields: Any
    ) -> str:
        """Enqueue a job, or one of this type and payload; in a transaction it is there at its commit.

        Inside a request, actor, tenant and trace are the caller's unless one of them is given. Only
        jobs that are runs join a transaction; another queue has the job at once.
        """
        environment = self.require_sealed()
        one = _of_caller(Job(job, payload, **fields) if isinstance(job, str) else replace(job, **fields))
        if isinstance(self.queue, SqlQueue):
            return await self.queue.enqueue(one, tx=tx)
        own_id, one = one.id, validate_job(self._with_json_payload(one))
        one = await sealed_job(environment.runs.sealing, one, one.encrypted)
        if self._sink is None:
            return await self.queue.enqueue(one)
        if own_id:
            await self._sink.make_room(own_id)
        await self._sink.put(one, "enqueued")
        try:
            return await self.queue.enqueue(one)
        except Conflict:
            raise  # the row is of the job that has this id
        except BaseException:
            await self._sink.forget(one.id)
            raise

    def _with_json_payload(self, job: Job) -> Job:
        """The job with its payload as the plain JSON its queue carries."""
        handler = self._handlers.get(check_type(job.type))
        key_id = chosen_key_id(job.encrypted, None if handler is None else handler.encrypted)
        text = payload_text(handler, job.payload, to_seal=key_id is not None)
        return replace(job, payload=decode(text), encrypted=key_id)

    async def enqueue_at(
        self, job: Job | str, when: datetime, payload: Any = None, *, tx: Tx | None = None, **fields: Any
    ) -> str:
        """`enqueue`, to be started no earlier than `when`."""
        return await self.enqueue(job, payload, tx=tx, **{**fields, "not_before": when})

    async def cancel(self, id: str) -> None:
        """Cancel a job that waits; `Conflict` when it runs, `NotFound` when there is none."""
        self.require_sealed()
        if not isinstance(self.queue, Cancellable):
            raise DeclarationError("this queue cannot take a job back")
        await self.queue.cancel(id)
        if self._sink is not None:
            await self._sink.cancelled(id)

    # -- telling

    def _on_run_settled(self, id: str) -> None:
        """Tell the bus of a settled run, if it is over."""
        self.require_sealed().runs.spawn(self._tell(id))

    async def _tell(self, id: str) -> None:
        environment = self.require_sealed()
        run = await environment.runs.get(id)
        if self._bus is None or run.type not in self.types:
            return
        if run.status not in (Status.SUCCEEDED, Status.FAILED):
            return
        is_success = run.status == Status.SUCCEEDED
        code = run.error.get("code") if run.error is not None else None
        about = {"result": run.result} if is_success else {"error": run.last_error, "code": code}
        what = "completed" if is_success else "failed"
        await publish(self._bus, of_run(run), what, about, environment.logger)


def _of_caller(job: Job) -> Job:
    if (job.actor_id, job.tenant_id, job.trace_id) != (None, None, None):
        return job
    actor_id, tenant_id, trace_id = caller()[:3]
    return replace(job, actor_id=actor_id, tenant_id=tenant_id, trace_id=trace_id)


def _of_job(fn: Callable[..., Any], *, is_letter: bool) -> Callable[[Run], Any]:
    """A handler of jobs as one of runs."""

    async def on_loop(run: Run) -> dict[str, Any] | None:
        return Result.of(await fn(_job(run, is_letter))).stored()

    def on_thread(run: Run) -> dict[str, Any] | None:
        return Result.of(fn(_job(run, is_letter))).stored()

    return on_loop if is_async(fn) else on_thread


def _job(run: Run, is_letter: bool) -> Job:
    payload = run.payload
    if is_letter and isinstance(payload, dict) and "run_id" in payload:
        payload = {"job_id" if name == "run_id" else name: value for name, value in payload.items()}
    return Job(
        run.type,
        payload,
        actor_id=run.actor_id,
        tenant_id=run.tenant_id,
        trace_id=run.trace_id,
        max_retry=run.max_attempts,
        group_key=run.group_key,
        id=run.id,
        attempt=run.attempt,
    )


# Jobs at fixed times: entries for `server.schedules`, so that no replica has to be up at the time.


RELAY = "maniflex.jobs.relay"


class ScheduleDeclarations(Protocol):
    """The part of `server.schedules` that jobs use."""

    def add(
        self,
        name: str,
        *,
        cron: str,
        timezone: str = "UTC",
        run: str | None = None,
        payload: Any = None,
        policy: str = "once",
    ) -> Any: ...


def add_entry(
    schedules: ScheduleDeclarations, type: str, cron: str, payload: Any, *, relayed: bool, **options: Any
) -> None:
    """Schedule a job; one for a queue other than these runs is handed on by a run."""
    name = options.pop("name", None) or f"job:{type}"
    if relayed:
        schedules.add(name, cron=cron, run=RELAY, payload={"type": type, "payload": payload}, **options)
    else:
        schedules.add(name, cron=cron, run=type, payload=payload, **options)


__all__ = ["RELAY", "ScheduleDeclarations", "add_entry"]


# Jobs as durable runs, in the database of the application: the adapter to choose first.
#
# A job is a run of its type in `workflow_run`, and a handler of jobs is a handler of runs: the workers of
# `server.work` work on them. Enqueueing joins the open transaction: rolled back, there is no job;
# committed, it survives everything the database survives.


class SqlQueue:
    """A queue made of the runs of `server.work`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def enqueue(self, job: Job, *, tx: Tx | None = None) -> str:
        """Store the job; inside a transaction it is there when that commits."""
        runs = self._work.require_sealed().runs
        payload = job.payload
        job, now = validate_job(replace(job, payload=None)), runs.clock.now()
        handler = runs.handlers.get(job.type)
        key_id = chosen_key_id(job.encrypted, None if handler is None else handler.encrypted)
        text = payload_text(handler, payload, to_seal=key_id is not None)
        [row] = await runs.seal_rows([(job.id, text, None)], key_id)
        when = job.not_before or now
        draft = RunDraft(
            job.type,
            when,
            job.max_retry,
            group_key=job.group_key,
            actor_id=job.actor_id,
            tenant_id=job.tenant_id,
            trace_id=job.trace_id,
        )
        await runs.store.submit(draft, [row], now, tx)
        if when <= now:
            runs.wake_after(tx)
        return job.id

    async def enqueue_at(self, job: Job, when: datetime, *, tx: Tx | None = None) -> str:
        """Store the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when), tx=tx)

    async def cancel(self, id: str) -> None:
        """Cancel a job that waits."""
        await self._work.cancel(id, running=False)


def of_run(run: WorkflowRun) -> Job:
    """The job a stored run is."""
    return Job(
        run.type,
        run.payload,
        actor_id=run.actor_id,
        tenant_id=run.tenant_id,
        trace_id=run.trace_id,
        max_retry=run.max_attempts,
        not_before=run.run_at,
        group_key=run.group_key,
        id=run.id,
        attempt=run.attempt,
    )
