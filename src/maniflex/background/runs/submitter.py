"""Turns calls of `submit` into rows: the one way runs are made."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeAlias, Unpack, overload

from maniflex._caller import caller
from maniflex._clock import Clock
from maniflex._ids import new_ids
from maniflex._json import decode
from maniflex.background.parameters import subject_of
from maniflex.background.runs import rows as checks
from maniflex.background.runs.handlers import MAX_ATTEMPTS, RunHandlers, check_type, payload_text
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.rows import RunDraft
from maniflex.background.runs.store import RunStore
from maniflex.background.subjects import WorkSubject, note_subjects, read_subjects
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Tx
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.errors import Conflict
from maniflex.model.base import Model, instance_of

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
    ) -> None:
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
        draft = self._draft(type, now, **options)
        handler = self._handlers.get(type)
        rows = [
            (id, payload_text(handler, payload), checks.key(key))
            for id, payload, key in zip(new_ids(len(payloads)), payloads, keys, strict=True)
        ]
        common = _common(draft, now)
        if not rows:
            return Submitted(common, rows)
        open_tx = tx or current_tx(self._store.adapter)
        if subjects:
            existing = await self._insert_about(subjects, draft, rows, now, open_tx)
        elif open_tx is not None or (len(rows) <= BULK and not any(keys)):
            existing = await self._insert_new(draft, rows, now, open_tx)
        else:
            existing = await self._insert_alone(draft, rows, now)
        return Submitted(common, rows, existing)

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
