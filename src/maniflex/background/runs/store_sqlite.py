"""The rows of runs on SQLite: lists go as JSON text, and event rows by statements of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self

from maniflex._ids import event_ids
from maniflex._json import decode, encode_plain
from maniflex.background.leases import Held
from maniflex.background.partitions.layout import PartitionLayout
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import (
    ClaimCursor,
    ClaimedRun,
    ClaimTerms,
    NewRun,
    Renewed,
    RunChange,
    RunDraft,
)
from maniflex.background.runs.store import RunStore
from maniflex.db.current import executor
from maniflex.db.port import Executor, Row, Tx
from maniflex.errors import DatabaseError, TransactionError
from maniflex.sql.codec import encode_datetime
from maniflex.sql.statement import Sql


class SqliteRunStore(RunStore):
    """All statements about runs on SQLite, which has one writer at a time."""

    @asynccontextmanager
    async def steady(self) -> AsyncIterator[Self]:
        yield self

    async def submit(
        self, draft: RunDraft, rows: Sequence[NewRun], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        text, stamp = encode_plain(rows), encode_datetime(now)
        statements = [
            self._sql["submit"].bind(
                rows=text,
                type=draft.type,
                priority=draft.priority,
                max_attempts=draft.max_attempts,
                run_at=encode_datetime(draft.run_at),
                timeout=draft.timeout,
                group_key=draft.group_key,
                actor_id=draft.actor_id,
                tenant_id=draft.tenant_id,
                trace_id=draft.trace_id,
                traceparent=draft.traceparent,
                parent_id=draft.parent_id,
                about=draft.about,
                now=stamp,
            )
        ]
        if self._logged:
            statements.append(self._sql["log_submit"].bind(rows=text, now=stamp, **event_ids()))
        return {row[0] for row in await _rows_of(executor(self.adapter, tx), statements)}

    async def _change_one(
        self, name: str, event: str, run_id: str, now: datetime, tx: Tx | None, **extra: Any
    ) -> bool:
        values = {"id": run_id, "now": encode_datetime(now), **extra, **event_ids()}
        statements = [self._sql[name].bind(**values)]
        if self._logged:
            data = encode_plain({"reason": extra["reason"]}) if "reason" in extra else None
            statements.append(self._sql["log_one"].bind(**values, event_type=event, data=data))
        return bool(await _rows_of(executor(self.adapter, tx), statements))

    # -- what workers do

    def learn_partitions(self, layout: PartitionLayout | None, open: Sequence[str] = ()) -> None:
        pass  # SQLite has none

    def due_time(self, run: ClaimedRun) -> datetime:
        try:
            return datetime.fromisoformat(run.run_at).replace(tzinfo=UTC)
        except (TypeError, ValueError):  # another program wrote it
            return datetime.max.replace(tzinfo=UTC)

    async def claim(self, terms: ClaimTerms, cursor: ClaimCursor | None = None) -> list[ClaimedRun]:
        now, token = terms.now, terms.token
        values = {
            "owner": terms.owner,
            "lease": token,
            "now": encode_datetime(now),
            "until": encode_datetime(now + terms.lease),
            "untils": encode_plain({t: encode_datetime(now + d) for t, d in terms.leases.items()}),
        }
        claim = [self._sql["claim"].bind(**values, limit=terms.limit, ranges=encode_plain(terms.ranges))]
        if self._logged:
            claim.append(self._sql["log_claim"].bind(**values, **event_ids()))
        try:
            answers = await self.adapter.batch([*claim, self._sql["just_claimed"].bind(**values)])
            return _runs_of_answer(answers[-1], token)
        except DatabaseError as error:
            if isinstance(error, TransactionError):
                raise
        # SQLite takes anything for a text, and one of them may hold what cannot be read.
        await self.adapter.batch(claim)
        return await self._find_one_by_one(token)

    async def find_claimed(self, token: str) -> list[ClaimedRun]:
        try:
            answer = await self.adapter.write(self._sql["claimed"].bind(lease=token))
            return _runs_of_answer(answer, token)
        except DatabaseError as error:
            if isinstance(error, TransactionError):
                raise
            return await self._find_one_by_one(token)

    async def _find_one_by_one(self, token: str) -> list[ClaimedRun]:
        """What a claim took, where reading all of it at once failed; what cannot be read has no payload."""
        rows: list[Row] = []
        for [id] in await self.adapter.write(self._sql["claimed_ids"].bind(lease=token)):
            try:
                rows += await self.adapter.write(self._sql["claimed_one"].bind(id=id))
            except DatabaseError as error:
                if isinstance(error, TransactionError):
                    raise
                rows += await self.adapter.write(self._sql["claimed_unreadable"].bind(id=id))
        return _sort_by_urgency(_runs_of_rows(rows, token))

    async def renew(self, on: Executor, held: Sequence[tuple[Held, datetime]]) -> Renewed:
        rows = [(h.id, h.lease, encode_datetime(until)) for h, until in held]
        answer = await on.write(self._sql["renew"].bind(rows=encode_plain(rows)))
        return Renewed({h.id for h, _ in held} - {row[0] for row in answer if row[1] == Status.LEASED}, set())

    async def succeed(
        self, successes: Sequence[tuple[Held, str | None]], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        stamp = encode_datetime(now)
        rows = encode_plain([(h.id, h.lease, result) for h, result in successes])
        statements = [self._sql["lost"].bind(rows=rows), self._sql["succeed"].bind(rows=rows, now=stamp)]
        if self._logged:
            statements.insert(1, self._sql["log_succeed"].bind(rows=rows, now=stamp, **event_ids()))
        [[lost_ids]], *_ = await (tx or self.adapter).batch(statements)
        return {h.id for h, _ in successes}.difference(decode(lost_ids))

    async def settle(self, changes: Sequence[RunChange], now: datetime, tx: Tx | None = None) -> set[str]:
        stamp = encode_datetime(now)
        rows = [
            (
                *c.held,
                c.status,
                None if c.run_at is None else encode_datetime(c.run_at),
                c.unspent,
                c.error,
                c.last_error,
                c.waiting_for,
            )
            for c in changes
        ]
        statements = [self._sql["settle"].bind(rows=encode_plain(rows), now=stamp)]
        if self._logged:
            log = encode_plain([(*c.held, c.event, c.data) for c in changes])
            statements.insert(0, self._sql["log_settle"].bind(rows=log, now=stamp, **event_ids()))
        return {row[0] for row in (await executor(self.adapter, tx).batch(statements))[-1]}

    async def let_go(self, held: Sequence[Held], now: datetime) -> set[str]:
        sql = self._sql["let_go"].bind(rows=encode_plain(held), now=encode_datetime(now))
        return {row[0] for row in await self.adapter.write(sql)}

    async def try_lock(self, ids: Sequence[str], tx: Tx) -> set[str]:
        return set(ids)  # the transaction is the lock

    # -- what looks after them

    async def _reap(self, values: dict[str, Any], on: Executor) -> list[Row]:
        statements = [self._sql["reap"].bind(**values)]
        if self._logged:
            statements.insert(0, self._sql["log_reap"].bind(**values, **event_ids()))
        return (await on.batch(statements))[-1]

    async def has_expired(self, now: datetime) -> bool:
        return bool(await self.adapter.fetch(self._sql["expired"].bind(now=encode_datetime(now))))

    async def _bring_back(self, rows: Sequence[tuple[str, Any, Any]], soonest: Any) -> list[Row]:
        statement = self._sql["bring_back"].bind(rows=encode_plain(rows), soonest=soonest)
        return await self.adapter.write(statement)

    async def _remove(self, ids: Sequence[str], before: Any) -> int:
        async with self.adapter.transaction() as tx:
            rows = await tx.write(self._sql["prune"].bind(ids=encode_plain(ids), before=before))
            removed_ids = encode_plain([row[0] for row in rows])
            names = ("prune_events", "prune_steps", "prune_signals")
            await tx.batch([self._sql[name].bind(ids=removed_ids) for name in names])
        return len(rows)


def _runs_of_answer(rows: Sequence[Row], token: str) -> list[ClaimedRun]:
    """The runs of a claim, whose rows come as one JSON text."""
    return _sort_by_urgency(_runs_of_rows(decode(rows[0][0]), token))


def _runs_of_rows(rows: Sequence[Row], token: str) -> list[ClaimedRun]:
    return [ClaimedRun(*(*row[:-1], Held(row[0], token), bool(row[-1]))) for row in rows]


def _sort_by_urgency(runs: list[ClaimedRun]) -> list[ClaimedRun]:
    runs.sort(key=lambda run: (-run.priority, run.run_at, run.id))
    return runs


async def _rows_of(run: Executor, statements: Sequence[Sql]) -> list[Row]:
    """The rows of the first statement; the others go along in its transaction."""
    if len(statements) == 1:
        return await run.write(statements[0])
    return (await run.batch(statements))[0]
