"""The rows of runs: every statement about them, as far as both databases take the same values.

`store_sqlite.py` and `store_postgres.py` have the rest. Every change and its event rows go in one
transaction. A worker's writes name the token of its claim, so a run that another worker took stays untouched;
each write returns the ids of the runs it changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from maniflex._ids import event_ids, first_id
from maniflex.background.leases import Held
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.background.partitions.layout import PartitionLayout
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import (
    ClaimCursor,
    ClaimedRun,
    ClaimTerms,
    NewRun,
    Reaped,
    Renewed,
    RunChange,
    RunDraft,
    RunState,
)
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import RequestError, Timeout, TransactionError, Unavailable
from maniflex.sql.statement import Sql, load

CHANNEL = "maniflex_work"
TABLE = "workflow_run"
ORPHAN_GRACE = timedelta(minutes=5)  # a run of an unknown type may wait this long for a worker that knows it
TRANSIENT_ERRORS = (TransactionError, Unavailable, Timeout)
UNBOUNDED = 2**62
_A_DAY = timedelta(days=1)
_LAST_ID = "\U0010ffff"


def passes(error: RequestError) -> bool:
    """Whether it is about this moment and not about the statement; that may have been done all the same."""
    return error.retryable or isinstance(error, TRANSIENT_ERRORS)


class RunStore(ABC):
    """All statements about runs on one database."""

    def __init__(self, adapter: Adapter, *, logged: bool = True) -> None:
        self.adapter = adapter
        self._logged = logged
        self._sql = load(PACKAGE, "runs", adapter.dialect)
        parameters = parameters_of(adapter.dialect)
        self._time, self._list = parameters.time, parameters.texts

    @abstractmethod
    def steady(self) -> AbstractAsyncContextManager[Self]:
        """A store for many claims and outcomes, whose plans do not change with the weather."""

    # -- what producers do

    @abstractmethod
    async def submit(
        self, draft: RunDraft, rows: Sequence[NewRun], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        """Store runs; the ids of those that were new."""

    async def by_keys(self, keys: Sequence[str], tx: Tx | None = None) -> dict[str, str]:
        """Idempotency key → id of the live run that has it."""
        rows = await executor(self.adapter, tx).write(self._sql["by_keys"].bind(keys=self._list(keys)))
        return {row[1]: row[0] for row in rows}

    async def cancel(self, run_id: str, now: datetime, *, running: bool = True, tx: Tx | None = None) -> bool:
        return await self._change_one("cancel", "cancelled", run_id, now, tx, running=running)

    async def retry(self, run_id: str, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("retry", "retried", run_id, now, tx)

    async def hurry(self, run_id: str, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("hurry", "hurried", run_id, now, tx)

    async def delete(self, run_id: str, reason: str | None, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("delete", "deleted", run_id, now, tx, reason=reason)

    @abstractmethod
    async def _change_one(
        self, name: str, event: str, run_id: str, now: datetime, tx: Tx | None, **extra: Any
    ) -> bool:
        """Change one run if its state allows it; whether it did."""

    async def awaken_parents(self, ids: Sequence[str], now: datetime) -> bool:
        """Let the runs that wait for one of these go on, as far as those are over; whether any did."""
        statement = self._sql["awaken_parents"]
        values = {"ids": self._list(ids), "now": self._time(now), "channel": CHANNEL}
        return bool(await self.adapter.write(statement.bind(**values)))

    # -- what workers do

    @abstractmethod
    def learn_partitions(self, layout: PartitionLayout | None, open: Sequence[str] = ()) -> None:
        """How the table is partitioned, and where a run may be due within seconds; claims go there first."""

    @abstractmethod
    async def claim(self, terms: ClaimTerms, cursor: ClaimCursor | None = None) -> list[ClaimedRun]:
        """Lease due runs, most urgent first."""

    @abstractmethod
    def due_time(self, run: ClaimedRun) -> datetime:
        """When a claimed run was due."""

    @abstractmethod
    async def find_claimed(self, token: str) -> list[ClaimedRun]:
        """The runs that the claim of this token took and still holds."""

    @abstractmethod
    async def renew(self, on: Executor, held: Sequence[tuple[Held, datetime]]) -> Renewed:
        """Extend leases; the ids of those that are no longer ours, and of those that have to wait."""

    @abstractmethod
    async def succeed(
        self, successes: Sequence[tuple[Held, str | None]], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        """Settle runs with their results; the ids of those that were still ours and not locked."""

    @abstractmethod
    async def settle(self, changes: Sequence[RunChange], now: datetime, tx: Tx | None = None) -> set[str]:
        """Settle runs that did not succeed; the ids of those that were still ours."""

    @abstractmethod
    async def let_go(self, held: Sequence[Held], now: datetime) -> set[str]:
        """Clear the leases of runs that were cancelled while we had them; which those are."""

    @abstractmethod
    async def try_lock(self, ids: Sequence[str], tx: Tx) -> set[str]:
        """Lock runs for the transaction; the ids of those that no other transaction has locked."""

    async def states(self, ids: Sequence[str]) -> dict[str, RunState]:
        """How things stand with these runs, as the primary knows it."""
        rows = await executor(self.adapter).write(self._sql["states"].bind(ids=self._list(ids)))
        return {row[0]: RunState(row[1], row[2], row[3], instant(row[4])) for row in rows}

    async def ends(self, ids: Sequence[str], tx: Tx) -> list[Row]:
        """What the columns of those of these runs say that are over, as the transaction left them."""
        return await tx.fetch(self._sql["ends"].bind(ids=self._list(ids)))

    async def is_cancelled(self, held: Held) -> bool:
        """Whether the run was cancelled; `LeaseLost` is for the caller to tell by `owns`."""
        return await self._state(held) == (Status.CANCELLED, held.lease)

    async def owns(self, held: Held) -> bool:
        """Whether the run is leased by this claim right now."""
        return await self._state(held) == (Status.LEASED, held.lease)

    async def _state(self, held: Held) -> tuple[Any, ...] | None:
        """As the primary knows it, and through the open transaction: SQLite has no second writer."""
        rows = await executor(self.adapter).write(self._sql["state"].bind(id=held.id))
        return tuple(rows[0]) if rows else None

    # -- what looks after them

    async def turn_back(
        self, now: datetime, attempts_of: Callable[[str], int], tx: Tx, limit: int = 500
    ) -> None:
        """Let expired runs that spent their attempts, and have steps to take back, go on just for that."""
        values = {"now": self._time(now), "limit": limit, **event_ids()}
        rows = await self.write_on(tx, self._sql["turn_back"].bind(**values))
        if not rows:
            return
        types = await tx.fetch(self._sql["types_of"].bind(ids=self._list([row[0] for row in rows])))
        ids_by_attempts: dict[int, list[str]] = {}
        for run_id, type in types:
            ids_by_attempts.setdefault(attempts_of(type), []).append(run_id)
        for more, ids in ids_by_attempts.items():
            values = {"ids": self._list(ids), "more": more, "now": self._time(now)}
            await tx.execute(self._sql["allow_turned"].bind(**values))

    async def reap(
        self, now: datetime, known_types: Sequence[str], limit: int = 500, tx: Tx | None = None
    ) -> list[Reaped]:
        """Take back runs whose lease ran out; `known_types` are given up after their last try."""
        values = {
            "now": self._time(now),
            "forsaken": self._time(now - ORPHAN_GRACE),
            "known": self._list(known_types),
            "limit": limit,
        }
        rows = await self._reap(values, executor(self.adapter, tx))
        changed_states = (
            Status.PENDING,
            Status.FAILED,
        )  # others were cancelled before, and lost only their lease
        return [
            Reaped(row[0], row[1], row[2])
            for row in rows
            if row[3] == Status.LEASED and row[2] in changed_states
        ]

    @abstractmethod
    async def _reap(self, values: dict[str, Any], on: Executor) -> list[Row]:
        """Id, type, state and former state of the runs that were taken back."""

    @abstractmethod
    async def has_expired(self, now: datetime) -> bool:
        """Whether there is anything to reap; a read of the primary, so that idle workers do not write."""

    async def bring_back(self, leases: Sequence[tuple[str, datetime, datetime]]) -> int:
        """Shorten impossible leases, given as type, latest possible end and the end they get; how many."""
        if not leases:
            return 0
        soonest = self._time(min(latest for _, latest, _ in leases))
        rows = [(type, self._time(latest), self._time(until)) for type, latest, until in leases]
        return len(await self._bring_back(rows, soonest))

    @abstractmethod
    async def _bring_back(self, rows: Sequence[tuple[str, Any, Any]], soonest: Any) -> list[Row]: ...

    async def prune(
        self, before: datetime, limit: int = 500, *, after: str = "", look: int = 5_000, table: str = TABLE
    ) -> tuple[int, str]:
        """Remove finished runs that were not changed since `before`, with their events, steps and signals.

        Looks at up to `look` runs behind the id `after`, of all or of a partition; how many went, and where
        to go on, or "".
        """
        prunable = self._sql["prunable"].on_table(TABLE, table)
        # Ids rise with time; those an application gave its jobs may be beyond all that were made here.
        made_later = first_id(datetime.now(UTC) + _A_DAY)
        rows: list[Row] = []
        for low, high in ((after, first_id(before)), (max(after, made_later), _LAST_ID)):
            if low < high and len(rows) < look:
                values = {"after": low, "below": high, "before": self._time(before)}
                rows += await self.adapter.fetch(prunable.bind(**values, look=look - len(rows)))
        old = [row[0] for row in rows if row[1]]
        count = 0
        for n in range(0, len(old), limit):
            count += await self._remove(old[n : n + limit], self._time(before))
        return count, rows[-1][0] if len(rows) == look else ""

    @abstractmethod
    async def _remove(self, ids: Sequence[str], before: Any) -> int: ...

    async def depth(self, now: datetime, most: int = UNBOUNDED) -> list[tuple[str, int, datetime]]:
        """Type, number and oldest due time of the runs that are due and not yet claimed.

        Of a type and priority, at most so many are counted.
        """
        rows = await self.adapter.fetch(self._sql["depth"].bind(now=self._time(now), most=most))
        return [(row[0], row[1], instant(row[2])) for row in rows]

    async def write_on(self, run: Executor, sql: Sql) -> list[Row]:
        """Run a statement that stores rows of a run."""
        return await run.write(sql)

    # -- the form of values

    def bind(self, statement: str, /, **values: Any) -> Sql:
        """A statement with its values; times are brought to the form of the database."""
        return self._sql[statement].bind(
            **{k: self._time(v) if isinstance(v, datetime) else v for k, v in values.items()}
        )
