"""The engine of durable runs: submits them, ends them, wakes those who wait for them.

`server.work` (`api.py`) is its face; workers, handlers of runs, schedules and jobs stand on it directly.
Runs that wait for runs of their own are woken as soon as those are over, in any process: after the commit
that ends the child, so that no transaction waits for another run's row. A parent that was not woken, because
a process died in between, looks again by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar, Unpack, cast, overload

from maniflex._caller import Caller, caller
from maniflex._clock import Clock
from maniflex._fence import Fence, describe
from maniflex._ids import new_id, new_ids
from maniflex._json import decode, encode
from maniflex.background.declaring import chosen_key_id
from maniflex.background.loop import WorkTracing
from maniflex.background.metrics import Metrics
from maniflex.background.parameters import subject_of
from maniflex.background.runs import rows as checks
from maniflex.background.runs.handlers import MAX_ATTEMPTS, RunHandlers, check_type, payload_text
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.rows import ClaimedRun, Reaped, RunChange, RunDraft
from maniflex.background.runs.step_memory import UNDO_ATTEMPTS
from maniflex.background.runs.store import CHANNEL, RunStore
from maniflex.background.runs.store_postgres import PostgresRunStore
from maniflex.background.runs.store_sqlite import SqliteRunStore
from maniflex.background.subjects import WorkSubject, note_subjects, read_subjects
from maniflex.config import Config
from maniflex.db.current import current_tx, detached_context, reading, transaction
from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.sealed_json import WorkSealing, as_plain, key_id_in
from maniflex.encryption.waiting import WithLeaveToWait
from maniflex.errors import Conflict, DatabaseError, DeclarationError, NotFound
from maniflex.model.base import Model, instance_of
from maniflex.sql.statement import Dialect

M = TypeVar("M", bound=Model)
CHILD = "run:"  # and its id: what a parent waits for
LETTER = "dead:"  # begins the idempotency key of a dead letter
STORES: Mapping[Dialect, type[RunStore]] = {
    Dialect.SQLITE: SqliteRunStore,
    Dialect.POSTGRES: PostgresRunStore,
}


def open_store(adapter: Adapter, *, logged: bool = True) -> RunStore:
    """The runs of this database; `DeclarationError` for a dialect that runs have no statements in."""
    store = STORES.get(adapter.dialect)
    if store is None:
        dialects = ", ".join(STORES)
        raise DeclarationError(
            f"durable runs have no statements for {adapter.dialect!r}, only for {dialects}"
        )
    return store(adapter, logged=logged)


def use_transaction(adapter: Adapter, tx: Tx | None) -> AbstractAsyncContextManager[Tx]:
    """The transaction `tx`, else the open one, else a new one."""
    return transaction(adapter) if tx is None else nullcontext(tx)


BindCaller = Callable[[Caller], AbstractContextManager[object]]  # a block that scope rules bind
EndPublisher = Callable[[Sequence[str], Tx], Awaitable[None]]  # publishes what runs of these ids came to


class RunEngine:
    """The durable runs of one sealed server."""

    def __init__(
        self,
        store: RunStore,
        handlers: RunHandlers,
        *,
        clock: Clock,
        config: Config,
        logger: logging.Logger,
        stores: Mapping[type[Model], Store],
        metrics: Metrics,
        bind_caller: BindCaller = nullcontext,
        keys: Keyring | None = None,
    ) -> None:
        self.sealing = WorkSealing(keys or Keyring())
        self.store = store
        self.handlers = handlers
        self.clock = clock
        self.config = config
        self.logger = logger
        self.metrics = metrics
        self.bind_caller = bind_caller
        self.tracing: WorkTracing | None = None
        self.workers: list[Callable[[], None]] = []  # how to wake those of this process
        self.observers: list[Callable[[str], None]] = []  # told the id of each run that was settled
        self.publishers: list[EndPublisher] = []  # run in the transaction that ends runs
        self.attempts_over: dict[str, asyncio.Event] = {}  # by the id of a run that `Work.wait` waits for
        self._stores = stores
        self._submitter = Submitter(handlers, store, clock, stores, logger, self.sealing)
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- submitting and asking

    async def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        tx: Tx | None = None,
        **options: Unpack[checks.Options],
    ) -> WorkflowRun:
        """Store a run; in a transaction it is there when that commits. One of the same key is returned."""
        return (await self.submit_all(type, [payload], [idempotency_key], tx, **options))[0]

    async def submit_all(
        self,
        type: str,
        payloads: Sequence[Any],
        keys: Sequence[str | None] | None = None,
        tx: Tx | None = None,
        **options: Unpack[checks.Options],
    ) -> Submitted:
        """Store a run for each payload, all or none, in few statements; wake the workers of this process."""
        runs = await self._submitter.submit(type, payloads, keys or [None] * len(payloads), tx, **options)
        if runs.due:
            self.wake_after(tx)
        return runs

    async def seal_rows(self, rows: Sequence[checks.NewRun], key_id: str | None) -> Sequence[checks.NewRun]:
        """New runs as they are stored."""
        return await self._submitter.seal_rows(rows, key_id)

    async def get(self, id: str, *, tx: Tx | None = None) -> WorkflowRun:
        """The run of that id; `NotFound` when there is none."""
        try:
            return await self.records(tx).read(id)
        except NotFound:
            raise NotFound("run not found") from None

    def records(self, tx: Tx | None = None) -> Records[WorkflowRun]:
        """The stored runs, as models."""
        return self.leave_to_wait(Records(self._stores[WorkflowRun], reading(self.store.adapter, tx)))

    def leave_to_wait(self, records: Records[M]) -> Records[M]:
        """The same records, whose sealed values may be opened by a key provider elsewhere."""
        return cast(Records[M], WithLeaveToWait(records)) if self.sealing.keys.waits else records

    # -- waking workers

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

    # -- signals

    async def signal(self, id: str, name: str, payload: Any = None, *, tx: Tx | None = None) -> None:
        """Tell a run something; it is kept until the run waits for it."""
        checks.signal_name(name)
        now, store = self.clock.now(), self.store
        async with use_transaction(store.adapter, tx) as on:
            # The lock orders us and a run that is about to wait: one of the two sees the other.
            rows = await on.write(store.bind("lock", id=id))
            if not rows:
                raise NotFound("run not found")
            if rows[0][0] not in (Status.PENDING, Status.LEASED):
                raise Conflict(f"the run is {rows[0][0]}; it waits for nothing")
            key_id = self._key_of(rows[0])
            text = encode(payload, "payload", to_seal=key_id is not None)
            text = await self.sealing.keep(text, key_id, "workflow_signal.payload", id, name)
            await on.execute(
                store.bind("add_signal", signal=new_id(), id=id, name=name, payload=text, now=now)
            )
            if await self._awaken(id, name, now, on):
                self.wake_after(on)

    def _key_of(self, locked: Sequence[Any]) -> str | None:
        """The key id of what a run holds, by the row that locking it gave."""
        handler = self.handlers.get(locked[2])
        return (None if handler is None else handler.encrypted) or key_id_in(locked[3])

    async def _awaken(self, id: str, waiting_for: str, now: datetime, on: Executor) -> bool:
        """Make a run due that waits for this; whether it did."""
        return bool(
            await on.write(self.store.bind("awaken", id=id, name=waiting_for, now=now, channel=CHANNEL))
        )

    async def unless_signalled(self, change: RunChange, now: datetime, tx: Tx) -> RunChange:
        """The change of a run that is about to wait; it is due at once if its signal or child has come."""
        if change.waiting_for is None:
            return change
        await tx.write(self.store.bind("lock", id=change.held.id))
        if change.waiting_for.startswith(CHILD):
            has_come = await self._is_over(change.waiting_for, tx)
            # Look again after the commit: a child that ended before it found no parent that waits.
            child = change.waiting_for
            tx.after_commit(lambda: self.spawn(self._awaken_if_over(change.held.id, child)))
        else:
            statement = self.store.bind("has_signal", id=change.held.id, name=change.waiting_for)
            has_come = bool(await tx.fetch(statement))
        if not has_come:
            return change
        return RunChange(change.held, change.status, change.event, change.data, now, change.unspent)

    # -- runs that wait for runs

    async def tell_parents(self, ids: Sequence[str], tx: Tx | None = None) -> None:
        """Wake those who wait for these runs, which were ended by the open transaction, or just now."""
        open_tx = tx or current_tx(self.store.adapter)
        if open_tx is None:
            await self._await_logged(self._awaken_parents(ids))
        else:
            open_tx.after_commit(lambda: self.spawn(self._awaken_parents(ids)))

    def awaken_waiting(self, over: Iterable[ClaimedRun]) -> None:
        """Wake the runs that wait for one of these; most are no child and have no key to be found by."""
        ids = [run.id for run in over if run.parent_id is not None or run.keyed]
        if ids:
            self.spawn(self._awaken_parents(ids))

    async def _awaken_parents(self, ids: Sequence[str]) -> None:
        if await self.store.awaken_parents(ids, self.clock.now()):
            self.wake()

    async def _is_over(self, waiting_for: str, on: Executor) -> bool:
        """Whether the child that is waited for needs no more waiting."""
        return not await on.write(self.store.bind("under_way", id=waiting_for.removeprefix(CHILD)))

    async def _awaken_if_over(self, id: str, waiting_for: str) -> None:
        adapter = self.store.adapter
        if await self._is_over(waiting_for, adapter):
            await self._awaken(id, waiting_for, self.clock.now(), adapter)
            self.wake()

    # -- runs that are over

    def note_settled(self, run: ClaimedRun, *, still_ours: bool = True) -> None:
        """Wake those who `wait` for the run; tell observers, unless the run was not ours any more."""
        if still_ours and self.observers:
            self._tell_observers(run.id)
        over = self.attempts_over.get(run.id)
        if over is not None:
            over.set()

    async def publish_ends(self, ids: Sequence[str], tx: Tx) -> None:
        """Publish events of those of these runs that the transaction has ended."""
        for publish in self.publishers if ids else ():
            await publish(ids, tx)

    def _tell_observers(self, *ids: str) -> None:
        for id in ids:
            for observer in self.observers:
                observer(id)

    async def reap(self, now: datetime) -> list[Reaped]:
        """Take back runs whose lease ran out; those that failed for good go to their dead letters."""
        async with transaction(self.store.adapter) as tx:
            await self.store.turn_back(now, self._undo_attempts, tx)
            runs = await self.store.reap(now, [handler.type for handler in self.handlers], tx=tx)
            failed_runs = [run for run in runs if run.status == Status.FAILED]
            for run in failed_runs:
                await self.bury(run.id, run.type, "lease_expired", tx)
            await self.publish_ends([run.id for run in failed_runs], tx)
            tx.after_commit(lambda: self._tell_observers(*(run.id for run in runs)))
            if failed_runs:
                await self.tell_parents([run.id for run in failed_runs], tx)
        return runs

    def _undo_attempts(self, type: str) -> int:
        """How many attempts there are to take back what a run of this type has done."""
        handler = self.handlers.get(type)
        return UNDO_ATTEMPTS if handler is None else handler.undo_attempts or UNDO_ATTEMPTS

    # -- dead letters

    def dead_letter(self, type: str) -> str | None:
        """The type of the run that is submitted for each run of this type that fails for good."""
        handler = self.handlers.get(type)
        return handler.dead_letter if handler is not None else None

    async def bury(self, id: str, type: str, error: str | None, tx: Tx) -> None:
        """Submit the dead letter of a run that failed for good, in the transaction that fails it."""
        letter = self.dead_letter(type)
        if letter is None:
            return
        payload: dict[str, Any] = {"run_id": id, "type": type, "payload": None, "error": error}
        payload["attempt"] = None
        who = checks.Options()
        try:
            run = await self.records(tx).read(id)
        except NotFound:  # deleted while it ran: it needs no letter
            return
        except (ValueError, DatabaseError):
            pass  # what cannot be read is what it failed for
        else:
            if letter in _types_in_letter(run):
                self.logger.error("run %s (%s): dead letters in a circle; it has none", id, type)
                return
            payload |= {"payload": run.payload, "attempt": run.attempt}
            payload["error"] = await self.sealing.open_text(error, "workflow_run.last_error", id)
            who = checks.Options(actor_id=run.actor_id, tenant_id=run.tenant_id, trace_id=run.trace_id)
            rows = await tx.write(self.store.bind("lock", id=id))
            key_id = self._key_of(rows[0]) if rows else None
            if key_id is not None:
                who["encrypted"] = key_id
        await self.submit(letter, payload, idempotency_key=f"{LETTER}{id}:{new_id()}", tx=tx, **who)

    # -- small tasks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a small task in the background; its failure is logged."""
        task = asyncio.create_task(self._await_logged(work), context=detached_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for_tasks(self) -> None:
        """Wait for the tasks that `spawn` has started until now."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _await_logged(self, work: Coroutine[Any, Any, Any]) -> None:
        fence = Fence()
        try:
            await work
        except BaseException as error:
            fence.absorb(error)
            self.logger.warning("background task failed: %s", describe(error), exc_info=error)


def _types_in_letter(run: WorkflowRun) -> set[str]:
    """The types of the runs that a dead letter tells of, each the letter of the one before.

    One process knows the letters of its own handlers and refuses circles among them; a circle through
    the handlers of several is seen only here.
    """
    types: set[str] = set()
    payload: Any = run.payload if (run.idempotency_key or "").startswith(LETTER) else None
    while isinstance(payload, dict) and isinstance(payload.get("type"), str):
        types.add(payload["type"])
        payload = payload.get("payload")
    return types


# Turns calls of `submit` into rows: the one way runs are made.


BULK = 5000  # rows in one statement
MOST_UNKNOWN = 1000
MOST_ROUNDS = 50  # of inserts, when the run that was in the way is gone each time it is looked for
EMPTY: Mapping[str, WorkflowRun] = {}
Row: TypeAlias = tuple[str, str, str | None]  # id, payload, idempotency key


class _KeyFreed(Conflict):
    """The run that was in the way is gone, so its key is free."""


class Submitter:
    """Stores runs, and finds those that were there already under the same key."""

    def __init__(
        self,
        handlers: RunHandlers,
        store: RunStore,
        clock: Clock,
        stores: Mapping[type[Model], Store],
        logger: logging.Logger,
        sealing: WorkSealing,
    ) -> None:
        self._sealing = sealing
        self._handlers = handlers
        self._store = store
        self._clock = clock
        self._stores = stores
        self._logger = logger
        self._unknown: set[str] = set()  # types of which that was said

    async def submit(
        self,
        type: str,
        payloads: Sequence[Any],
        keys: Sequence[str | None],
        tx: Tx | None,
        **options: Unpack[checks.Options],
    ) -> Submitted:
        """Store a run for each payload, unless there is one of its key."""
        checks.check_names(options)
        now = self._clock.now()
        subjects = read_subjects(options.pop("subjects", ()), self._stores)
        key_id = self.key_id_for(type, options.pop("encrypted", None))
        draft = self._draft(type, now, **options)
        handler = self._handlers.get(type)
        to_seal = key_id is not None
        plain_rows = [
            (id, payload_text(handler, payload, to_seal=to_seal), checks.key(key))
            for id, payload, key in zip(new_ids(len(payloads)), payloads, keys, strict=True)
        ]
        common = _common(draft, now)
        if not plain_rows:
            return Submitted(common, plain_rows)
        rows = await self.seal_rows(plain_rows, key_id)
        open_tx = tx or current_tx(self._store.adapter)
        if subjects:
            existing = await self._insert_about(subjects, draft, rows, now, open_tx)
        elif open_tx is not None or (len(rows) <= BULK and not any(keys)):
            existing = await self._insert_new(draft, rows, now, open_tx)
        else:
            existing = await self._insert_alone(draft, rows, now)
        return Submitted(common, plain_rows, existing)

    def key_id_for(self, type: str, encrypted: bool | str | None) -> str | None:
        """The key id under which a run of this type is stored; what its handler says counts in any case."""
        handler = self._handlers.get(type)
        return chosen_key_id(encrypted, None if handler is None else handler.encrypted)

    async def seal_rows(self, rows: Sequence[Row], key_id: str | None) -> Sequence[Row]:
        """New runs as they are stored."""
        if key_id is None:
            return [(id, as_plain(text), key) for id, text, key in rows]
        keep = self._sealing.keep
        return [(id, await keep(text, key_id, "workflow_run.payload", id), key) for id, text, key in rows]

    async def _insert_about(
        self, subjects: Sequence[str], draft: RunDraft, rows: Sequence[Row], now: datetime, tx: Tx | None
    ) -> dict[str, WorkflowRun]:
        """Insert new runs and whom they are about, together."""
        if tx is None:
            async with transaction(self._store.adapter) as own_tx:
                return await self._insert_about(subjects, draft, rows, now, own_tx)
        existing = await self._insert_new(draft, rows, now, tx)
        ids = [id for id, _, _ in rows if id not in existing]
        await note_subjects(tx, self._stores[WorkSubject], "run", ids, subjects, now)
        return existing

    async def _insert_alone(
        self, draft: RunDraft, rows: Sequence[Row], now: datetime
    ) -> dict[str, WorkflowRun]:
        """Insert new runs in a transaction of their own, which is begun anew when a key was freed meanwhile.

        To insert that key beside the others would be out of order, and end in a deadlock.
        """
        for _ in range(MOST_ROUNDS - 1):
            with suppress(_KeyFreed):
                async with transaction(self._store.adapter) as tx:
                    return await self._insert_new(draft, rows, now, tx, rounds=1)
        async with transaction(self._store.adapter) as tx:
            return await self._insert_new(draft, rows, now, tx, rounds=1)

    async def _insert_new(
        self, draft: RunDraft, rows: Sequence[Row], now: datetime, tx: Tx | None, rounds: int = MOST_ROUNDS
    ) -> dict[str, WorkflowRun]:
        """Insert new runs; the existing runs with the same key, by the id generated for the duplicate.

        A run that was in the way and is deleted before it is read leaves its key free; then the insert is
        tried again.
        """
        existing: dict[str, WorkflowRun] = {}
        missing = rows
        if len(rows) > 1:
            # Two that insert the same keys wait for each other unless both take them in one order.
            missing = sorted(rows, key=lambda row: row[2] or "")
        for _ in range(rounds):
            missing = await self._insert(draft, missing, now, tx)
            if not missing:
                return existing
            runs_by_key = await self._runs_by_key([key for _, _, key in missing if key is not None], tx)
            for run in runs_by_key.values():
                if run.type != draft.type:
                    raise Conflict(f"the idempotency key belongs to a run of another type, {run.type}")
            existing |= {id: runs_by_key[key] for id, _, key in missing if key in runs_by_key}
            missing = [row for row in missing if row[2] not in runs_by_key]
            if not missing:
                return existing
        raise _KeyFreed("runs with this idempotency key are made and removed all the time; submit it again")

    async def _insert(
        self, draft: RunDraft, rows: Sequence[Row], now: datetime, tx: Tx | None
    ) -> Sequence[Row]:
        """Insert new runs; the rows whose key another run has."""
        new_ids: set[str] = set()
        for start in range(0, len(rows), BULK):
            new_ids |= await self._store.submit(draft, rows[start : start + BULK], now, tx)
        if len(new_ids) == len(rows):
            return ()
        return [row for row in rows if row[0] not in new_ids and row[2] is not None]

    async def _runs_by_key(self, keys: Sequence[str], tx: Tx | None) -> dict[str, WorkflowRun]:
        """The runs that have these keys, except those that are deleted by now."""
        ids = await self._store.by_keys(keys, tx)
        records = Records[WorkflowRun](self._stores[WorkflowRun], tx)
        runs = await records.list([("id", "in", sorted(set(ids.values())))]) if ids else []
        runs_by_id = {run.id: run for run in runs}
        return {key: runs_by_id[id] for key, id in ids.items() if id in runs_by_id}

    def _warn_unknown(self, type: str) -> None:
        """Warn once per type: a run of a type without a handler waits for ever, and says nothing."""
        if type not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
            self._unknown.add(type)
            self._logger.warning(
                "no handler is known here for runs of %s; they wait for a worker that has one", type
            )

    def _draft(
        self,
        type: str,
        now: datetime,
        *,
        priority: int = 0,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        max_attempts: int | None = None,
        group_key: str | None = None,
        timeout: timedelta | float | None = None,
        actor_id: str | None = None,
        tenant_id: str | None = None,
        trace_id: str | None = None,
        parent_id: str | None = None,
        about: Model | str | None = None,
        subjects: Sequence[str] = (),
        encrypted: bool | str | None = None,
    ) -> RunDraft:
        who = caller()
        if actor_id is None and tenant_id is None and trace_id is None:
            actor_id, tenant_id, trace_id = who[:3]
        handler = self._handlers.get(check_type(type))
        if handler is None:
            self._warn_unknown(type)
        attempts = (
            max_attempts if max_attempts is not None else handler.max_attempts if handler else MAX_ATTEMPTS
        )
        checks.check_int("max_attempts", attempts, 1)
        checks.check_priority(priority)
        texts = {
            "group_key": group_key,
            "actor_id": actor_id,
            "tenant_id": tenant_id,
            "trace_id": trace_id,
            "traceparent": who.traceparent if trace_id == who.trace_id else None,
            "parent_id": parent_id,
        }
        for name, text in texts.items():
            checks.text(name, text)
        return RunDraft(
            type,
            checks.when(now, run_at, delay),
            attempts,
            priority,
            checks.seconds(timeout),
            about=subject_of(about),
            **texts,
        )


class Submitted(Sequence[WorkflowRun]):
    """The runs of one call, made when they are first looked at: who submits thousands seldom does."""

    __slots__ = ("_common", "_existing", "_rows", "_runs")

    def __init__(
        self, common: dict[str, Any], rows: Sequence[Row], existing: Mapping[str, WorkflowRun] = EMPTY
    ) -> None:
        self._common = common
        self._rows = rows
        self._existing = existing
        self._runs: list[WorkflowRun] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> WorkflowRun: ...
    @overload
    def __getitem__(self, place: slice) -> list[WorkflowRun]: ...
    def __getitem__(self, place: int | slice) -> WorkflowRun | list[WorkflowRun]:
        if self._runs is None:
            self._runs = [self._existing.get(row[0]) or self._run(row) for row in self._rows]
        return self._runs[place]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any list

    def __repr__(self) -> str:
        return f"<{len(self)} runs of {self._common['type']}>"

    @property
    def due(self) -> bool:
        """Whether there is something to do at once."""
        return bool(self._rows) and self._common["run_at"] <= self._common["created_at"]

    def is_new(self, place: int) -> bool:
        """Whether there was no run of its key before."""
        return self._rows[place][0] not in self._existing

    def _run(self, row: Row) -> WorkflowRun:
        own = {"id": row[0], "payload": decode(row[1]), "idempotency_key": row[2]}
        return instance_of(WorkflowRun, self._common | own)


def _common(draft: RunDraft, now: datetime) -> dict[str, Any]:
    """What new runs have in common."""
    return {
        "type": draft.type,
        "status": Status.PENDING,
        "priority": draft.priority,
        "result": None,
        "error": None,
        "last_error": None,
        "attempt": 0,
        "max_attempts": draft.max_attempts,
        "run_at": draft.run_at,
        "timeout": draft.timeout,
        "group_key": draft.group_key,
        "lease": None,
        "lease_until": None,
        "leased_by": None,
        "waiting_for": None,
        "actor_id": draft.actor_id,
        "tenant_id": draft.tenant_id,
        "trace_id": draft.trace_id,
        "traceparent": draft.traceparent,
        "parent_id": draft.parent_id,
        "about": draft.about,
        "delete_reason": None,
        "deleted_at": None,
        "created_at": now,
        "updated_at": now,
    }
