"""The statements of the outbox: enqueue, claim, renew, settle, prune, in any dialect.

A relay's writes name the token of its claim, so a message that is no longer its own stays
untouched; each says which messages it did change.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from maniflex._caller import Caller
from maniflex._ids import new_id
from maniflex.background.environment import Environment
from maniflex.background.leases import Held
from maniflex.background.outbox.handlers import FRAMEWORK
from maniflex.background.outbox.model import Batch, Claim, ClaimedMessage, NewMessage, Settlement
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.background.partitions.layout import PartitionLayout, mend_refusal
from maniflex.db.current import Primary, require_tx, transaction
from maniflex.db.port import Adapter, Executor, Row, Tx, Wake
from maniflex.errors import ConstraintViolation
from maniflex.sql.statement import NamedStatement, Sql, by_dialect, load

CHANNEL = "maniflex_outbox"
_BACK = f"{CHANNEL}_back"  # of messages that were dead
TABLE = "outbox_event"
_ENQUEUED = ("ids", "kinds", "keys", "payloads", "abouts")
MOST_KINDS = 50  # in one statement; each has a part of its own there
FIRST = 200  # messages of a kind that are looked at for leases no clock can have meant
AT_ONCE = 1000  # pauses that one statement ends
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
_CHANGED = ("ids", "statuses", "retry_ats", "unspents", "last_errors", "raws")
_EACH_KIND = re.compile(r"/\* each kind \*/(.*?)/\* end \*/", re.DOTALL)
_WITH_KEYS = re.compile(r"/\* with keys \*/(.*?)/\* end \*/", re.DOTALL)


class OutboxStore:
    """All statements about messages on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._primary = Primary(adapter)
        self._sql = load(PACKAGE, "outbox", adapter.dialect)
        self._partitions = OpenPartitions(self._sql)
        enqueue = self._sql["enqueue"]
        self._enqueue_keyless = NamedStatement(
            _WITH_KEYS.sub("NULL::timestamptz", enqueue.text), enqueue.names
        )
        parameters = parameters_of(adapter.dialect)
        self._time, self._texts, self._rows = parameters.time, parameters.texts, parameters.rows
        self._has_partitions = by_dialect(adapter.dialect, sqlite=False, postgres=True)
        # On SQLite a claim takes the only write lock there is.
        self._looks_before_claiming = by_dialect(adapter.dialect, sqlite=True, postgres=False)
        self._claims: dict[tuple[int, int], NamedStatement] = {}

    async def enqueue(self, run: Executor, rows: Sequence[NewMessage], now: datetime, caller: Caller) -> None:
        """Store the messages of a caller, in this order."""
        values = self._rows(_ENQUEUED, rows)
        values["now"], values["channel"] = self._time(now), CHANNEL
        values["actor_id"], values["tenant_id"] = caller.actor_id, caller.tenant_id
        values["trace_id"], values["traceparent"] = caller.trace_id, caller.traceparent
        has_keys = any(row.key is not None for row in rows)
        statement = self._partitions.statement("enqueue") if has_keys else self._enqueue_keyless
        try:
            await run.write(statement.bind_all(values))
        except ConstraintViolation as error:
            await mend_refusal(self.adapter, run, error)
            await run.write(statement.bind_all(values))

    def learn_partitions(self, layout: PartitionLayout | None, open: Sequence[str] = ()) -> None:
        """How messages are partitioned, and where some are pending; claims go there first."""
        self._partitions.learn(layout, open)

    @asynccontextmanager
    async def listen(self, wake: Wake) -> AsyncIterator[None]:
        """Call `wake` when there may be something to deliver.

        A message that is back may be where nothing was pending; until the keeper has looked again, those of
        its key that came later would pass it.
        """

        def look_everywhere() -> None:
            self._partitions.look_everywhere()
            wake()

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.adapter.listen(CHANNEL, wake))
            if self._has_partitions:
                await stack.enter_async_context(self.adapter.listen(_BACK, look_everywhere))
            yield

    async def turn(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime
    ) -> tuple[set[str], Batch | None]:
        """Write the outcomes of some batches and claim the next one, in one transaction.

        Returns the ids of the messages that were still ours, and the batch if there is one.
        """
        statements = [sql for settlement in settlements for sql in self._settle_statements(settlement, now)]
        if claim is not None and not claim.everywhere and self._partitions.is_full_look_due():
            claim = claim._replace(everywhere=True)
        kinds = () if claim is None else await self._kinds(claim, now, settles=bool(statements))
        if claim is None or not kinds:
            settled_rows = await self.adapter.batch(statements) if statements else []
            return _ids(settled_rows), None
        lease = new_id()
        if len(kinds) <= MOST_KINDS:
            statements.append(self._bind_claim(claim, kinds, lease, now))
            *settled_rows, rows = await self.adapter.batch(statements)
        else:
            settled_rows, rows, kinds = await self._turn_in_parts(statements, claim, kinds, lease, now)
        if not rows:
            return _ids(settled_rows), None
        messages = sorted(map(ClaimedMessage.of, rows), key=attrgetter("seq"))
        self._partitions.note_claimed([message.id for message in messages])
        return _ids(settled_rows), Batch(lease, claim.until, messages, () if kinds is claim.kinds else kinds)

    async def _turn_in_parts(
        self, settle_statements: Sequence[Sql], claim: Claim, kinds: Sequence[str], lease: str, now: datetime
    ) -> tuple[list[list[Row]], list[Row], Sequence[str]]:
        """Settle, and claim from some kinds after the others until there is a batch, in one transaction."""
        async with self.adapter.transaction() as tx:
            settled_rows = [await tx.write(statement) for statement in settle_statements]
            for start in range(0, len(kinds), MOST_KINDS):
                part = kinds[start : start + MOST_KINDS]
                if rows := await tx.write(self._bind_claim(claim, part, lease, now)):
                    return settled_rows, rows, part
        return settled_rows, [], ()

    async def _kinds(self, claim: Claim, now: datetime, *, settles: bool) -> Sequence[str]:
        """The kinds to claim from: those of the relay, or where these are too many, those that are due.

        Where a claim locks out other writers, a turn that has nothing else to write looks first. A turn that
        settles counts leased messages as due, because it may end their leases.
        """
        kinds = claim.kinds
        if kinds is not None and len(kinds) <= MOST_KINDS and (settles or not self._looks_before_claiming):
            return kinds
        if claim.due_kinds:
            return claim.due_kinds
        statement = self._in_reach(claim, self._sql["due_kinds"]).bind(
            every=kinds is None,
            kinds=self._texts(kinds or ()),
            now=self._time(now),
            over=self._time(_FOREVER) if settles else self._over(claim, now),
        )
        due_kinds = [kind for (kind,) in await self._primary.fetch(statement)]
        if kinds is None:
            due_kinds = [k for k in due_kinds if not k.startswith(FRAMEWORK) or k in claim.named_kinds]
        return due_kinds

    def _bind_claim(self, claim: Claim, kinds: Sequence[str], lease: str, now: datetime) -> Sql:
        return self._in_reach(claim, self._claim_statement(claim.limit, len(kinds))).bind(
            lease=lease,
            owner=claim.owner,
            every=claim.kinds is None,
            kinds=self._texts(kinds),
            handled=self._texts(claim.kinds or ()),
            until=self._time(claim.until),
            now=self._time(now),
            over=self._over(claim, now),
        )

    def _claim_statement(self, limit: int, kinds: int) -> NamedStatement:
        """The claim with its limit, and its part for each kind written as often as there are kinds."""
        statement = self._claims.get((limit, kinds))
        if statement is None:
            whole = self._sql["claim"]
            text = _EACH_KIND.sub(lambda part: _repeat(part[1], kinds), whole.text)
            statement = NamedStatement(text.replace("{limit}", str(int(limit))), whole.names)
            self._claims[limit, kinds] = statement
        return statement

    def _in_reach(self, claim: Claim, statement: NamedStatement) -> NamedStatement:
        return statement if claim.everywhere else self._partitions.narrow(statement)

    def _over(self, claim: Claim, now: datetime) -> Any:
        """The moment before which a lease must have ended for its message to be claimed."""
        return self._time(now if claim.takes_over else _NEVER)

    def _settle_statements(self, settlement: Settlement, now: datetime) -> list[Sql]:
        lease, moment = settlement.batch.lease, self._time(now)
        keys = settlement.keys
        statements = []
        if settlement.delivered:
            deliver = self._partitions.statement("deliver", settlement.delivered)
            ids, finished_keys = self._texts(settlement.delivered), [] if settlement.changes else keys
            statements.append(deliver.bind(ids=ids, keys=finished_keys, lease=lease, now=moment))
        if settlement.forgotten:
            forget = self._partitions.statement("forget", settlement.forgotten)
            statements.append(forget.bind(ids=self._texts(settlement.forgotten)))
        if settlement.changes:
            rows = [
                (c.id, c.stored_status, self._time(c.retry_at), c.unspent, c.last_error, c.raw)
                for c in settlement.changes
            ]
            columns = self._rows(_CHANGED, rows)
            settle = self._partitions.statement("settle", [c.id for c in settlement.changes])
            statements.append(settle.bind(keys=keys, lease=lease, now=moment, **columns))
        statements += [c.letter(now) for c in settlement.changes if c.letter is not None]
        waiting = [c.id for c in settlement.changes if c.key is not None and c.retry_at is not None]
        if waiting:
            park = self._partitions.statement("park", waiting)
            statements.append(park.bind(ids=self._texts(waiting), now=moment))
        return statements

    async def renew(self, run: Executor, held: Sequence[Held], until: datetime) -> set[str]:
        """Prolong leases; the ids that are no longer ours."""
        columns = self._rows(("ids", "leases"), held)
        statement = self._partitions.statement("renew", [one.id for one in held])
        rows = await run.write(statement.bind(until=self._time(until), **columns))
        renewed_ids = {id for (id,) in rows}
        return {one.id for one in held} - renewed_ids

    async def kinds_behind(self, after: str, limit: int) -> list[str]:
        """The first kinds in their order, behind `after`, of which something waits."""
        statement = self._sql["kinds_behind"].bind(after=after, limit=limit)
        return [kind for (kind,) in await self._primary.fetch(statement)]

    async def bring_back_leases(self, kinds: Sequence[str], *, until: datetime, latest: datetime) -> int:
        """Shorten leases that end after the latest possible moment; how many messages had one.

        Looks at the first `FIRST` messages of each kind: the leased ones are among them.
        """
        times = {"until": self._time(until), "latest": self._time(latest)}
        statement = self._sql["bring_back_leases"].bind(kinds=self._texts(kinds), first=FIRST, **times)
        return len(await self.adapter.write(statement))

    async def bring_back_pauses(self, kinds: Sequence[str], now: datetime, *, latest: datetime) -> int:
        """End pauses that last beyond the latest possible moment; how many messages had one."""
        times = {"now": self._time(now), "latest": self._time(latest)}
        statement = self._sql["bring_back_pauses"].bind(kinds=self._texts(kinds), limit=AT_ONCE, **times)
        count, last_count = 0, AT_ONCE if kinds else 0
        while last_count == AT_ONCE:
            last_count = len(await self.adapter.write(statement))
            count += last_count
        return count

    async def redrive(self, run: Executor, message_id: str, now: datetime) -> bool:
        statement = self._sql["redrive"].bind(id=message_id, now=self._time(now), channel=CHANNEL)
        return bool(await run.write(statement))

    async def depth(self) -> list[tuple[str, int, datetime]]:
        """How many messages of each kind wait, and since when the oldest does."""
        rows = await self._primary.fetch(self._partitions.statement("depth").bind())
        return [(kind, count, instant(oldest)) for kind, count, oldest in rows]

    async def dead(self) -> int:
        [[count]] = await self._primary.fetch(self._sql["dead"].bind())
        return int(count)

    async def prune(self, before: datetime, limit: int, table: str = TABLE) -> int:
        """Remove messages delivered before that moment, oldest first, of all or a partition; how many."""
        values: dict[str, Any] = {"before": self._time(before), "limit": limit}
        if table == TABLE:
            return len(await self.adapter.write(self._sql["prune"].bind(**values)))
        rows = await self.adapter.write(self._sql["prunable"].on_table(TABLE, table).bind(**values))
        if not rows:
            return 0
        # Through the table itself: a partition that was detached meanwhile loses nothing.
        ids = self._texts([id for (id,) in rows])
        return len(await self.adapter.write(self._sql["prune_some"].bind(ids=ids, before=values["before"])))

    async def rewrite(self, message_id: str, payload: str) -> None:
        """Put another payload in the place of that of a message that is still to be delivered."""
        statement = self._partitions.statement("rewrite", [message_id])
        await self.adapter.write(statement.bind(id=message_id, payload=payload))

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


