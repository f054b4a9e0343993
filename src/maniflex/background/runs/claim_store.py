"""The rows of runs as workers change them: claim, renew, settle, in either database.

A worker's writes name the token of its claim, so a run that another worker took stays untouched; each write
returns the ids of the runs it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import getrandbits
from threading import Lock
from typing import Any

import msgspec

from maniflex._ids import new_id
from maniflex.background.json_text import decode, instant
from maniflex.background.leases import Held
from maniflex.background.runs.claim_cursor import ClaimCursor, ClaimPosition
from maniflex.background.runs.rows import ClaimedRun, Renewed, RunChange, RunState
from maniflex.background.statements import load
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import (
    Conflict,
    DatabaseError,
    SerializationFailure,
    Timeout,
    TransactionError,
)
from maniflex.sql.codec import encode_datetime
from maniflex.sql.statement import Dialect, Sql

MOST_EVENTS = 10_000  # of one statement


class ClaimedRows:
    """The statements of workers about the runs they claim."""

    def __init__(self, adapter: Adapter, *, logged: bool = True) -> None:
        self.adapter = adapter
        self._logged = logged
        self._sqlite = adapter.dialect is Dialect.SQLITE
        self._sql = load("runs", adapter.dialect)

    async def claim(
        self,
        ranges: Sequence[tuple[str, str]],
        limit: int,
        owner: str,
        now: datetime,
        lease: timedelta,
        leases: dict[str, timedelta],
        token: str,
        cursor: ClaimCursor,
    ) -> list[ClaimedRun]:
        """Lease up to `limit` due runs whose type lies in one of the ranges, most urgent first."""
        values = {
            "owner": owner,
            "lease": token,
            "now": self._time(now),
            "until": self._time(now + lease),
            "untils": to_json({t: encode_datetime(now + d) for t, d in leases.items()}),
        }
        if self._sqlite:
            statements = [self._sql["claim"].bind(**values, limit=limit, ranges=to_json(ranges))]
            if self._logged:
                statements.append(self._sql["log_claim"].bind(**values, **event_ids()))
            return await self._claim_here(statements, self._sql["just_claimed"].bind(**values), token)
        lows, highs = zip(*ranges, strict=True)
        values |= {"lows": lows, "highs": highs}
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
        statement = self._sql["claim"].bind(
            **values,
            limit=limit,
            types=types,
            priorities=priorities,
            run_ats=run_ats,
            last_ids=last_ids,
            **self._log(),
        )
        return self._runs_of_answer(await self.adapter.write(statement), values["lease"])

    async def find_claimed(self, token: str) -> list[ClaimedRun]:
        """The runs that the claim of this token took and still holds."""
        try:
            return self._runs_of_answer(
                await self.adapter.write(self._sql["claimed"].bind(lease=token)), token
            )
        except DatabaseError as error:
            if not self._sqlite or isinstance(error, TransactionError):
                raise
            return await self._one_by_one(token)

    async def _claim_here(self, claim: Sequence[Sql], read: Sql, token: str) -> list[ClaimedRun]:
        """Claim and read what was claimed, in one transaction; on SQLite."""
        try:
            return self._runs_of_answer((await self.adapter.batch([*claim, read]))[-1], token)
        except DatabaseError as error:
            if isinstance(error, TransactionError):
                raise
        # SQLite takes anything for a text, and one of them may hold what cannot be read.
        await self.adapter.batch(claim)
        return await self._one_by_one(token)

    async def _one_by_one(self, token: str) -> list[ClaimedRun]:
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

    def _runs_of_answer(self, rows: Sequence[Row], token: str) -> list[ClaimedRun]:
        """The runs of a claim, the most urgent first."""
        run_rows: Sequence[Any] = decode(rows[0][0]) if self._sqlite else rows
        runs = _runs_of_rows(run_rows, token)
        return _sort_by_urgency(runs) if self._sqlite else runs

    async def renew(self, adapter: Executor, held: Sequence[tuple[Held, datetime]]) -> Renewed:
        """Extend leases; the ids of those that are no longer ours, and of those that have to wait."""
        statement = self._sql["renew"]
        if self._sqlite:
            rows = [(h.id, h.lease, encode_datetime(until)) for h, until in held]
            renewed_rows = await adapter.write(statement.bind(rows=to_json(rows)))
        else:
            ids, leases, untils = zip(*((h.id, h.lease, until) for h, until in held), strict=True)
            renewed_rows = await adapter.write(statement.bind(ids=ids, leases=leases, untils=untils))
        gone_ids = {h.id for h, _ in held} - {row[0] for row in renewed_rows if row[1] == "leased"}
        return Renewed(gone_ids, set() if self._sqlite else {row[0] for row in renewed_rows if row[2]})

    async def succeed(self, successes: Sequence[tuple[Held, str | None]], now: datetime) -> set[str]:
        """Settle runs with their results; the ids of those that were still ours and not locked."""
        stamp = self._time(now)
        if self._sqlite:
            return await self._succeed(successes, stamp)
        ids, leases, results = zip(*((h.id, h.lease, result) for h, result in successes), strict=True)
        result_list = results if any(results) else ()  # `unnest` fills up what is missing
        values = {"ids": ids, "leases": leases, "results": result_list, "now": stamp, **self._log()}
        try:
            rows = await self.adapter.write(self._sql["succeed"].bind(**values))
        except (Timeout, SerializationFailure):  # someone has locked one of them
            rows = await self.adapter.write(self._sql["succeed_unlocked"].bind(**values))
        return {row[0] for row in rows}

    async def _succeed(self, successes: Sequence[tuple[Held, str | None]], stamp: Any) -> set[str]:
        rows = to_json([(h.id, h.lease, result) for h, result in successes])
        log = []
        if self._logged:
            log.append(self._sql["log_succeed"].bind(rows=rows, now=stamp, **event_ids()))
        try:
            async with self.adapter.transaction() as tx:
                all_at_once = self._sql["succeed"].bind(rows=rows, now=stamp)
                [[count]] = (await tx.batch([*log, all_at_once, self._sql["changes"].bind()]))[-1]
                if count != len(successes):
                    raise _NotAll
        except _NotAll:
            some = self._sql["succeed_some"].bind(rows=rows, now=stamp)
            return {row[0] for row in (await self.adapter.batch([*log, some]))[-1]}
        return {h.id for h, _ in successes}

    async def settle(self, changes: Sequence[RunChange], now: datetime, tx: Tx | None = None) -> set[str]:
        """Settle runs that did not succeed; the ids of those that were still ours."""
        stamp = self._time(now)
        rows = [
            (
                *c.held,
                c.status,
                None if c.run_at is None else self._time(c.run_at),
                c.unspent,
                c.error,
                c.last_error,
                c.waiting_for,
            )
            for c in changes
        ]
        if self._sqlite:
            log = [(*c.held, c.event, c.data) for c in changes]
            return await self._settle_rows("settle", to_json(rows), log, stamp, tx)
        names = ("ids", "leases", "statuses", "run_ats", "unspents", "errors", "last_errors", "waits")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        events, datas = [c.event for c in changes], [c.data for c in changes]
        statement = self._sql["settle"].bind(**columns, events=events, datas=datas, now=stamp, **self._log())
        return {row[0] for row in await executor(self.adapter, tx).write(statement)}

    async def _settle_rows(
        self, name: str, rows: str, log: Sequence[Any], stamp: Any, tx: Tx | None = None
    ) -> set[str]:
        statements = [self._sql[name].bind(rows=rows, now=stamp)]
        if self._logged:
            statements.insert(0, self._sql["log_settle"].bind(rows=to_json(log), now=stamp, **event_ids()))
        run = executor(self.adapter, tx)
        results = await run.batch(statements)
        return {row[0] for row in results[-1]}

    async def let_go(self, held: Sequence[Held], now: datetime) -> set[str]:
        """Clear the leases of runs that were cancelled while we had them; which those are."""
        statement, stamp = self._sql["let_go"], self._time(now)
        if self._sqlite:
            sql = statement.bind(rows=to_json(held), now=stamp)
        else:
            ids, leases = zip(*held, strict=True)
            sql = statement.bind(ids=ids, leases=leases, now=stamp)
        return {row[0] for row in await self.adapter.write(sql)}

    async def try_lock(self, ids: Sequence[str], tx: Tx) -> set[str]:
        """Lock runs for the transaction; the ids of those that no other transaction has locked."""
        if self._sqlite:  # the transaction is the lock
            return set(ids)
        return {row[0] for row in await tx.write(self._sql["try_lock"].bind(ids=ids))}

    async def states(self, ids: Sequence[str]) -> dict[str, RunState]:
        """How things stand with these runs, as the primary knows it."""
        id_list: Any = to_json(ids) if self._sqlite else ids
        rows = await executor(self.adapter).write(self._sql["states"].bind(ids=id_list))
        return {row[0]: RunState(row[1], row[2], row[3], instant(row[4])) for row in rows}

    async def is_cancelled(self, held: Held) -> bool:
        """Whether the run was cancelled; `LeaseLost` is for the caller to tell by `owns`."""
        return await self._state(held) == ("cancelled", held.lease)

    async def owns(self, held: Held) -> bool:
        """Whether the run is leased by this claim right now."""
        return await self._state(held) == ("leased", held.lease)

    async def _state(self, held: Held) -> tuple[Any, ...] | None:
        """As the primary knows it, and through the open transaction: SQLite has no second writer."""
        rows = await executor(self.adapter).write(self._sql["state"].bind(id=held.id))
        return tuple(rows[0]) if rows else None

    # -- small things

    def bind(self, statement: str, /, **values: Any) -> Sql:
        """A statement with its values; times are brought to the form of the database."""
        return self._sql[statement].bind(
            **{k: self._time(v) if isinstance(v, datetime) else v for k, v in values.items()}
        )

    def _current(self, tx: Tx | None) -> Executor:
        return executor(self.adapter, tx)

    def _time(self, moment: datetime) -> Any:
        return encode_datetime(moment) if self._sqlite else moment

    def _log(self) -> dict[str, Any]:
        return {"logged": self._logged, **event_ids()}


def _runs_of_rows(rows: Sequence[Row], token: str) -> list[ClaimedRun]:
    return [ClaimedRun(*(*row[:-1], Held(row[0], token), bool(row[-1]))) for row in rows]


def _sort_by_urgency(runs: list[ClaimedRun]) -> list[ClaimedRun]:
    runs.sort(key=lambda run: (-run.priority, run.run_at, run.id))
    return runs


class _NotAll(Exception):
    """Not all of these runs are ours any more: undo, and ask which."""


class EventIds:
    """What a statement makes the ids of its event rows from: a prefix of now and where to count from.

    Later statements of a process count on, so that the ids of a run's events are in their order.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._prefix = ""
        self._tail = 0

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            prefix = new_id()[:24]
            self._tail = self._tail + MOST_EVENTS if prefix == self._prefix else getrandbits(46)
            self._prefix = prefix
            return {"event": prefix, "tail": self._tail}


event_ids = EventIds()


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def rows_of(run: Executor, statements: Sequence[Sql]) -> list[Row]:
    """The rows of the first statement; the others go along in its transaction."""
    if len(statements) == 1:
        return await run.write(statements[0])
    return (await run.batch(statements))[0]
