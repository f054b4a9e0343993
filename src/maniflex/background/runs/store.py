"""The rows of runs: submit, claim, renew, settle, reap and prune, in either database.

Every change and its event rows go in one transaction. A worker's writes name the token of its
claim, so what is no longer its own stays untouched; each says which runs it did change.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import getrandbits
from threading import Lock
from typing import Any

import msgspec

from maniflex._ids import new_id
from maniflex.background.jsons import decode, instant
from maniflex.background.lease import Held
from maniflex.background.primary import Primary
from maniflex.background.runs.rows import Change, Claimed, Draft, Reaped, Renewed, State
from maniflex.background.runs.trail import Spot, Trail
from maniflex.background.statements import Statement, load
from maniflex.db.current import executor
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.errors import (
    Conflict,
    DatabaseError,
    RequestError,
    SerializationFailure,
    Timeout,
    TransactionError,
    Unavailable,
)
from maniflex.sql.codec import encode_datetime
from maniflex.sql.statement import Dialect, Sql

CHANNEL = "maniflex_work"
FORSAKEN = timedelta(minutes=5)  # a run nobody knows may wait this long for one who does
SEPARATOR = "\x1e"  # no JSON text holds it
MOST_EVENTS = 10_000  # of one statement
_A_DAY = timedelta(days=1)
_LAST_ID = "\U0010ffff"


PASSING = (TransactionError, Unavailable, Timeout)


def passes(error: RequestError) -> bool:
    """Whether it is about this moment and not about the statement; that may have been done all the same."""
    return error.retryable or isinstance(error, PASSING)


class RunStore:
    """All statements about runs on one database."""

    def __init__(self, adapter: Adapter, *, logged: bool = True) -> None:
        self.adapter = adapter
        self._logged = logged
        self._sqlite = adapter.dialect is Dialect.SQLITE
        self._sql = load("runs", adapter.dialect)

    # -- what producers do

    async def submit(
        self, draft: Draft, rows: Sequence[tuple[str, str, str | None]], now: datetime, tx: Tx | None = None
    ) -> set[str]:
        """Store runs given as id, payload and idempotency key; which were new."""
        due = draft.run_at <= now
        common = {
            "type": draft.type,
            "priority": draft.priority,
            "max_attempts": draft.max_attempts,
            "run_at": self._time(draft.run_at),
            "timeout": draft.timeout,
            "group_key": draft.group_key,
            "actor_id": draft.actor_id,
            "tenant_id": draft.tenant_id,
            "trace_id": draft.trace_id,
            "parent_id": draft.parent_id,
            "now": self._time(now),
        }
        run = executor(self.adapter, tx)
        if self._sqlite:
            text = _json(rows)
            statements = [self._sql["submit"].bind(rows=text, **common)]
            if self._logged:
                statements.append(self._sql["log_submit"].bind(rows=text, now=common["now"], **_event_ids()))
            return {row[0] for row in await _rows(run, statements)}
        ids, payloads, keys = zip(*rows, strict=True)
        common |= {"due": due, "channel": CHANNEL, **self._log()}
        if any(keys) or any(SEPARATOR in id for id in ids):
            statement = self._sql["submit"].bind(ids=ids, payloads=payloads, keys=keys, **common)
            return {row[0] for row in await run.write(statement)}
        texts = {"ids": SEPARATOR.join(ids), "payloads": SEPARATOR.join(payloads)}
        await run.write(self._sql["submit_all"].bind(**texts, **common))
        return set(ids)

    async def by_keys(self, keys: Sequence[str], tx: Tx | None = None) -> dict[str, str]:
        """Idempotency key → id of the live run that has it."""
        given: Any = _json(keys) if self._sqlite else keys
        rows = await self._current(tx).write(self._sql["by_keys"].bind(keys=given))
        return {row[1]: row[0] for row in rows}

    async def cancel(self, run_id: str, now: datetime, *, running: bool = True, tx: Tx | None = None) -> bool:
        return await self._change_one("cancel", "cancelled", run_id, now, tx, running=running)

    async def retry(self, run_id: str, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("retry", "retried", run_id, now, tx)

    async def delete(self, run_id: str, reason: str | None, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("delete", "deleted", run_id, now, tx, reason=reason)

    async def awaken_parents(self, ids: Sequence[str], now: datetime) -> bool:
        """Let the runs that wait for one of these go on, as far as those are over; whether any did."""
        values = {"ids": _json(ids) if self._sqlite else ids, "now": self._time(now), "channel": CHANNEL}
        return bool(await self.adapter.write(self._sql["awaken_parents"].bind(**values)))

    async def _change_one(
        self, name: str, event: str, run_id: str, now: datetime, tx: Tx | None, **given: Any
    ) -> bool:
        """Change one run if its state allows it; whether it did."""
        statement = self._sql[name]
        values = {"id": run_id, "now": self._time(now), **given, **self._log(), "channel": CHANNEL}
        statements = [statement.bind(**values)]
        if self._sqlite and self._logged:
            data = _json({"reason": given["reason"]}) if "reason" in given else None
            log = self._sql["log_one"].bind(**values, event_type=event, data=data)
            statements.append(log)
        return bool(await _rows(executor(self.adapter, tx), statements))

    # -- what workers do

    async def claim(
        self,
        ranges: Sequence[tuple[str, str]],
        limit: int,
        owner: str,
        now: datetime,
        lease: timedelta,
        leases: dict[str, timedelta],
        token: str,
        trail: Trail,
    ) -> list[Claimed]:
        """Lease up to `limit` due runs whose type lies in one of the ranges, most urgent first."""
        values = {
            "owner": owner,
            "lease": token,
            "now": self._time(now),
            "until": self._time(now + lease),
            "untils": _json({t: encode_datetime(now + d) for t, d in leases.items()}),
        }
        if self._sqlite:
            statements = [self._sql["claim"].bind(**values, limit=limit, ranges=_json(ranges))]
            if self._logged:
                statements.append(self._sql["log_claim"].bind(**values, **_event_ids()))
            return await self._claim_here(statements, self._sql["just_claimed"].bind(**values), token)
        lows, highs = zip(*ranges, strict=True)
        values |= {"lows": lows, "highs": highs}
        claimed = []
        if spots := trail.spots(limit, now):
            claimed = await self._claim(values, limit, spots)
        if len(claimed) < limit:
            trail.looked(now)
            try:
                claimed += await self._claim(values, limit - len(claimed), ())
            except Conflict:
                if not claimed:
                    raise
        trail.left(claimed, full=len(claimed) == limit)
        return claimed

    async def _claim(self, values: dict[str, Any], limit: int, spots: Sequence[Spot]) -> list[Claimed]:
        types, priorities, run_ats, last_ids = zip(*spots, strict=True) if spots else ((),) * 4
        statement = self._sql["claim"].bind(
            **values,
            limit=limit,
            types=types,
            priorities=priorities,
            run_ats=run_ats,
            last_ids=last_ids,
            **self._log(),
        )
        return self._taken(await self.adapter.write(statement), values["lease"])

    async def claimed(self, token: str) -> list[Claimed]:
        """What the claim of this token took and still has."""
        try:
            return self._taken(await self.adapter.write(self._sql["claimed"].bind(lease=token)), token)
        except DatabaseError as error:
            if not self._sqlite or isinstance(error, TransactionError):
                raise
            return await self._one_by_one(token)

    async def _claim_here(self, claim: Sequence[Sql], read: Sql, token: str) -> list[Claimed]:
        """Claim and read what was claimed, in one transaction; on SQLite."""
        try:
            return self._taken((await self.adapter.batch([*claim, read]))[-1], token)
        except DatabaseError as error:
            if isinstance(error, TransactionError):
                raise
        # SQLite takes anything for a text, and one of them may hold what cannot be read.
        await self.adapter.batch(claim)
        return await self._one_by_one(token)

    async def _one_by_one(self, token: str) -> list[Claimed]:
        """What a claim took, where reading all of it at once failed; what cannot be read has no payload."""
        rows: list[Row] = []
        for [id] in await self.adapter.write(self._sql["claimed_ids"].bind(lease=token)):
            try:
                rows += await self.adapter.write(self._sql["claimed_one"].bind(id=id))
            except DatabaseError as error:
                if isinstance(error, TransactionError):
                    raise
                rows += await self.adapter.write(self._sql["claimed_unreadable"].bind(id=id))
        return _ordered([_claimed(row, token) for row in rows])

    def _taken(self, rows: Sequence[Row], token: str) -> list[Claimed]:
        """The runs of a claim, the most urgent first."""
        found: Sequence[Any] = decode(rows[0][0]) if self._sqlite else rows
        claimed = [_claimed(row, token) for row in found]
        return _ordered(claimed) if self._sqlite else claimed

    async def renew(self, adapter: Executor, held: Sequence[tuple[Held, datetime]]) -> Renewed:
        """Extend leases; the ids of those that are no longer ours, and of those that have to wait."""
        statement = self._sql["renew"]
        if self._sqlite:
            rows = [(h.id, h.lease, encode_datetime(until)) for h, until in held]
            kept = await adapter.write(statement.bind(rows=_json(rows)))
        else:
            ids, leases, untils = zip(*((h.id, h.lease, until) for h, until in held), strict=True)
            kept = await adapter.write(statement.bind(ids=ids, leases=leases, untils=untils))
        gone = {h.id for h, _ in held} - {row[0] for row in kept if row[1] == "leased"}
        return Renewed(gone, set() if self._sqlite else {row[0] for row in kept if row[2]})

    async def succeed(self, done: Sequence[tuple[Held, str | None]], now: datetime) -> set[str]:
        """Settle runs with their results; the ids of those that were still ours and nobody had locked."""
        stamp = self._time(now)
        if self._sqlite:
            return await self._succeed(done, stamp)
        ids, leases, results = zip(*((h.id, h.lease, result) for h, result in done), strict=True)
        given = results if any(results) else ()  # `unnest` fills up what is missing
        values = {"ids": ids, "leases": leases, "results": given, "now": stamp, **self._log()}
        try:
            rows = await self.adapter.write(self._sql["succeed"].bind(**values))
        except (Timeout, SerializationFailure):  # someone has locked one of them
            rows = await self.adapter.write(self._sql["succeed_unlocked"].bind(**values))
        return {row[0] for row in rows}

    async def _succeed(self, done: Sequence[tuple[Held, str | None]], stamp: Any) -> set[str]:
        rows = _json([(h.id, h.lease, result) for h, result in done])
        log = []
        if self._logged:
            log.append(self._sql["log_succeed"].bind(rows=rows, now=stamp, **_event_ids()))
        try:
            async with self.adapter.transaction() as tx:
                all_at_once = self._sql["succeed"].bind(rows=rows, now=stamp)
                [[changed]] = (await tx.batch([*log, all_at_once, self._sql["changes"].bind()]))[-1]
                if changed != len(done):
                    raise _NotAll
        except _NotAll:
            some = self._sql["succeed_some"].bind(rows=rows, now=stamp)
            return {row[0] for row in (await self.adapter.batch([*log, some]))[-1]}
        return {h.id for h, _ in done}

    async def settle(self, changes: Sequence[Change], now: datetime, tx: Tx | None = None) -> set[str]:
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
            return await self._settled("settle", _json(rows), log, stamp, tx)
        names = ("ids", "leases", "statuses", "run_ats", "unspents", "errors", "last_errors", "waits")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        events, datas = [c.event for c in changes], [c.data for c in changes]
        statement = self._sql["settle"].bind(**columns, events=events, datas=datas, now=stamp, **self._log())
        return {row[0] for row in await executor(self.adapter, tx).write(statement)}

    async def _settled(
        self, name: str, rows: str, log: Sequence[Any], stamp: Any, tx: Tx | None = None
    ) -> set[str]:
        statements = [self._sql[name].bind(rows=rows, now=stamp)]
        if self._logged:
            statements.insert(0, self._sql["log_settle"].bind(rows=_json(log), now=stamp, **_event_ids()))
        run = executor(self.adapter, tx)
        results = await run.batch(statements)
        return {row[0] for row in results[-1]}

    async def let_go(self, held: Sequence[Held], now: datetime) -> set[str]:
        """Clear the leases of runs that were cancelled while we had them; which those are."""
        statement, stamp = self._sql["let_go"], self._time(now)
        if self._sqlite:
            sql = statement.bind(rows=_json(held), now=stamp)
        else:
            ids, leases = zip(*held, strict=True)
            sql = statement.bind(ids=ids, leases=leases, now=stamp)
        return {row[0] for row in await self.adapter.write(sql)}

    async def try_lock(self, ids: Sequence[str], tx: Tx) -> set[str]:
        """Lock runs for the transaction; those that nobody else has."""
        if self._sqlite:  # the transaction is the lock
            return set(ids)
        return {row[0] for row in await tx.write(self._sql["try_lock"].bind(ids=ids))}

    async def states(self, ids: Sequence[str]) -> dict[str, State]:
        """How things stand with these runs, as the primary knows it."""
        given: Any = _json(ids) if self._sqlite else ids
        rows = await executor(self.adapter).write(self._sql["states"].bind(ids=given))
        return {row[0]: State(row[1], row[2], row[3], instant(row[4])) for row in rows}

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

    async def turn_back(self, now: datetime, more: int, tx: Tx, limit: int = 500) -> None:
        """Let expired runs that spent their attempts, and have steps to take back, go on just for that."""
        values = {"now": self._time(now), "limit": limit, **_event_ids()}
        rows = await tx.write(self._sql["turn_back"].bind(**values))
        ids = [row[0] for row in rows]
        if ids:
            given: Any = _json(ids) if self._sqlite else ids
            await tx.execute(self._sql["allow_turned"].bind(ids=given, more=more, now=values["now"]))

    async def reap(
        self, now: datetime, known: Sequence[str], limit: int = 500, tx: Tx | None = None
    ) -> list[Reaped]:
        """Take back runs whose lease ran out; `known` types are given up after their last try."""
        values = {
            "now": self._time(now),
            "forsaken": self._time(now - FORSAKEN),
            "known": _json(known) if self._sqlite else known,
            "limit": limit,
            **self._log(),
        }
        run = executor(self.adapter, tx)
        if self._sqlite:
            statements = [self._sql["reap"].bind(**values)]
            if self._logged:
                statements.insert(0, self._sql["log_reap"].bind(**values))
            rows = (await run.batch(statements))[-1]
        else:
            rows = await run.write(self._sql["reap"].bind(**values))
        freed = ("pending", "failed")  # others were cancelled before, and only lost their lease now
        return [Reaped(row[0], row[1], row[2]) for row in rows if row[3] == "leased" and row[2] in freed]

    async def has_expired(self, now: datetime) -> bool:
        """Whether there is anything to reap; a read, so that idle workers do not write."""
        return bool(await Primary(self.adapter).fetch(self._sql["expired"].bind(now=self._time(now))))

    async def bring_back(self, leases: Sequence[tuple[str, datetime, datetime]]) -> int:
        """Shorten impossible leases, given as type, latest possible end and the end they get; how many."""
        if not leases:
            return 0
        soonest = self._time(min(latest for _, latest, _ in leases))
        rows = [(type, self._time(latest), self._time(until)) for type, latest, until in leases]
        if self._sqlite:
            statement = self._sql["bring_back"].bind(rows=_json(rows), soonest=soonest)
        else:
            types, latests, untils = zip(*rows, strict=True)
            statement = self._sql["bring_back"].bind(
                types=types, latests=latests, untils=untils, soonest=soonest
            )
        return len(await self.adapter.write(statement))

    async def prune(
        self, before: datetime, limit: int = 500, *, after: str = "", look: int = 5_000
    ) -> tuple[int, str]:
        """Remove finished runs that nobody changed since `before`, with all that belongs to them.

        Looks at up to `look` runs behind the id `after`; how many went, and where to go on, or "".
        """
        # Ids rise with time; those an application gave its jobs may be beyond all that were made here.
        made_later = _first_id(datetime.now(UTC) + _A_DAY)
        seen: list[Row] = []
        for low, high in ((after, _first_id(before)), (max(after, made_later), _LAST_ID)):
            if low < high and len(seen) < look:
                values = {"after": low, "below": high, "before": self._time(before)}
                seen += await self.adapter.fetch(self._sql["prunable"].bind(**values, look=look - len(seen)))
        old = [row[0] for row in seen if row[1]]
        removed = 0
        for n in range(0, len(old), limit):
            removed += await self._remove(old[n : n + limit], self._time(before))
        return removed, seen[-1][0] if len(seen) == look else ""

    async def _remove(self, ids: Sequence[str], before: Any) -> int:
        if not self._sqlite:
            return len(await self.adapter.write(self._sql["prune"].bind(ids=ids, before=before)))
        async with self.adapter.transaction() as tx:
            rows = await tx.write(self._sql["prune"].bind(ids=_json(ids), before=before))
            gone = _json([row[0] for row in rows])
            names = ("prune_events", "prune_steps", "prune_signals")
            await tx.batch([self._sql[name].bind(ids=gone) for name in names])
        return len(rows)

    async def depth(self, now: datetime) -> list[tuple[str, int, datetime]]:
        """Type, number and oldest due time of the runs that are due and not yet claimed."""
        rows = await self.adapter.fetch(self._sql["depth"].bind(now=self._time(now)))
        return [(row[0], row[1], instant(row[2])) for row in rows]

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
        return {"logged": self._logged, **_event_ids()}


def _first_id(moment: datetime) -> str:
    """The text that ids made from this moment on are greater than."""
    millisecond = f"{int(moment.timestamp() * 1000):012x}"
    return f"{millisecond[:8]}-{millisecond[8:]}"


def _claimed(row: Row, token: str) -> Claimed:
    columns: Sequence[Any] = (*row[:-1], Held(row[0], token), bool(row[-1]))
    return Claimed(*columns)


def _ordered(claimed: list[Claimed]) -> list[Claimed]:
    claimed.sort(key=lambda run: (-run.priority, run.run_at, run.id))
    return claimed


def schema(name: str, dialect: Dialect) -> list[Sql]:
    """The statements that make what a model cannot declare, in order."""
    found = [(title, s) for title, s in load(name, dialect).items() if title.startswith("schema_")]
    return [statement.bind() for _, statement in sorted(found, key=_number)]


def _number(item: tuple[str, Statement]) -> int:
    return int(item[0].removeprefix("schema_"))


class _NotAll(Exception):
    """Not all of these runs are ours any more: undo, and ask which."""


class _EventIds:
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


_event_ids = _EventIds()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def _rows(run: Executor, statements: Sequence[Sql]) -> list[Row]:
    """The rows of the first statement; the others go along in its transaction."""
    if len(statements) == 1:
        return await run.write(statements[0])
    return (await run.batch(statements))[0]