def _repeat(part: str, times: int) -> str:
    return " UNION ALL ".join(part.replace("{place}", str(place)) for place in range(times))


def _ids(results: Sequence[Sequence[Row]]) -> set[str]:
    return {id for rows in results for (id,) in rows}


# Which partitions of messages a statement of a relay looks into, and the statements narrowed to them.
#
# PostgreSQL locks every partition that the plan of a statement has, used or not. Only bounds that are
# part of the text keep a partition out of the plan. So the keeper finds the partitions where nothing is
# pending, and the statements get a condition that leaves out the ids of those. It names no table, so it
# stays right when partitions are made or dropped.


FULL_LOOK_EVERY = 1.0  # seconds
MOST_RANGES = 16  # of ids in one condition; where more would be left out, statements look everywhere
_MOST_STATEMENTS = 100  # sets of partitions come and go
_OPEN = re.compile(r"/\* open (\w+) \*/")


class OpenPartitions:
    """What the keeper last saw, and the statements by name, each on all messages or the open partitions."""

    def __init__(self, statements: Mapping[str, NamedStatement]) -> None:
        self._whole = statements
        self._narrow: dict[str, NamedStatement] = {}
        self._closed: tuple[tuple[str, str], ...] = ()  # ranges of ids, from the first and below the second
        self._full_look_at = float("-inf")  # by the monotonic clock

    def learn(self, layout: PartitionLayout | None, open: Iterable[str]) -> None:
        """Take in how messages are partitioned now, and where some may be pending within seconds."""
        ranges = [] if layout is None else _closed_ranges(layout, set(open))
        self._close(tuple(ranges) if len(ranges) <= MOST_RANGES else ())

    def statement(self, name: str, ids: Sequence[str] = ()) -> NamedStatement:
        """The statement on the open partitions; on all messages when one of these is in another."""
        whole = self._whole[name]
        return self.narrow(whole) if self._closed and not self._has_closed(ids) else whole

    def narrow(self, whole: NamedStatement) -> NamedStatement:
        """The same statement on the open partitions."""
        if not self._closed:
            return whole
        statement = self._narrow.get(whole.text)
        if statement is None:
            if len(self._narrow) >= _MOST_STATEMENTS:
                self._narrow.clear()
            statement = NamedStatement(_OPEN.sub(self._condition, whole.text), whole.names)
            self._narrow[whole.text] = statement
        return statement

    def is_full_look_due(self) -> bool:
        """Whether a claim is to look at all messages: once a second, as one of long ago may be back."""
        if not self._closed:
            return True
        now = time.monotonic()
        if now - self._full_look_at < FULL_LOOK_EVERY:
            return False
        self._full_look_at = now
        return True

    def note_claimed(self, ids: Sequence[str]) -> None:
        """Look everywhere until the keeper has looked again, when one was found where nothing was pending."""
        if self._closed and self._has_closed(ids):
            self.look_everywhere()

    def look_everywhere(self) -> None:
        """Leave nothing out until the keeper has looked again."""
        self._close(())

    def _close(self, ranges: tuple[tuple[str, str], ...]) -> None:
        if ranges != self._closed:
            self._closed = ranges
            self._narrow.clear()

    def _has_closed(self, ids: Sequence[str]) -> bool:
        return any(lower <= id < upper for lower, upper in self._closed for id in ids)

    def _condition(self, place: re.Match[str]) -> str:
        column = f"{place[1]}.id"
        return " ".join(
            f"AND ({column} < '{lower}' OR {column} >= '{upper}')" for lower, upper in self._closed
        )


