"""The rows of runs: submit, change, reap and prune, in either database; workers write by `claimed_rows`.

Every change and its event rows go in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from maniflex.background.json_text import instant
from maniflex.background.runs.claim_store import ClaimedRows, event_ids, rows_of, to_json
from maniflex.background.runs.rows import Reaped, RunDraft
from maniflex.background.statements import NamedStatement, load
from maniflex.db.current import executor
from maniflex.db.port import Row, Tx
from maniflex.db.primary import Primary
from maniflex.errors import (
    RequestError,
    Timeout,
    TransactionError,
    Unavailable,
)
from maniflex.sql.statement import Dialect, Sql

CHANNEL = "maniflex_work"
ORPHAN_GRACE = timedelta(minutes=5)  # a run of an unknown type may wait this long for a worker that knows it
SEPARATOR = "\x1e"  # no JSON text holds it
_A_DAY = timedelta(days=1)
_LAST_ID = "\U0010ffff"
TRANSIENT_ERRORS = (TransactionError, Unavailable, Timeout)


def passes(error: RequestError) -> bool:
    """Whether it is about this moment and not about the statement; that may have been done all the same."""
    return error.retryable or isinstance(error, TRANSIENT_ERRORS)


class RunStore(ClaimedRows):
    """All statements about runs on one database."""

    # -- what producers do

    async def submit(
        self,
        draft: RunDraft,
        rows: Sequence[tuple[str, str, str | None]],
        now: datetime,
        tx: Tx | None = None,
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
            text = to_json(rows)
            statements = [self._sql["submit"].bind(rows=text, **common)]
            if self._logged:
                statements.append(self._sql["log_submit"].bind(rows=text, now=common["now"], **event_ids()))
            return {row[0] for row in await rows_of(run, statements)}
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
        key_list: Any = to_json(keys) if self._sqlite else keys
        rows = await self._current(tx).write(self._sql["by_keys"].bind(keys=key_list))
        return {row[1]: row[0] for row in rows}

    async def cancel(self, run_id: str, now: datetime, *, running: bool = True, tx: Tx | None = None) -> bool:
        return await self._change_one("cancel", "cancelled", run_id, now, tx, running=running)

    async def retry(self, run_id: str, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("retry", "retried", run_id, now, tx)

    async def delete(self, run_id: str, reason: str | None, now: datetime, *, tx: Tx | None = None) -> bool:
        return await self._change_one("delete", "deleted", run_id, now, tx, reason=reason)

    async def awaken_parents(self, ids: Sequence[str], now: datetime) -> bool:
        """Let the runs that wait for one of these go on, as far as those are over; whether any did."""
        values = {"ids": to_json(ids) if self._sqlite else ids, "now": self._time(now), "channel": CHANNEL}
        return bool(await self.adapter.write(self._sql["awaken_parents"].bind(**values)))

    async def _change_one(
        self, name: str, event: str, run_id: str, now: datetime, tx: Tx | None, **extra: Any
    ) -> bool:
        """Change one run if its state allows it; whether it did."""
        statement = self._sql[name]
        values = {"id": run_id, "now": self._time(now), **extra, **self._log(), "channel": CHANNEL}
        statements = [statement.bind(**values)]
        if self._sqlite and self._logged:
            data = to_json({"reason": extra["reason"]}) if "reason" in extra else None
            log = self._sql["log_one"].bind(**values, event_type=event, data=data)
            statements.append(log)
        return bool(await rows_of(executor(self.adapter, tx), statements))

    # -- what looks after them

    async def turn_back(self, now: datetime, more: int, tx: Tx, limit: int = 500) -> None:
        """Let expired runs that spent their attempts, and have steps to take back, go on just for that."""
        values = {"now": self._time(now), "limit": limit, **event_ids()}
        rows = await tx.write(self._sql["turn_back"].bind(**values))
        ids = [row[0] for row in rows]
        if ids:
            id_list: Any = to_json(ids) if self._sqlite else ids
            await tx.execute(self._sql["allow_turned"].bind(ids=id_list, more=more, now=values["now"]))

    async def reap(
        self, now: datetime, known_types: Sequence[str], limit: int = 500, tx: Tx | None = None
    ) -> list[Reaped]:
        """Take back runs whose lease ran out; `known_types` are given up after their last try."""
        values = {
            "now": self._time(now),
            "forsaken": self._time(now - ORPHAN_GRACE),
            "known": to_json(known_types) if self._sqlite else known_types,
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
        freed_statuses = ("pending", "failed")  # others were cancelled before, and only lost their lease now
        return [
            Reaped(row[0], row[1], row[2]) for row in rows if row[3] == "leased" and row[2] in freed_statuses
        ]

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
            statement = self._sql["bring_back"].bind(rows=to_json(rows), soonest=soonest)
        else:
            types, latests, untils = zip(*rows, strict=True)
            statement = self._sql["bring_back"].bind(
                types=types, latests=latests, untils=untils, soonest=soonest
            )
        return len(await self.adapter.write(statement))

    async def prune(
        self, before: datetime, limit: int = 500, *, after: str = "", look: int = 5_000
    ) -> tuple[int, str]:
        """Remove finished runs that were not changed since `before`, with their events, steps and signals.

        Looks at up to `look` runs behind the id `after`; how many went, and where to go on, or "".
        """
        # Ids rise with time; those an application gave its jobs may be beyond all that were made here.
        made_later = _first_id(datetime.now(UTC) + _A_DAY)
        rows: list[Row] = []
        for low, high in ((after, _first_id(before)), (max(after, made_later), _LAST_ID)):
            if low < high and len(rows) < look:
                values = {"after": low, "below": high, "before": self._time(before)}
                rows += await self.adapter.fetch(self._sql["prunable"].bind(**values, look=look - len(rows)))
        old = [row[0] for row in rows if row[1]]
        count = 0
        for n in range(0, len(old), limit):
            count += await self._remove(old[n : n + limit], self._time(before))
        return count, rows[-1][0] if len(rows) == look else ""

    async def _remove(self, ids: Sequence[str], before: Any) -> int:
        if not self._sqlite:
            return len(await self.adapter.write(self._sql["prune"].bind(ids=ids, before=before)))
        async with self.adapter.transaction() as tx:
            rows = await tx.write(self._sql["prune"].bind(ids=to_json(ids), before=before))
            removed_ids = to_json([row[0] for row in rows])
            names = ("prune_events", "prune_steps", "prune_signals")
            await tx.batch([self._sql[name].bind(ids=removed_ids) for name in names])
        return len(rows)

    async def depth(self, now: datetime) -> list[tuple[str, int, datetime]]:
        """Type, number and oldest due time of the runs that are due and not yet claimed."""
        rows = await self.adapter.fetch(self._sql["depth"].bind(now=self._time(now)))
        return [(row[0], row[1], instant(row[2])) for row in rows]


def _first_id(moment: datetime) -> str:
    """The text that ids made from this moment on are greater than."""
    millisecond = f"{int(moment.timestamp() * 1000):012x}"
    return f"{millisecond[:8]}-{millisecond[8:]}"


def schema(name: str, dialect: Dialect) -> list[Sql]:
    """The statements that make what a model cannot declare, in order."""
    titled_statements = [
        (title, s) for title, s in load(name, dialect).items() if title.startswith("schema_")
    ]
    return [statement.bind() for _, statement in sorted(titled_statements, key=_number)]


def _number(item: tuple[str, NamedStatement]) -> int:
    return int(item[0].removeprefix("schema_"))
