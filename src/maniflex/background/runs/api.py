"""`server.work`: handlers, submitting runs, asking after them, and workers.

>>> run = await server.work.submit("email.receipt.v1", {"order_id": 7}, idempotency_key="receipt:7")
>>> (await server.work.wait(run.id)).status == "succeeded"
True
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack

from maniflex._callables import explain_arguments
from maniflex._clock import Clock
from maniflex._service import Service
from maniflex.background.declaring import as_duration, switch_problems
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.metrics import Values
from maniflex.background.parameters import PACKAGE
from maniflex.background.partitions.keeper import keeper_of
from maniflex.background.partitions.layout import OF_RUNS, RUNS
from maniflex.background.runs import rows as checks
from maniflex.background.runs.claimer import Pruner
from maniflex.background.runs.engine import RunEngine, use_transaction
from maniflex.background.runs.handlers import MAX_ATTEMPTS, RunAccess, RunHandlers, public_types
from maniflex.background.runs.model import Status, WorkflowEvent, WorkflowRun, WorkflowSignal, WorkflowStep
from maniflex.background.runs.worker import RunWorker, make_workers
from maniflex.db.current import reading
from maniflex.db.port import Tx
from maniflex.db.records import Records
from maniflex.errors import Conflict, NotFound
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql, schema_statements

F = TypeVar("F", bound=Callable[..., Any])
LIST_LIMIT = 100
_WAIT_AT_MOST = timedelta(seconds=1)


class Work(DeclaredPart):
    """Durable runs of one server."""

    too_late = "the server is sealed; durable work is declared before it starts"
    too_early = "the server has not started; outside it, work inside `async with server.lifespan():`"
    not_used = "durable work is not in use: register a handler or call server.work.enable() before the start"

    environment: Environment  # from here on: when the server is sealed
    engine: RunEngine
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.handlers = RunHandlers()
        self._internal_types: set[str] = set()
        self.access = RunAccess()
        self.publishes_ends = False
        self._option_problems: builtins.list[str] = []

    # -- declaring

    def enable(
        self,
        *,
        admin_role: str = "admin",
        routes: bool = True,
        public_submit: str | Sequence[str] | Literal[False] = (),
        events: bool = False,
    ) -> None:
        """Have durable work even where this application handles no run itself, and say who sees it over REST.

        Callers submit the types whose handler is `public`, and with `public_submit` also these types and
        prefixes such as `email.`, which another process may handle; with `False` they submit nothing.
        `admin_role` sees the runs of its tenant, and without a tenant those of all. With `events`, the end of
        each run is an event, `run.{type}.succeeded`, `failed` or `cancelled`, which its owner may hear of.
        """
        self.require_open()
        self._option_problems = [f"work.enable: {one}" for one in switch_problems(events=events)]
        self.publishes_ends = events is True
        self.access = RunAccess(admin_role, routes, public_types(public_submit))
        self._enabled = True

    @explain_arguments("server.work.handler")
    def handler(
        self,
        type: str,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        lease: timedelta | float | None = None,
        timeout: timedelta | float | None = None,
        backoff: Callable[[int], timedelta] | None = None,
        payload: Any = None,
        internal: bool = False,
        public: bool = False,
        max_priority: int = 0,
        dead_letter: str | None = None,
        scoped: bool = False,
        encrypted: bool | str | None = None,
        undo_attempts: int | None = None,
        undo_backoff: Callable[[int], timedelta] | timedelta | float | None = None,
    ) -> Callable[[F], F]:
        """Give runs of exactly this type to the decorated function, async or plain.

        Over REST callers read their runs; `public` types they also submit, cancel, retry and delete, and
        `internal` ones they do not see. A client asks for no more attempts and time than said here, and for
        a priority from `-max_priority` to `max_priority`. `lease` and `timeout` are timedeltas or seconds.
        With `scoped` the scope rules bind `server.db` in the function by the caller of the run; a run
        without what a rule needs fails at once. With `encrypted`, True or a key id, payload, result, errors,
        step results and signals of these runs are stored encrypted. Where steps are to be taken back, that is
        tried `undo_attempts` times, with the pauses of `undo_backoff` between.
        """

        def decorate(fn: F) -> F:
            self.require_open()
            self.handlers.add(
                type,
                fn,
                max_attempts=max_attempts,
                lease=lease,
                timeout=timeout,
                backoff=backoff,
                payload=payload,
                internal=internal,
                public=public,
                max_priority=max_priority,
                dead_letter=dead_letter,
                scoped=scoped,
                encrypted=encrypted,
                undo_attempts=undo_attempts,
                undo_backoff=undo_backoff,
            )
            return fn

        return decorate

    def add_internal(self, type: str, fn: Callable[..., Any], *, max_attempts: int = 25) -> None:
        """Give runs of a type of the framework's own to `fn`; they alone bring no routes to clients."""
        self._internal_types.add(type)
        self.handler(type, internal=True, max_attempts=max_attempts)(fn)

    @property
    def has_routes(self) -> bool:
        """Whether clients reach runs: the application uses them itself and has not closed their routes."""
        return self.access.routes and (self._enabled or len(self.handlers) > len(self._internal_types))

    @property
    def is_used(self) -> bool:
        return self._enabled or len(self.handlers) > 0

    def models(self) -> Sequence[type[Model]]:
        return (WorkflowRun, WorkflowEvent, WorkflowStep, WorkflowSignal) if self.is_used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "runs", dialect) if self.is_used else ()

    def problems(self) -> builtins.list[str]:
        return [*self._option_problems, *self.handlers.problems(), *self.access.problems(self.handlers)]

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self.environment = environment
        self.engine = environment.runs
        self.clock = environment.clock
        if self.is_used:
            environment.metrics.add("runs_poll_errors_total", 0)
            environment.metrics.gauges_of(("runs_due", "runs_oldest_due_seconds"), self._depth)

    def services(self, prefixes: Sequence[str] = (), concurrency: int | None = None) -> Sequence[Service]:
        """The workers and the pruner, when there is anything to handle."""
        if not len(self.handlers):
            return ()
        environment = self.require_sealed()
        engine = environment.runs
        type_prefixes = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
        keepers = keeper_of(environment, (RUNS, *OF_RUNS), engine.store)
        return (*make_workers(engine, type_prefixes, concurrency), *keepers, Pruner(engine))

    def worker(
        self,
        prefixes: Sequence[str] = (),
        concurrency: int | None = None,
        *,
        lease: timedelta | None = None,
        poll_interval: timedelta | None = None,
    ) -> RunWorker:
        """A worker for runs whose type starts with one of the prefixes."""
        return RunWorker(
            self.require_sealed().runs,
            prefixes=(prefixes,) if isinstance(prefixes, str) else tuple(prefixes),
            concurrency=concurrency,
            lease=lease,
            poll_interval=poll_interval,
        )

    # -- submitting

    async def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        tx: Tx | None = None,
        **options: Unpack[checks.Options],
    ) -> WorkflowRun:
        """Store a run; inside a transaction it is there when that commits. One of the same key is returned.

        Options: `priority` (higher first), `run_at` or `delay`, `max_attempts`, `group_key`,
        `timeout`, `about` (the record the run is about), `subjects` (the persons it is about), `encrypted`
        (True or a key id, where its handler is in another process), `actor_id`, `tenant_id`, `trace_id`; the
        last three are the caller's inside a request.
        """
        runs = await self.require_sealed().runs.submit_all(type, [payload], [idempotency_key], tx, **options)
        return runs[0]

    async def offer(
        self,
        type: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        tx: Tx | None = None,
        **options: Unpack[checks.Options],
    ) -> tuple[WorkflowRun, bool]:
        """As `submit`, and whether the run is new: not when there was one of the same key."""
        runs = await self.require_sealed().runs.submit_all(type, [payload], [idempotency_key], tx, **options)
        return runs[0], runs.is_new(0)

    async def submit_many(
        self,
        type: str,
        payloads: Sequence[Any],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        tx: Tx | None = None,
        **options: Unpack[checks.Options],
    ) -> Sequence[WorkflowRun]:
        """Store a run for each payload, all or none, in few statements."""
        return await self.require_sealed().runs.submit_all(type, payloads, idempotency_keys, tx, **options)

    # -- asking

    async def get(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """The run of that id; `NotFound` when there is none."""
        return await self.require_sealed().runs.get(id, tx=tx)

    async def list(
        self,
        *,
        type: str | None = None,
        prefix: str | None = None,
        status: str | None = None,
        actor_id: str | None = None,
        tenant_id: str | None = None,
        limit: int = LIST_LIMIT,
        page: int = 1,
    ) -> builtins.list[WorkflowRun]:
        """Runs, the newest first."""
        checks.check_int("limit", limit, 1)
        equal = {"type": type, "status": status, "actor_id": actor_id, "tenant_id": tenant_id}
        filters: builtins.list[Any] = [(name, "eq", v) for name, v in equal.items() if v is not None]
        if prefix is not None:
            filters.append(("type", "starts_with", prefix))
        return (
            await self.require_sealed().runs.records().list(filters, sorts="id:desc", limit=limit, page=page)
        )

    async def events(self, id: str) -> builtins.list[WorkflowEvent]:
        """What happened to a run, in order."""
        environment = self.require_sealed()
        records = Records[WorkflowEvent](environment.stores[WorkflowEvent], reading(environment.adapter))
        return await records.list([("workflow_id", "eq", id)], sorts=["created_at", "id"])

    async def steps(self, id: str) -> builtins.list[WorkflowStep]:
        """The steps of a run that are done, in order."""
        environment = self.require_sealed()
        records = Records[WorkflowStep](environment.stores[WorkflowStep], reading(environment.adapter))
        return await environment.runs.leave_to_wait(records).list(
            [("workflow_id", "eq", id)], sorts=["created_at", "id"]
        )

    async def wait(self, id: str, timeout: timedelta | float | None = None) -> WorkflowRun:
        """The run once it is finished; `TimeoutError` when that takes longer than `timeout`."""
        deadline = None if timeout is None else self.clock.now() + as_duration(timeout, "timeout")
        pause = timedelta(milliseconds=10)
        events = self.require_sealed().runs.attempts_over
        attempt_over = events.setdefault(id, asyncio.Event())
        try:
            while not (run := await self.get(id)).finished:
                if deadline is not None and self.clock.now() >= deadline:
                    raise TimeoutError(f"run {id} is still {run.status}")
                pause = min(pause * 2, _WAIT_AT_MOST)
                await self._wait_for_event(
                    attempt_over, pause if deadline is None else min(pause, deadline - self.clock.now())
                )
                attempt_over.clear()  # that may have been the end of an attempt only
        finally:
            events.pop(id, None)
        return run

    async def _wait_for_event(self, event: asyncio.Event, pause: timedelta) -> None:
        waiter = asyncio.ensure_future(event.wait())
        sleeper = asyncio.ensure_future(self.clock.sleep(pause))
        try:
            await asyncio.wait((waiter, sleeper), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            sleeper.cancel()

    # -- changing

    async def cancel(self, id: str, *, running: bool = True, tx: Tx | None = None) -> WorkflowRun:
        """Cancel a run that is not finished; `Conflict` when it is, or when it runs and `running` is off."""
        async with self._alone(id, tx) as on:
            if not await self.engine.store.cancel(id, self.clock.now(), running=running, tx=on):
                raise await self._why_not(id, "cancelled", on)
            run = await self.engine.records(on).read(id)
            await self.engine.publish_ends([id], on)
        await self.engine.tell_parents([id], tx)
        return run

    async def retry(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """Try a failed or cancelled run again, with all its attempts; finished steps stay done.

        Calls of other runs that did not succeed are made anew.
        """
        store = self.require_sealed().runs.store
        async with self._alone(id, tx) as on:
            if not await store.retry(id, self.clock.now(), tx=on):
                raise await self._why_not(id, "retried", on)
            for statement in ("restore_attempts", "forget_undone", "forget_calls"):
                await on.execute(store.bind(statement, id=id))
            self.engine.wake_after(on)
            return await self.engine.records(on).read(id)

    async def run_now(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """Have a run that waits for its time be due at once; its attempts stay counted."""
        async with self._alone(id, tx) as on:
            if not await self.engine.store.hurry(id, self.clock.now(), tx=on):
                raise await self._why_not_now(id, on)
            self.engine.wake_after(on)
            return await self.engine.records(on).read(id)

    async def _why_not_now(self, id: str, tx: Tx) -> Exception:
        try:
            run = await self.engine.records(tx).read(id)
        except NotFound:
            return NotFound("run not found")
        if run.status == Status.PENDING and run.waiting_for is not None:
            return Conflict("the run waits for a signal or another run, which makes it due")
        is_due = run.status == Status.PENDING and run.run_at <= self.clock.now()
        return Conflict("the run is due already" if is_due else f"the run is {run.status} and does not wait")

    async def delete(self, id: str, reason: str | None = None, *, tx: Tx | None = None) -> None:
        """Delete a run softly: it is never claimed again, and its idempotency key is free."""
        async with self._alone(id, tx) as on:
            if not await self.engine.store.delete(id, reason, self.clock.now(), tx=on):
                raise NotFound("run not found")
        await self.engine.tell_parents([id], tx)

    @asynccontextmanager
    async def _alone(self, id: str, tx: Tx | None) -> AsyncIterator[Tx]:
        """A transaction that holds the lock of the run's row, so that no other change comes between."""
        store = self.require_sealed().runs.store
        async with use_transaction(store.adapter, tx) as on:
            await on.write(store.bind("lock", id=id))
            yield on

    async def signal(self, id: str, name: str, payload: Any = None, *, tx: Tx | None = None) -> None:
        """Tell a run something; it is kept until the run waits for it."""
        await self.require_sealed().runs.signal(id, name, payload, tx=tx)

    async def _why_not(self, id: str, what: str, tx: Tx | None) -> Exception:
        try:
            run = await self.engine.records(tx).read(id)
        except NotFound:
            return NotFound("run not found")
        if run.status == what:
            return Conflict(f"the run is {what} already")
        still = ", its handler has yet to stop," if run.status == Status.CANCELLED and run.lease_until else ""
        return Conflict(f"the run is {run.status}{still} and cannot be {what}")

    async def _depth(self) -> Sequence[Values]:
        """How many are due by type, and for how long the oldest is, from one look."""
        now = self.clock.now()
        rows = await self.engine.store.depth(now)
        due: Values = [((("type", type),), float(count)) for type, count, _ in rows]
        ages = [(now - oldest).total_seconds() for _, _, oldest in rows]
        return due, [((), max(ages, default=0.0))]
