"""The rows of runs on PostgreSQL: lists go as arrays, and each statement writes its event rows itself."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from maniflex._ids import event_ids
from maniflex._json import encode_plain
from maniflex.background.leases import Held
from maniflex.background.partitions.layout import RUNS, Partition, PartitionLayout, mend_refusal
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import (
    ClaimCursor,
    ClaimedRun,
    ClaimPosition,
    ClaimTerms,
    NewRun,
    Renewed,
    RunChange,
    RunDraft,
)
from maniflex.background.runs.store import CHANNEL, RunStore
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import (
    Conflict,
    ConstraintViolation,
    DatabaseError,
    SerializationFailure,
    Timeout,
    TransactionError,
)
from maniflex.sql.statement import NamedStatement, Sql

SEPARATOR = "\x1e"  # no JSON text holds it
FULL_LOOK_EVERY = 1.0  # seconds


class PostgresRunStore(RunStore):
    """All statements about runs on PostgreSQL, where rows may be locked by others."""

    def __init__(
        self, adapter: Adapter, *, logged: bool = True, known: KnownPartitions | None = None
    ) -> None:
        super().__init__(adapter, logged=logged)
        self._known = known or KnownPartitions()
        self._of_partitions = PartitionedStatements(self._sql)
        self._submit_new = _without_conflicts(self._sql["submit"])
        self._full_look_at = float("-inf")  # by the monotonic clock

    @asynccontextmanager
    async def steady(self) -> AsyncIterator[Self]:
        adapter = self.adapter.sibling(steady=True)
        await adapter.open()
        try:
            yield type(self)(adapter, logged=self._logged, known=self._known)
        finally:
            await adapter.close()

    async def submit(
        self, draft: RunDraft, rows: Sequence[NewRun], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        common = {
            "type": draft.type,
            "priority": draft.priority,
            "max_attempts": draft.max_attempts,
            "run_at": draft.run_at,
            "timeout": draft.timeout,
            "group_key": draft.group_key,
            "actor_id": draft.actor_id,
            "tenant_id": draft.tenant_id,
            "trace_id": draft.trace_id,
            "traceparent": draft.traceparent,
            "parent_id": draft.parent_id,
            "about": draft.about,
            "now": now,
            "due": draft.run_at <= now,
            "channel": CHANNEL,
            **self._log(),
        }
        run = executor(self.adapter, tx)
        ids, payloads, keys = zip(*rows, strict=True)
        if any(keys) or any(SEPARATOR in id for id in ids):
            submit = self._sql["submit"] if any(keys) else self._submit_new
            statement = submit.bind(ids=ids, payloads=payloads, keys=keys, **common)
            return {row[0] for row in await self.write_on(run, statement)}
        texts = {"ids": SEPARATOR.join(ids), "payloads": SEPARATOR.join(payloads)}
        await self.write_on(run, self._sql["submit_all"].bind(**texts, **common))
        return set(ids)

    async def write_on(self, run: Executor, sql: Sql) -> list[Row]:
        try:
            return await run.write(sql)
        except ConstraintViolation as error:
            await mend_refusal(self.adapter, run, error)
            return await run.write(sql)

    async def _change_one(
        self, name: str, event: str, run_id: str, now: datetime, tx: Tx | None, **extra: Any
    ) -> bool:
        values = {"id": run_id, "now": now, **extra, **self._log(), "channel": CHANNEL}
        return bool(await self.write_on(executor(self.adapter, tx), self._sql[name].bind(**values)))

    # -- what workers do

    def learn_partitions(self, layout: PartitionLayout | None, open: Sequence[str] = ()) -> None:
        self._known.learn(layout, open)

    def due_time(self, run: ClaimedRun) -> datetime:
        moment: datetime = run.run_at
        return moment

    async def claim(self, terms: ClaimTerms, cursor: ClaimCursor | None = None) -> list[ClaimedRun]:
        now, limit = terms.now, terms.limit
        lows, highs = zip(*terms.ranges, strict=True)
        untils = {type: now + lease for type, lease in terms.leases.items()}
        values = {
            "owner": terms.owner,
            "lease": terms.token,
            "now": now,
            "until": now + terms.lease,
            "untils": encode_plain(untils) if untils else "{}",
            "lows": lows,
            "highs": highs,
        }
        if cursor is None:
            return await self._claim(values, limit, ())
        runs = []
        if positions := cursor.positions(limit, now):
            runs = await self._claim(values, limit, positions)
        if len(runs) < limit:
            cursor.restart(now)
            try:
                runs += await self._claim(values, limit - len(runs), ())
            except Conflict:
                if not runs:
                    raise
        cursor.advance(runs, full=len(runs) == limit)
        return runs

    async def _claim(
        self, values: dict[str, Any], limit: int, positions: Sequence[ClaimPosition]
    ) -> list[ClaimedRun]:
        types, priorities, run_ats, last_ids = zip(*positions, strict=True) if positions else ((),) * 4
        values = {
            **values,
            "limit": limit,
            "types": types,
            "priorities": priorities,
            "run_ats": run_ats,
            "last_ids": last_ids,
            **self._log(),
        }
        partitions = self._partitions_to_claim()
        rows = await self._write("claim", values, partitions)
        runs = _runs_of_rows(rows, values["lease"])
        if not partitions and runs and self._known.layout is not None:
            self._known.note_claimed([run.id for run in runs])
        return runs

    def _partitions_to_claim(self) -> tuple[str, ...]:
        """Those where something may be due; once a second all, as a run of long ago may have been retried."""
        now = time.monotonic()
        if self._known.open and now - self._full_look_at < FULL_LOOK_EVERY:
            return self._known.open
        self._full_look_at = now
        return ()

    async def find_claimed(self, token: str) -> list[ClaimedRun]:
        return _runs_of_rows(await self.adapter.write(self._sql["claimed"].bind(lease=token)), token)

    async def renew(self, on: Executor, held: Sequence[tuple[Held, datetime]]) -> Renewed:
        ids, leases, untils = zip(*((h.id, h.lease, until) for h, until in held), strict=True)
        rows = await on.write(
            self._on_table("renew").bind(ids=ids, leases=leases, untils=untils, **_range(ids))
        )
        gone_ids = set(ids) - {row[0] for row in rows if row[1] == Status.LEASED}
        return Renewed(gone_ids, {row[0] for row in rows if row[2]})

    async def succeed(
        self, successes: Sequence[tuple[Held, str | None]], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        ids, leases, results = zip(*((h.id, h.lease, result) for h, result in successes), strict=True)
        result_list = results if any(results) else ()  # `unnest` fills up what is missing
        values = {
            "ids": ids,
            "leases": leases,
            "results": result_list,
            "now": now,
            **self._log(),
            **_range(ids),
        }
        if tx is not None:
            rows = await self.write_on(tx, self._on_table("succeed_unlocked").bind_all(values))
            return {row[0] for row in rows}
        try:
            rows = await self._write("succeed", values, self._holder(ids))
        except (Timeout, SerializationFailure):  # someone has locked one of them
            rows = await self.write_on(self.adapter, self._on_table("succeed_unlocked").bind(**values))
        return {row[0] for row in rows}

    async def settle(self, changes: Sequence[RunChange], now: datetime, tx: Tx | None = None) -> set[str]:
        ids = [c.held.id for c in changes]
        values = {
            "ids": ids,
            "leases": [c.held.lease for c in changes],
            "statuses": [c.status for c in changes],
            "run_ats": [c.run_at for c in changes],
            "unspents": [c.unspent for c in changes],
            "errors": [c.error for c in changes],
            "last_errors": [c.last_error for c in changes],
            "waits": [c.waiting_for for c in changes],
            "events": [c.event for c in changes],
            "datas": [c.data for c in changes],
            "now": now,
            **self._log(),
            **_range(ids),
        }
        run = executor(self.adapter, tx)
        if run is self.adapter:
            rows = await self._write("settle", values, self._holder(ids))
        else:
            rows = await self.write_on(run, self._on_table("settle").bind_all(values))
        return {row[0] for row in rows}

    async def let_go(self, held: Sequence[Held], now: datetime) -> set[str]:
        ids, leases = zip(*held, strict=True)
        sql = self._on_table("let_go").bind(ids=ids, leases=leases, now=now, **_range(ids))
        return {row[0] for row in await self.adapter.write(sql)}

    async def try_lock(self, ids: Sequence[str], tx: Tx) -> set[str]:
        return {row[0] for row in await tx.write(self._sql["try_lock"].bind(ids=ids))}

    # -- what looks after them

    async def _reap(self, values: dict[str, Any], on: Executor) -> list[Row]:
        return await self.write_on(on, self._sql["reap"].bind(**values, **self._log()))

    async def has_expired(self, now: datetime) -> bool:
        return bool(await self.adapter.write(self._sql["expired"].bind(now=now)))  # a replica may be behind

    async def _bring_back(self, rows: Sequence[tuple[str, Any, Any]], soonest: Any) -> list[Row]:
        types, latests, untils = zip(*rows, strict=True)
        values = {"types": types, "latests": latests, "untils": untils, "soonest": soonest}
        return await self.adapter.write(self._sql["bring_back"].bind(**values))

    async def _remove(self, ids: Sequence[str], before: Any) -> int:
        return len(await self.adapter.write(self._sql["prune"].bind(ids=ids, before=before)))

    # -- the form of values

    async def _write(self, name: str, values: dict[str, Any], partitions: tuple[str, ...]) -> list[Row]:
        """Run the statement on these partitions, or on the table when there are none."""
        if partitions:
            try:
                return await self.write_on(
                    self.adapter, self._of_partitions.on_partitions(name, partitions).bind_all(values)
                )
            except DatabaseError as error:
                if isinstance(error, TransactionError):
                    raise
                self.learn_partitions(None)  # retention dropped one of them
        return await self.write_on(self.adapter, self._on_table(name).bind_all(values))

    def _holder(self, ids: Sequence[str]) -> tuple[str, ...]:
        if self._known.layout is None:
            return ()
        name = self._known.holder(ids)
        return () if name is None else (name,)

    def _on_table(self, name: str) -> NamedStatement:
        """The statement on the whole table, in the form that suits it."""
        return self._sql[name] if self._known.layout is None else self._of_partitions.on_table(name)

    def _log(self) -> dict[str, Any]:
        return {"logged": self._logged, **event_ids()}


def _runs_of_rows(rows: Sequence[Row], token: str) -> list[ClaimedRun]:
    return [ClaimedRun(*(*row[:-1], Held(row[0], token), row[-1])) for row in rows]


def _range(ids: Sequence[str]) -> dict[str, str]:
    return {"lowest": min(ids), "highest": max(ids)}


def _without_conflicts(submit: NamedStatement) -> NamedStatement:
    """The statement for runs without keys, of which an id in use is a mistake and no answer."""
    return NamedStatement(submit.text.replace("ON CONFLICT DO NOTHING", ""), submit.names)


# The statements about runs in the form for a partitioned table.
#
# Before PostgreSQL leaves a partition out, it locks every partition of the table that a planned statement
# names, so a statement that names the table costs more with each of them. A claim therefore names the few
# partitions where something may be due, and an outcome the one partition that has its runs.


MOST_NAMED = 16  # partitions; a claim of more names the table
_BY_IDS = ("renew", "succeed", "succeed_unlocked", "settle", "let_go")
_COLUMNS = "id, type, status, priority, group_key, run_at, deleted_at"
_LOCKING = re.compile(
    r"taken AS MATERIALIZED \((?P<taken>.*?)\n\), held AS \((?P<held>.*?)\n\), log AS \(", re.DOTALL
)


@dataclass(slots=True)
class KnownPartitions:
    """What the keeper last saw of the partitions of runs; all stores of a process share it."""

    layout: PartitionLayout | None = None  # None when the table has no partitions, or none are known
    open: tuple[str, ...] = ()  # where something may be due; empty when that may be anywhere

    def learn(self, layout: PartitionLayout | None, open: Sequence[str]) -> None:
        self.layout = layout
        self.open = tuple(open) if len(open) <= MOST_NAMED else ()

    def holder(self, ids: Sequence[str]) -> str | None:
        """The partition that has all these runs; None when there are several, or it is the default one."""
        if self.layout is None:
            return None
        lowest, highest = min(ids), max(ids)
        for one in reversed(self.layout.partitions):
            if one.lower <= lowest:
                return one.name if highest < one.upper else None
        return None

    def note_claimed(self, ids: Sequence[str]) -> None:
        """Look everywhere until the keeper has looked again, when a run was found where nothing was due."""
        if self.layout is not None and any(_has_any(one, ids) for one in self._find_closed(self.layout)):
            self.open = ()

    def _find_closed(self, layout: PartitionLayout) -> list[Partition]:
        return [one for one in layout.partitions if one.name not in self.open] if self.open else []


def _has_any(partition: Partition, ids: Sequence[str]) -> bool:
    return any(partition.lower <= id < partition.upper for id in ids)


@dataclass(frozen=True, slots=True)
class PartitionedStatements:
    """The statements by name, on the whole table or on some of its partitions."""

    _plain: Mapping[str, NamedStatement]
    _whole: dict[str, NamedStatement] = field(default_factory=dict)
    _named: dict[tuple[str, tuple[str, ...]], NamedStatement] = field(default_factory=dict)

    def on_table(self, name: str) -> NamedStatement:
        """The statement on the whole table, without opening partitions that it has nothing to do with."""
        if name not in self._whole:
            statement = self._plain[name]
            self._whole[name] = _in_range(statement) if name in _BY_IDS else _with_group_table(statement)
        return self._whole[name]

    def on_partitions(self, name: str, partitions: tuple[str, ...]) -> NamedStatement:
        """The claim on these partitions, or another statement on one of them."""
        key = (name, partitions)
        if key not in self._named:
            if len(self._named) > 100:  # sets of partitions come and go
                self._named.clear()
            if name == "claim":
                self._named[key] = _claim_named(_with_group_table(self._plain[name]), partitions)
            else:
                [partition] = partitions
                self._named[key] = self._plain[name].on_table(RUNS.name, partition)
        return self._named[key]


def _in_range(statement: NamedStatement) -> NamedStatement:
    count = len(statement.names)
    within = f"r.id >= ${count + 1} AND r.id <= ${count + 2}"
    text = re.sub(r"\br\.id = [dm]\.id\b", rf"\g<0> AND {within}", statement.text)
    return NamedStatement(text, (*statement.names, "lowest", "highest"))


def _with_group_table(claim: NamedStatement) -> NamedStatement:
    """The same claim, which asks the small table of groups whether one is busy, and not all partitions."""
    text = claim.text.replace("FROM workflow_run b", "FROM workflow_group b")
    return NamedStatement(text.replace("AND b.lease_until IS NOT NULL", ""), claim.names)


def _claim_named(claim: NamedStatement, partitions: Sequence[str]) -> NamedStatement:
    """The same claim on partitions by name.

    It reads their union. Rows of a union can be neither locked nor changed, so each partition locks its own
    candidates, up to the limit; of all those the most urgent are taken, each by the partition it is in.
    """
    locking = _LOCKING.search(claim.text)
    assert locking is not None
    limit = f"${claim.names.index('limit') + 1}"
    union = " UNION ALL ".join(f"SELECT {_COLUMNS} FROM {one}" for one in partitions)
    reading = claim.text[: locking.start()].replace("FROM workflow_run r", f"FROM ({union}) r")
    places = range(len(partitions))
    taken = [
        _on(locking["taken"], one).replace("r.id", "r.id, r.priority, r.run_at", 1) for one in partitions
    ]
    held = [_on(locking["held"], one) for one in partitions]
    parts = [
        *(f"taken_{n} AS MATERIALIZED ({taken[n]}\n)" for n in places),
        f"taken AS MATERIALIZED (SELECT id FROM ({_union('taken', places)}) t"
        f" ORDER BY priority DESC, run_at, id LIMIT {limit})",
        *(f"held_{n} AS ({held[n]}\n)" for n in places),
        f"held AS ({_union('held', places)})",
        "log AS (",
    ]
    return NamedStatement(reading + ", ".join(parts) + claim.text[locking.end() :], claim.names)


def _on(text: str, partition: str) -> str:
    return text.replace("workflow_run r", f"{partition} r")


def _union(name: str, places: range) -> str:
    return " UNION ALL ".join(f"SELECT * FROM {name}_{n}" for n in places)
