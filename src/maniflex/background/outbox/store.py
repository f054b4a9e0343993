"""The rows of the outbox: enqueue, claim, renew, settle, prune, in either database.

A relay's writes name the token of its claim, so a message that is no longer its own stays
untouched; each says which messages it did change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from maniflex._ids import new_id
from maniflex.background.jsons import instant
from maniflex.background.lease import Held
from maniflex.background.statements import Statement, load
from maniflex.db.port import Adapter, Executor, Row
from maniflex.sql.codec import encode_datetime
from maniflex.sql.statement import Dialect, Sql

CHANNEL = "maniflex_outbox"


class Claimed(NamedTuple):
    """A message that is ours until its lease ends."""

    id: str
    seq: int
    kind: str
    key: str | None
    stored: str | bytes
    attempts: int
    created_at: datetime
    orphaned: bool  # the relay that had it before died with it


@dataclass(slots=True)
class Batch:
    """What one claim took, in the order of enqueueing; `until` moves on with every renewal."""

    lease: str
    until: datetime
    messages: list[Claimed]

    def held(self) -> list[Held]:
        return [Held(message.id, self.lease) for message in self.messages]

    def keys(self) -> list[str]:
        return list({message.key for message in self.messages if message.key is not None})


class Change(NamedTuple):
    """What a message becomes that was not delivered."""

    id: str
    status: str
    retry_at: datetime | None = None
    unspent: int = 0  # 1: this attempt does not count
    last_error: str | None = None
    raw: str | None = None  # of a payload that is not JSON
    key: str | None = None


@dataclass(slots=True)
class Settlement:
    """What became of a batch."""

    batch: Batch
    delivered: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        return {*self.delivered, *(change.id for change in self.changes)}


class Claim(NamedTuple):
    """What a relay asks for."""

    owner: str
    kinds: tuple[str, ...] | None  # None: all of them
    limit: int
    until: datetime


class OutboxStore:
    """All statements about messages on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._sqlite = adapter.dialect is Dialect.SQLITE
        self._sql = load("outbox", adapter.dialect)
        self._claims: dict[int, Statement] = {}

    async def enqueue(
        self, run: Executor, kind: str, rows: Sequence[tuple[str, str | None, str]], now: datetime
    ) -> None:
        """Store messages given as id, key and payload, in this order."""
        statement = self._sql["enqueue"]
        if self._sqlite:
            await run.write(statement.bind(kind=kind, rows=_json(rows), now=self._time(now)))
            return
        ids, keys, payloads = zip(*rows, strict=True)
        await run.write(
            statement.bind(kind=kind, ids=ids, keys=keys, payloads=payloads, now=now, channel=CHANNEL)
        )

    async def turn(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime
    ) -> tuple[set[str], Batch | None]:
        """Write down what became of some batches and claim the next one, in one transaction.

        Gives back the ids that were still ours to settle, and the batch if there is one.
        """
        statements = [sql for settlement in settlements for sql in self._settling(settlement, now)]
        lease = new_id()
        if claim is not None:
            statements.append(self._claiming(claim, lease, now))
        found = await self.adapter.batch(statements) if statements else []
        claimed = found.pop() if claim is not None else []
        kept = {row[0] for rows in found for row in rows}
        if claim is None or not claimed:
            return kept, None
        return kept, Batch(lease, claim.until, sorted(map(_claimed, claimed), key=lambda m: m.seq))

    def _claiming(self, claim: Claim, lease: str, now: datetime) -> Sql:
        kinds: Any = claim.kinds or ()
        claiming = self._claims.get(claim.limit)
        if claiming is None:
            whole = self._sql["claim"]
            text = whole.text.replace("{limit}", str(int(claim.limit)))
            claiming = self._claims[claim.limit] = Statement(text, whole.names)
        return claiming.bind(
            lease=lease,
            owner=claim.owner,
            every=claim.kinds is None,
            kinds=_json(kinds) if self._sqlite else kinds,
            until=self._time(claim.until),
            now=self._time(now),
        )

    def _settling(self, settlement: Settlement, now: datetime) -> list[Sql]:
        lease, moment = settlement.batch.lease, self._time(now)
        keys = settlement.batch.keys()
        statements = []
        if settlement.delivered:
            ids, done = self._texts(settlement.delivered), [] if settlement.changes else keys
            statements.append(self._sql["deliver"].bind(ids=ids, keys=done, lease=lease, now=moment))
        if settlement.changes:
            rows = [(c.id, c.status, self._time(c.retry_at), *c[3:6]) for c in settlement.changes]
            columns = self._columns(rows)
            statements.append(self._sql["settle"].bind(keys=keys, lease=lease, now=moment, **columns))
        waiting = [c.id for c in settlement.changes if c.key is not None and c.retry_at is not None]
        if waiting:
            statements.append(self._sql["park"].bind(ids=self._texts(waiting), now=moment))
        return statements

    def _columns(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        if self._sqlite:
            return {"rows": _json(rows)}
        names = ("ids", "statuses", "retry_ats", "unspents", "last_errors", "raws")
        return dict(zip(names, zip(*rows, strict=True), strict=True))

    async def renew(self, run: Executor, held: Sequence[Held], until: datetime) -> set[str]:
        """Prolong leases; the ids that are no longer ours."""
        if self._sqlite:
            statement = self._sql["renew"].bind(rows=_json(held), until=self._time(until))
        else:
            ids, leases = zip(*held, strict=True)
            statement = self._sql["renew"].bind(ids=ids, leases=leases, until=until)
        kept = {row[0] for row in await run.write(statement)}
        return {one.id for one in held} - kept

    async def redrive(self, run: Executor, message_id: str, now: datetime) -> bool:
        statement = self._sql["redrive"].bind(id=message_id, now=self._time(now), channel=CHANNEL)
        return bool(await run.write(statement))

    async def waiting(self, now: datetime) -> bool:
        """Whether a claim may find anything."""
        return bool(await self.adapter.fetch(self._sql["waiting"].bind(now=self._time(now))))

    async def depth(self) -> list[tuple[str, int, datetime]]:
        """How many messages of each kind wait, and since when the oldest does."""
        rows = await self.adapter.fetch(self._sql["depth"].bind())
        return [(row[0], row[1], instant(row[2])) for row in rows]

    async def dead(self) -> int:
        [[count]] = await self.adapter.fetch(self._sql["dead"].bind())
        return int(count)

    async def prune(self, before: datetime, limit: int) -> int:
        """Remove messages delivered before that moment, oldest first; how many went."""
        if not self._sqlite:
            await self.adapter.execute(self._sql["prune_lanes"].bind(before=before))
        statement = self._sql["prune"].bind(before=self._time(before), limit=limit)
        return len(await self.adapter.write(statement))

    # -- the inbox

    async def once(self, run: Executor, consumer: str, message_id: str, now: datetime) -> bool:
        """Record that a consumer has dealt with a message; False when that is recorded already."""
        statement = self._sql["once"].bind(
            id=new_id(), consumer=consumer, message_id=message_id, now=self._time(now)
        )
        return bool(await run.write(statement))

    async def prune_inbox(self, before: datetime, limit: int) -> int:
        statement = self._sql["prune_inbox"].bind(before=self._time(before), limit=limit)
        return len(await self.adapter.write(statement))

    def _time(self, moment: datetime | None) -> Any:
        return encode_datetime(moment) if self._sqlite and moment is not None else moment

    def _texts(self, values: Sequence[str]) -> Any:
        return _json(values) if self._sqlite else values


def schema(dialect: Dialect, prefix: str) -> list[Sql]:
    """The statements whose names begin with the prefix, in their order in the file."""
    return [sql.bind() for name, sql in load("outbox", dialect).items() if name.startswith(prefix)]


def _claimed(row: Row) -> Claimed:
    id, seq, kind, key, stored, attempts, created_at, claimed_with = row
    return Claimed(
        id,
        seq,
        kind,
        key,
        b"" if stored is None else stored,
        attempts,
        instant(created_at),
        claimed_with == 0,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