def _closed_ranges(layout: PartitionLayout, open: set[str]) -> list[tuple[str, str]]:
    """The ids of the partitions that are not open; those that touch are one range."""
    ranges: list[tuple[str, str]] = []
    for one in layout.partitions:
        if one.name in open:
            continue
        if ranges and ranges[-1][1] == one.lower:
            ranges[-1] = (ranges[-1][0], one.upper)
        else:
            ranges.append((one.lower, one.upper))
    return ranges


# Messages that were dealt with, so that one which comes twice is dealt with once.
#
# The record is made in the transaction of the changes the message causes: both are there or neither is.


class Inbox:
    """`server.inbox`."""

    store: OutboxStore  # from the moment the server is sealed

    def __init__(self, require_sealed: Callable[[], Environment]) -> None:
        """`require_sealed` gives the environment of an outbox that is at work, and refuses any other."""
        self._require_sealed = require_sealed

    async def once(self, message_id: str, tx: Tx | None = None, consumer: str = "default") -> bool:
        """True the first time a consumer asks about a message, False while that is remembered.

        It is remembered for `outbox_retention`, and recorded in the transaction handed over or open;
        without one it is refused. Of two transactions at the same time, the second waits for the end
        of the first.
        """
        environment = self._require_sealed()
        run = tx or require_tx(environment.adapter, "inbox.once()")
        return await self.store.once(run, consumer, message_id, environment.clock.now())

    @asynccontextmanager
    async def claim(self, message_id: str, consumer: str) -> AsyncIterator[bool]:
        """A block in a transaction of its own that deals with the message if this gives True.

        The message is remembered with what the block writes, or, after an exception, neither. It makes the
        inbox a store for `maniflex.events.dedupe`.
        """
        async with transaction(self._require_sealed().adapter) as tx:
            yield await self.once(message_id, tx, consumer)
