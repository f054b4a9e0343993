"""From what is asked to rows: the one way runs are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack

from maniflex._caller import caller
from maniflex._clock import Clock
from maniflex._ids import new_ids
from maniflex.background.jsons import decode, encode
from maniflex.background.runs import checks
from maniflex.background.runs.handlers import MAX_ATTEMPTS, Handlers, check_type
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.store import Draft, RunStore
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Tx
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.errors import Conflict
from maniflex.model.base import Model, instance_of

BULK = 5000  # rows in one statement


class Submitter:
    """Stores runs, and finds those that were there already under the same key."""

    def __init__(
        self, handlers: Handlers, store: RunStore, clock: Clock, stores: Mapping[type[Model], Store]
    ) -> None:
        self._handlers = handlers
        self._store = store
        self._clock = clock
        self._stores = stores

    async def submit(
        self,
        type: str,
        payloads: Sequence[Any],
        keys: Sequence[str | None],
        tx: Tx | None,
        **options: Unpack[checks.Options],
    ) -> tuple[list[tuple[WorkflowRun, bool]], bool]:
        """The run of each payload and whether it is new; and whether they are due at once."""
        checks.known(options)
        now = self._clock.now()
        draft = self._draft(type, now, **options)
        rows = [
            (id, encode({} if payload is None else payload, "payload"), checks.key(key))
            for id, payload, key in zip(new_ids(len(payloads)), payloads, keys, strict=True)
        ]
        if not rows:
            return [], False
        joined = tx or current_tx(self._store.adapter)
        if joined is not None or (len(rows) <= BULK and not any(keys)):
            runs = await self._stored(draft, rows, now, joined)
        else:
            async with transaction(self._store.adapter) as opened:
                runs = await self._stored(draft, rows, now, opened)
        return runs, draft.run_at <= now

    async def _stored(
        self, draft: Draft, rows: Sequence[tuple[str, str, str | None]], now: datetime, tx: Tx | None
    ) -> list[tuple[WorkflowRun, bool]]:
        fresh: set[str] = set()
        for start in range(0, len(rows), BULK):
            fresh |= await self._store.submit(draft, rows[start : start + BULK], now, tx)
        common = _common(draft, now)
        if len(fresh) == len(rows):
            return [(_made(common, row), True) for row in rows]
        made = {row[0]: _made(common, row) for row in rows if row[0] in fresh}
        taken = [row[2] for row in rows if row[0] not in fresh and row[2] is not None]
        known = await self._known(taken, tx) if taken else {}
        return [(made[row[0]], True) if row[0] in made else (known[row[2] or ""], False) for row in rows]

    async def _known(self, keys: Sequence[str], tx: Tx | None) -> dict[str, WorkflowRun]:
        """The runs that had these keys already."""
        ids = await self._store.by_keys(keys, tx)
        if set(keys) - ids.keys():  # it was deleted in this very moment
            raise Conflict("a run with this idempotency key was just removed; submit it again")
        records = Records[WorkflowRun](self._stores[WorkflowRun], tx)
        found = {run.id: run for run in await records.list([("id", "in", sorted(set(ids.values())))])}
        return {key: found[ids[key]] for key in keys}

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
    ) -> Draft:
        if actor_id is None and tenant_id is None and trace_id is None:
            actor_id, tenant_id, trace_id = caller()
        handler = self._handlers.get(check_type(type))
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
            "parent_id": parent_id,
        }
        for name, given in texts.items():
            checks.text(name, given)
        return Draft(
            type, checks.when(now, run_at, delay), attempts, priority, checks.seconds(timeout), **texts
        )


def _made(common: dict[str, Any], row: tuple[str, str, str | None]) -> WorkflowRun:
    return instance_of(
        WorkflowRun, {**common, "id": row[0], "payload": decode(row[1]), "idempotency_key": row[2]}
    )


def _common(draft: Draft, now: datetime) -> dict[str, Any]:
    """What new runs have in common."""
    return {
        "type": draft.type,
        "status": "pending",
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
        "parent_id": draft.parent_id,
        "delete_reason": None,
        "deleted_at": None,
        "created_at": now,
        "updated_at": now,
    }
