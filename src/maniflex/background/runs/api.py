"""`server.work`: handlers, submitting runs, asking after them, and workers.

>>> run = await server.work.submit("email.receipt.v1", {"order_id": 7}, idempotency_key="receipt:7")
>>> (await server.work.wait(run.id)).status
'succeeded'
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack

from maniflex._clock import Clock
from maniflex._fence import Fence, describe
from maniflex._ids import new_id
from maniflex._service import Service
from maniflex.background.declaring import as_duration
from maniflex.background.environment import Environment
from maniflex.background.json_text import encode
from maniflex.background.metrics import Values
from maniflex.background.runs import options as checks
from maniflex.background.runs.access import RunAccess, public_types
from maniflex.background.runs.children import ChildWakeups
from maniflex.background.runs.crew import make_crew
from maniflex.background.runs.handlers import MAX_ATTEMPTS, RunHandlers
from maniflex.background.runs.letters import submit_letter
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun, WorkflowSignal, WorkflowStep
from maniflex.background.runs.pruner import Pruner
from maniflex.background.runs.rows import ClaimedRun, Reaped, RunChange
from maniflex.background.runs.run import CHILD, UNDO_ATTEMPTS
from maniflex.background.runs.store import CHANNEL, RunStore, schema
from maniflex.background.runs.submitter import Submitted, Submitter
from maniflex.background.runs.worker import RunWorker
from maniflex.db.current import current_tx, detached_context, transaction
from maniflex.db.port import Adapter, Tx
from maniflex.db.primary import reading
from maniflex.db.records import Records
from maniflex.errors import Conflict, DeclarationError, NotFound
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql

F = TypeVar("F", bound=Callable[..., Any])
LIST_LIMIT = 100
_WAIT_AT_MOST = timedelta(seconds=1)


class Work:
    """Durable runs of one server."""

    environment: Environment
    store: RunStore
    clock: Clock

    def __init__(self) -> None:
        self.handlers = RunHandlers()
        self.workers: list[Callable[[], None]] = []  # how to wake those of this process
        self.separate: dict[str, int] = {}  # types with a worker of their own, and how many it has at once
        self.access = RunAccess()
        self._enabled = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: dict[str, asyncio.Event] = {}
        self.observers: list[Callable[[str], None]] = []  # told the id of each run that was settled

    # -- declaring

    def enable(
        self,
        *,
        admin_role: str = "admin",
        routes: bool = True,
        public_submit: str | Sequence[str] | Literal[False] = (),
    ) -> None:
        """Have durable work even where this application handles no run itself, and say who sees it over REST.

        Callers submit the types whose handler is `public`, and with `public_submit` also these types and
        prefixes such as `email.`, which another process may handle; with `False` they submit nothing.
        `admin_role` sees the runs of its tenant, and without a tenant those of all.
        """
        if hasattr(self, "environment"):
            raise DeclarationError("the server is sealed; durable work is enabled before it starts")
        self.access = RunAccess(admin_role, routes, public_types(public_submit))
        self._enabled = True

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
    ) -> Callable[[F], F]:
        """Give runs of exactly this type to the decorated function, async or plain.

        Over REST callers read their runs; `public` types they also submit, cancel, retry and delete, and
        `internal` ones they do not see. A client asks for no more attempts and time than said here, and for
        a priority from `-max_priority` to `max_priority`. `lease` and `timeout` are timedeltas or seconds.
        """

        def decorate(fn: F) -> F:
            if hasattr(self, "environment"):
                raise DeclarationError("the server is sealed; handlers are added before it starts")
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
            )
            return fn

        return decorate

    @property
    def used(self) -> bool:
        return self._enabled or len(self.handlers) > 0

    def models(self) -> Sequence[type[Model]]:
        return (WorkflowRun, WorkflowEvent, WorkflowStep, WorkflowSignal) if self.used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema("runs", dialect) if self.used else ()

    def problems(self) -> builtins.list[str]:
        return [*self.handlers.problems(), *self.access.problems(self.handlers)]

    def attach(self, environment: Environment) -> None:
        self.environment = environment
        self.clock = environment.clock
        self.store = RunStore(environment.adapter, logged=environment.config.work_events)
        self._child_wakeups = ChildWakeups(self)
        self._submitter = Submitter(
            self.handlers, self.store, self.clock, environment.stores, environment.logger
        )
        if self.used:
            environment.metrics.add("runs_poll_errors_total", 0)
            environment.metrics.gauges_of(("runs_due", "runs_oldest_due_seconds"), self._depth)

    def services(self, prefixes: Sequence[str] = (), concurrency: int | None = None) -> Sequence[Service]:
        """The workers and the pruner, when there is anything to handle."""
        if not len(self.handlers):
            return ()
        self.ready()
        type_prefixes = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
        return (*make_crew(self, type_prefixes, concurrency), Pruner(self))

    def worker(
        self,
        prefixes: Sequence[str] = (),
        concurrency: int | None = None,
        *,
        lease: timedelta | None = None,
        poll_interval: timedelta | None = None,
    ) -> RunWorker:
        """A worker for runs whose type starts with one of the prefixes."""
        self.ready()
        type_prefixes = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
        return RunWorker(
            self, prefixes=type_prefixes, concurrency=concurrency, lease=lease, poll_interval=poll_interval
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
        `timeout`, `actor_id`, `tenant_id`, `trace_id`; the last three are the caller's inside a request.
        """
        run, _ = await self.offer(type, payload, idempotency_key=idempotency_key, tx=tx, **options)
        return run

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
        runs = await self._submit_all(type, [payload], [idempotency_key], tx, **options)
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
        keys = idempotency_keys or [None] * len(payloads)
        return await self._submit_all(type, payloads, keys, tx, **options)

    async def _submit_all(
        self,
        type: str,
        payloads: Sequence[Any],
        keys: Sequence[str | None],
        tx: Tx | None,
        **options: Unpack[checks.Options],
    ) -> Submitted:
        self.ready()
        runs = await self._submitter.submit(type, payloads, keys, tx, **options)
        if runs.due:
            self.wake_after(tx)
        return runs

    # -- asking

    async def get(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """The run of that id; `NotFound` when there is none."""
        try:
            return await self.records(tx).read(id)
        except NotFound:
            raise NotFound("run not found") from None

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
        return await self.records().list(filters, sorts="id:desc", limit=limit, page=page)

    async def events(self, id: str) -> builtins.list[WorkflowEvent]:
        """What happened to a run, in order."""
        stores = self.ready().stores
        records = Records[WorkflowEvent](stores[WorkflowEvent], reading(self.store.adapter))
        return await records.list([("workflow_id", "eq", id)], sorts=["created_at", "id"])

    async def wait(self, id: str, timeout: timedelta | float | None = None) -> WorkflowRun:
        """The run once it is finished; `TimeoutError` when that takes longer than `timeout`."""
        deadline = None if timeout is None else self.clock.now() + as_duration(timeout, "timeout")
        pause = timedelta(milliseconds=10)
        attempt_over = self._waiting.setdefault(id, asyncio.Event())
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
            self._waiting.pop(id, None)
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
            if not await self.store.cancel(id, self.clock.now(), running=running, tx=on):
                raise await self._why_not(id, "cancelled", on)
            run = await self.records(on).read(id)
        await self._child_wakeups.tell_parents([id], tx)
        return run

    async def retry(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """Try a failed or cancelled run again, with all its attempts; finished steps stay done.

        Calls of other runs that did not succeed are made anew.
        """
        async with self._alone(id, tx) as on:
            if not await self.store.retry(id, self.clock.now(), tx=on):
                raise await self._why_not(id, "retried", on)
            await on.execute(self.store.bind("restore_attempts", id=id))
            await on.execute(self.store.bind("forget_undone", id=id))
            await on.execute(self.store.bind("forget_calls", id=id))
            self.wake_after(on)
            return await self.records(on).read(id)

    async def delete(self, id: str, reason: str | None = None, *, tx: Tx | None = None) -> None:
        """Delete a run softly: it is never claimed again, and its idempotency key is free."""
        async with self._alone(id, tx) as on:
            if not await self.store.delete(id, reason, self.clock.now(), tx=on):
                raise NotFound("run not found")
        await self._child_wakeups.tell_parents([id], tx)

    @asynccontextmanager
    async def _alone(self, id: str, tx: Tx | None) -> AsyncIterator[Tx]:
        """A transaction that holds the lock of the run's row, so that no other change comes between."""
        async with _use_transaction(self.store.adapter, tx) as on:
            await on.write(self.store.bind("lock", id=id))
            yield on

    async def signal(self, id: str, name: str, payload: Any = None, *, tx: Tx | None = None) -> None:
        """Tell a run something; it is kept until the run waits for it."""
        checks.signal_name(name)
        text = encode(payload, "payload")
        now = self.clock.now()
        store = self.store
        async with _use_transaction(store.adapter, tx) as on:
            # The lock orders us and a run that is about to wait: one of the two sees the other.
            rows = await on.write(store.bind("lock", id=id))
            if not rows:
                raise NotFound("run not found")
            if rows[0][0] not in ("pending", "leased"):
                raise Conflict(f"the run is {rows[0][0]}; it waits for nothing")
            await on.execute(
                store.bind("add_signal", signal=new_id(), id=id, name=name, payload=text, now=now)
            )
            await self._awaken(id, name, now, on)

    async def _awaken(self, id: str, name: str, now: datetime, tx: Tx | None) -> None:
        store = self.store
        run = tx or store.adapter
        if await run.write(store.bind("awaken", id=id, name=name, now=now, channel=CHANNEL)):
            self.wake_after(tx)

    async def _why_not(self, id: str, what: str, tx: Tx | None) -> Exception:
        try:
            run = await self.records(tx).read(id)
        except NotFound:
            return NotFound("run not found")
        if run.status == what:
            return Conflict(f"the run is {what} already")
        still = ", its handler has yet to stop," if run.status == "cancelled" and run.lease_until else ""
        return Conflict(f"the run is {run.status}{still} and cannot be {what}")

    # -- for workers

    async def reap(self, now: datetime) -> builtins.list[Reaped]:
        """Take back runs whose lease ran out; those that failed for good go to their dead letters."""
        async with transaction(self.store.adapter) as tx:
            await self.store.turn_back(now, UNDO_ATTEMPTS, tx)
            runs = await self.store.reap(now, [handler.type for handler in self.handlers], tx=tx)
            for run in runs:
                if run.status == "failed" and self.dead_letter(run.type):
                    await self.bury(run.id, run.type, "lease_expired", tx)
            tx.after_commit(lambda: self._tell_observers(*(run.id for run in runs)))
            if failed_ids := [run.id for run in runs if run.status == "failed"]:
                await self._child_wakeups.tell_parents(failed_ids, tx)
        return runs

    def dead_letter(self, type: str) -> str | None:
        handler = self.handlers.get(type)
        return handler.dead_letter if handler is not None else None

    async def bury(self, id: str, type: str, error: str | None, tx: Tx) -> None:
        """Submit the dead letter of a run that failed for good, in the transaction that fails it."""
        letter = self.dead_letter(type)
        if letter is not None:
            await submit_letter(self, letter, id, type, error, tx)

    async def unless_signalled(self, change: RunChange, now: datetime, tx: Tx) -> RunChange:
        """The change of a run that is about to wait; it is due at once if its signal or child has come."""
        if change.waiting_for is None:
            return change
        await tx.write(self.store.bind("lock", id=change.held.id))
        if change.waiting_for.startswith(CHILD):
            has_come = await self._child_wakeups.is_over(change.waiting_for, tx)
            self._child_wakeups.look_once_more(change.held.id, change.waiting_for, tx)
        else:
            statement = self.store.bind("has_signal", id=change.held.id, name=change.waiting_for)
            has_come = bool(await tx.fetch(statement))
        if not has_come:
            return change
        return RunChange(change.held, change.status, change.event, change.data, now, change.unspent)

    def note_settled(self, run: ClaimedRun, *, still_ours: bool = True) -> None:
        """Wake those who `wait` for the run; tell observers, unless the run was not ours any more."""
        if still_ours and self.observers:
            self._tell_observers(run.id)
        waiting = self._waiting.get(run.id)
        if waiting is not None:
            waiting.set()

    def awaken_waiting(self, over: Iterable[ClaimedRun]) -> None:
        """Wake the runs that wait for one of these; most are no child and have no key to be found by."""
        ids = [run.id for run in over if run.parent_id is not None or run.keyed]
        if ids:
            self.spawn(self._child_wakeups.awaken_parents(ids))

    def _tell_observers(self, *ids: str) -> None:
        for id in ids:
            for observer in self.observers:
                observer(id)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a small task in the background; its failure is logged."""
        task = asyncio.create_task(self.await_logged(work), context=detached_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for_tasks(self) -> None:
        """Wait for the tasks that `spawn` has started until now."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def await_logged(self, work: Coroutine[Any, Any, Any]) -> None:
        """Await work whose failure is only logged."""
        fence = Fence()
        try:
            await work
        except BaseException as error:
            fence.absorb(error)
            self.environment.logger.warning("background task failed: %s", describe(error), exc_info=error)

    # -- small things

    def wake_after(self, tx: Tx | None) -> None:
        """Wake this process's workers, after the commit that makes the run visible."""
        open_tx = tx or current_tx(self.store.adapter)
        if open_tx is None:
            self.wake()
        else:
            open_tx.after_commit(self.wake)

    def wake(self) -> None:
        """Have the workers of this process look for work."""
        for wake in self.workers:
            wake()

    def ready(self) -> Environment:
        """The environment of the sealed server; `DeclarationError` before the start or without use."""
        if not hasattr(self, "environment"):
            raise DeclarationError(
                "the server has not started; outside it, work inside `async with server.lifespan():`"
            )
        if not self.used:
            raise DeclarationError(
                "durable work is not in use: register a handler or call server.work.enable() before the start"
            )
        return self.environment

    def records(self, tx: Tx | None = None) -> Records[WorkflowRun]:
        """The stored runs, as models."""
        return Records(self.ready().stores[WorkflowRun], reading(self.store.adapter, tx))

    async def _depth(self) -> Sequence[Values]:
        """How many are due by type, and for how long the oldest is, from one look."""
        now = self.clock.now()
        rows = await self.store.depth(now)
        due: Values = [((("type", type),), float(count)) for type, count, _ in rows]
        ages = [(now - oldest).total_seconds() for _, _, oldest in rows]
        return due, [((), max(ages, default=0.0))]


def _use_transaction(adapter: Adapter, tx: Tx | None) -> AbstractAsyncContextManager[Tx]:
    """The transaction `tx`, else the open one, else a new one."""
    return transaction(adapter) if tx is None else nullcontext(tx)
