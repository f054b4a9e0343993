"""The statements of the feed: append, route, hand on, read, prune, in any dialect.

Routing is one transaction under the lock of `event_position`: the events that were committed without a
position get the next ones, and the messages of the groups that want them are made.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from maniflex._ids import new_id, new_ids
from maniflex._json import decode, encode_plain
from maniflex.background.feed.model import HANDLER
from maniflex.background.outbox.store import CHANNEL as OUTBOX_CHANNEL
from maniflex.background.parameters import PACKAGE, instant, parameters_of
from maniflex.background.partitions.layout import mend_refusal
from maniflex.db.current import Primary, transaction
from maniflex.db.port import Adapter, BatchStatement, Executor, Row, Tx, Wake
from maniflex.errors import ConstraintViolation
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import matcher
from maniflex.sql.statement import Sql, by_dialect, load

CHANNEL = "maniflex_feed"
OF_GROUP = "maniflex.event."  # begins the kinds of deliveries to groups
ROUTE_AT_ONCE = 1000
_AND_NOTIFY = f", pg_notify(left('{CHANNEL}.' || current_schema(), 63), '')"  # behind RETURNING id
_COLUMNS = (  # of the fields of an `Event` in their order, and two of the row
    "type, data, event_id, source, subject, time, key, model, operation, record_id, actor_id, tenant_id,"
    " traceparent, schema_version, changed, headers, dataref, position, erased, id, scope"
)
_TIME = 3  # behind `data`


class DraftEvent(NamedTuple):
    """An event about to be written, as texts."""

    id: str
    event_id: str
    type: str
    source: str
    subject: str | None
    time: datetime
    key: str | None
    model: str | None
    operation: str | None
    record_id: str | None
    actor_id: str | None
    tenant_id: str | None
    traceparent: str | None
    schema_version: int
    changed: str | None
    headers: str | None
    dataref: str | None
    data: str | None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event of the feed with the id of its row, which names it wherever two strangers use one id."""

    row_id: str
    event: Event
    scope: dict[str, str] | None


Delivery = tuple[str, str, str | None]  # the event, the kind of its message and that one's key


class GroupState(NamedTuple):
    """A group as its row has it."""

    name: str
    kind: str
    patterns: tuple[str, ...]
    is_ordered: bool
    position: int
    paused: bool


MOST_WAITING = 10_000  # counted of what waits, so that a look costs the same however much there is


class GroupStanding(NamedTuple):
    """How a group stands: where it is, and what waits for it."""

    name: str
    kind: str
    patterns: tuple[str, ...]
    position: int
    behind: int  # events that it has not come to
    waiting: int  # deliveries; one more than `MOST_WAITING` stands for any number above it
    since: datetime | None  # of the oldest of both
    paused: bool
    served_at: datetime | None
    dead: int  # deliveries that were given up


class FeedPosition(NamedTuple):
    """Where the feed stands, and the last position that was removed."""

    epoch: str
    last: int
    pruned: int


class RoutedEvent(NamedTuple):
    """What the router knows of an event that it hands on."""

    id: str
    type: str
    key: str | None
    tenant_id: str | None


@dataclass(frozen=True, slots=True)
class Taker:
    """Makes rows of its own about events, in the transaction that gives them their positions.

    Its place in the feed is a row of `event_group`: what was routed by a process without it comes later.
    """

    name: str  # of its row
    needed: str  # a condition on `e`, an event of long ago, that keeps it from being removed
    take: Callable[[Tx, Sequence[RoutedEvent], datetime], Awaitable[int]]  # makes the rows; how many


class Routed(NamedTuple):
    """What one pass of the router did."""

    events: int
    deliveries: int
    last: int
    paused: frozenset[str] = frozenset()  # groups of handlers that are


class FeedStore:
    """All statements about events on one database."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.primary = Primary(adapter)
        self._sql = load(PACKAGE, "feed", adapter.dialect)
        parameters = parameters_of(adapter.dialect)
        self._time, self._texts = parameters.time, parameters.texts
        self._notify = by_dialect(adapter.dialect, sqlite=None, postgres=self._sql.get("notify"))
        self._matchers: dict[tuple[str, ...], Callable[[str], bool]] = {}
        self.takers: list[Taker] = []
        self._routes_in_batches = by_dialect(adapter.dialect, sqlite=True, postgres=False)

    # -- writing

    def append(self, draft: DraftEvent, now: datetime | None = None, *, notifies: bool = False) -> Sql:
        """What adds one event, of now or of its own time; gives its id back, or nothing where it is there."""
        values = draft._asdict()
        values["time"], values["now"] = self._time(draft.time), self._time(now or draft.time)
        statement = self._sql["append"].bind_all(values)
        return Sql(statement.text + _AND_NOTIFY, statement.params) if notifies else statement

    def insert_text(
        self,
        type: str,
        source: str,
        noun: str,
        model: str,
        suffix: str,
        schema_version: int,
        *,
        notifies: bool,
    ) -> str:
        """The text that adds events of one type, made of an id, a record, a time, who, what and the data."""
        values = {"type": type, "source": source, "noun": noun, "model": model, "suffix": suffix}
        literals = {name: quote_literal(value) for name, value in values.items()}
        text = self._sql["insert"].text.format(**literals, schema_version=int(schema_version))
        return text + _AND_NOTIFY if notifies else text

    def as_time(self, moment: datetime) -> Any:
        """A moment as a parameter."""
        return self._time(moment)

    def append_many(self, drafts: Sequence[DraftEvent]) -> Sql:
        """What adds several, in this order."""
        if len(drafts) == 1:
            return self.append(drafts[0])
        rows = [{**draft._asdict(), "time": draft.time.isoformat()} for draft in drafts]
        if self._notify is None:
            for row, draft in zip(rows, drafts, strict=True):
                row["time"] = self._time(draft.time)
        return self._sql["append_many"].bind(rows=msgspec.json.encode(rows).decode())

    def append_letter(self, draft: DraftEvent, message_id: str, reason: str, now: datetime) -> Sql:
        """What adds the letter of a delivery that is given up in the same transaction."""
        values = draft._asdict()
        values |= {"time": self._time(draft.time), "now": self._time(now)}
        return self._sql["append_letter"].bind_all({**values, "message": message_id, "reason": reason})

    @property
    def can_notify(self) -> bool:
        """Whether the database tells routers of other processes only where it is asked to."""
        return self._notify is not None

    async def notify(self, run: Executor, channel: str = CHANNEL) -> None:
        """Tell routers of other processes that there is an event, once this is committed."""
        if self._notify is not None:
            await run.fetch(self._notify.bind(channel=channel))

    async def find(self, run: Executor, source: str, event_id: str) -> Event | None:
        """The event that this application has published under this id."""
        own, other = f"id = {self._place(1)}", f"event_id = {self._place(1)} AND id <> event_id"
        text = f"SELECT {_COLUMNS} FROM event_log WHERE source = {self._place(2)} AND ({own} OR {other})"
        rows = await run.fetch(Sql(text, (event_id, source)))
        return read_event(rows[0]).event if rows else None

    # -- where it stands

    async def begin(self, now: datetime) -> None:
        """Make the row of positions, if there is none."""
        await self.adapter.write(self._sql["begin"].bind(epoch=new_epoch(), now=self._time(now)))

    async def position(self) -> FeedPosition:
        """Where the feed stands now."""
        rows = await self.primary.fetch(self._sql["read_position"].bind())
        return FeedPosition(*rows[0]) if rows else FeedPosition("", 0, 0)

    async def scope_key(self) -> bytes | None:
        """The key of digests of hidden fields, made when it is first asked for; None without a feed."""
        rows = await self.primary.fetch(self._sql["read_scope_key"].bind())
        if not rows:
            await self.adapter.write(self._sql["make_scope_key"].bind(key=secrets.token_hex(32)))
            rows = await self.primary.fetch(self._sql["read_scope_key"].bind())
        return bytes.fromhex(rows[0][0]) if rows else None

    async def renew(self, now: datetime) -> str:
        """Begin a new epoch: cursors of before cannot be continued."""
        await self.begin(now)
        [[epoch]] = await self.adapter.write(self._sql["renew"].bind(epoch=new_epoch(), now=self._time(now)))
        return str(epoch)

    async def unrouted_count(self) -> int:
        [[count]] = await self.primary.fetch(self._sql["unrouted_count"].bind())
        return int(count)

    # -- routing

    async def is_behind(self) -> bool:
        """Whether there is anything to route."""
        [[is_behind]] = await self.primary.fetch(self._sql["is_behind"].bind())
        return bool(is_behind) or await self._is_taker_behind()

    async def _is_taker_behind(self) -> bool:
        if not self.takers:
            return False
        names = self._texts([taker.name for taker in self.takers])
        [[is_behind]] = await self.primary.fetch(self._sql["is_taker_behind"].bind(names=names))
        return bool(is_behind)

    async def look(self) -> tuple[bool, frozenset[str]]:
        """Whether there is anything to route, and which groups are paused."""
        names = [name for (name,) in await self.primary.fetch(self._sql["look"].bind())]
        is_behind = None in names or await self._is_taker_behind()
        return is_behind, frozenset(name for name in names if name is not None)

    async def route(self, now: datetime, limit: int = ROUTE_AT_ONCE) -> Routed:
        """Give positions to committed events and make the messages of the groups that want them."""
        if self._routes_in_batches and not self.takers:
            batch = _RoutingBatch(self, now, limit)
            await self.adapter.batch(batch.statements)
            if not batch.is_group_behind:
                return batch.outcome
        async with self._locked_position() as (tx, last):
            groups = await self._handler_groups(tx)
            paused_groups = frozenset(group.name for group in groups if group.paused)
            caught_up = 0
            if any(group.position < last for group in groups):
                caught_up = await self._catch_up(tx, groups, last, now, limit)
                groups = await self._handler_groups(tx)
            caught_up += await self._take_missed(tx, last, now, limit)
            events = events_of_rows(await tx.write(self._sql["place"].bind(last=last, limit=limit)))
            if not events:
                return Routed(0, caught_up, last, paused_groups)
            level = [group for group in groups if group.position == last]
            count = await self._deliver(tx, level, events, now)
            new_last = last + len(events)
            await self._take(tx, events, last, new_last, now)
            await tx.write(self._sql["advance"].bind(last=new_last, now=self._time(now)))
            if level:
                await tx.write(self._bind_advance_of(level, new_last))
            await self._tell(tx, has_deliveries=count > 0)
            return Routed(len(events), caught_up + count, new_last, paused_groups)

    def _bind_advance_of(self, groups: Sequence[GroupState], last: int) -> Sql:
        names = self._texts([group.name for group in groups])
        return self._sql["advance_groups"].bind(last=last, names=names)

    @asynccontextmanager
    async def _locked_position(self) -> AsyncIterator[tuple[Tx, int]]:
        async with self.adapter.transaction(late=True) as tx:
            [[_, last]] = await tx.write(self._sql["lock_position"].bind())
            yield tx, int(last)

    async def _handler_groups(self, tx: Tx) -> list[GroupState]:
        return [group for group in await self.groups(tx) if group.kind == HANDLER]

    async def _catch_up(
        self, tx: Tx, groups: Sequence[GroupState], last: int, now: datetime, limit: int
    ) -> int:
        """Bring groups that are behind nearer to the end; how many messages that made."""
        total = 0
        for group in (group for group in groups if group.position < last):
            rows = await tx.fetch(self._sql["routed"].bind(after=group.position, until=last, limit=limit))
            position = int(rows[-1][-1]) if len(rows) == limit else last
            count = await self._deliver(tx, [group], events_of_rows(rows), now)
            await tx.write(self._sql["move_group"].bind(name=group.name, position=position))
            await self._tell(tx, has_deliveries=count > 0)
            total += count
        return total

    async def _take_missed(self, tx: Tx, last: int, now: datetime, limit: int) -> int:
        """Bring takers that are behind nearer to the end; how many rows that made."""
        total = 0
        for taker in self.takers:
            [[position]] = await tx.fetch(self._sql["taker_position"].bind(name=taker.name)) or [[last]]
            if position >= last:
                continue
            rows = await tx.fetch(self._sql["routed"].bind(after=position, until=last, limit=limit))
            end = int(rows[-1][-1]) if len(rows) == limit else last
            total += await taker.take(tx, events_of_rows(rows), now)
            await tx.write(self._sql["move_group"].bind(name=taker.name, position=end))
        return total

    async def _take(self, tx: Tx, events: Sequence[RoutedEvent], last: int, end: int, now: datetime) -> None:
        """Hand new events to the takers that had everything before them."""
        for taker in self.takers:
            move = self._sql["advance_taker"].bind(name=taker.name, last=end, before=last)
            if await tx.write(move):
                await taker.take(tx, events, now)

    async def _deliver(
        self, tx: Tx, groups: Sequence[GroupState], events: Sequence[RoutedEvent], now: datetime
    ) -> int:
        """Make the messages of these groups about these events; how many."""
        deliveries = self._deliveries(groups, events)
        for start in range(0, len(deliveries), ROUTE_AT_ONCE):
            statement = self._bind_deliveries(deliveries[start : start + ROUTE_AT_ONCE], now)
            try:
                await tx.execute(statement)
            except ConstraintViolation as error:
                await mend_refusal(self.adapter, tx, error)
                await tx.execute(statement)
        return len(deliveries)

    def _deliveries(self, groups: Sequence[GroupState], events: Sequence[RoutedEvent]) -> list[Delivery]:
        """Who is to have which of these events."""
        by_type: dict[str, list[tuple[str, str | None]]] = {}  # the kinds and the beginnings of their keys
        deliveries: list[Delivery] = []
        for id, type, key, _ in events:
            kinds = by_type.get(type)
            if kinds is None:
                kinds = by_type[type] = self._kinds_for(groups, type)
            for kind, lane in kinds:
                deliveries.append((id, kind, None if lane is None or key is None else lane + key))
        return deliveries

    def _kinds_for(self, groups: Sequence[GroupState], type: str) -> list[tuple[str, str | None]]:
        """The kinds of the messages that an event of a type makes, each with what its key begins with."""
        if type.startswith(CONTROL):
            return []
        takers = [group for group in groups if self._matcher(group.patterns)(type)]
        return [(OF_GROUP + one.name, f"{one.name}/" if one.is_ordered else None) for one in takers]

    def _bind_deliveries(self, deliveries: Sequence[Delivery], now: datetime) -> Sql:
        rows = [(id, *one) for id, one in zip(new_ids(len(deliveries)), deliveries, strict=True)]
        kinds = self._texts(list({kind for _, kind, _ in deliveries}))
        return self._sql["deliver"].bind(now=self._time(now), kinds=kinds, rows=encode_plain(rows))

    async def _tell(self, tx: Tx, *, has_deliveries: bool) -> None:
        await self.notify(tx)
        if has_deliveries:
            await self.notify(tx, OUTBOX_CHANNEL)

    def _matcher(self, patterns: tuple[str, ...]) -> Callable[[str], bool]:
        is_match = self._matchers.get(patterns)
        if is_match is None:
            if len(self._matchers) > 1000:
                self._matchers.clear()
            is_match = self._matchers[patterns] = matcher(patterns)
        return is_match

    # -- groups

    async def groups(self, run: Executor | None = None) -> list[GroupState]:
        """All groups."""
        return [read_group(row) for row in await (run or self.primary).fetch(self._sql["groups"].bind())]

    async def serve_group(
        self, name: str, kind: str, patterns: Sequence[str], *, ordered: bool, from_now: bool, now: datetime
    ) -> None:
        """Say that this process has the code of a group; a new one begins now, or at the beginning."""
        statement = self._sql["serve_group"].bind(
            id=name,  # so that it is addressed by its name
            name=name,
            kind=kind,
            patterns=msgspec.json.encode(list(patterns)).decode(),
            is_ordered=ordered,
            from_now=from_now,
            now=self._time(now),
        )
        await self.adapter.write(statement)

    async def note_served(self, names: Sequence[str], now: datetime) -> None:
        """Say that this process still has the code of these groups."""
        bound = self._sql["note_served"].bind(names=self._texts(list(names)), now=self._time(now))
        await self.adapter.write(bound)

    async def pause(self, name: str, paused: bool, now: datetime) -> bool:
        """Pause a group or let it go on, within the open transaction if there is one."""
        async with transaction(self.adapter) as tx:
            rows = await tx.write(self._sql["pause"].bind(name=name, paused=paused, now=self._time(now)))
            await self._tell(tx, has_deliveries=False)
        return bool(rows)

    async def forget(self, name: str) -> bool:
        """End a group and its deliveries."""
        async with transaction(self.adapter) as tx:
            # First the group: a router that makes deliveries for it has ended then, and no other begins.
            await tx.fetch(self._sql["lock_position"].bind())
            rows = await tx.write(self._sql["forget_group"].bind(name=name))
            await tx.write(self._sql["forget_deliveries"].bind(kind=OF_GROUP + name))
        return bool(rows)

    async def replay(
        self, group: GroupState, after: int, until: int, since: datetime | None, now: datetime
    ) -> int:
        """Deliver again what is kept behind a position, up to another; how many."""
        count, position = 0, after
        while position < until:
            rows = await self.primary.fetch(
                self._sql["routed"].bind(after=position, until=until, limit=ROUTE_AT_ONCE)
            )
            if not rows:
                break
            position = int(rows[-1][-1])
            if since is not None:
                young = {
                    one.row_id for one in await self.load([r[0] for r in rows]) if one.event.time >= since
                }
                rows = [row for row in rows if row[0] in young]
            async with transaction(self.adapter) as tx:
                count += await self._deliver(tx, [group], events_of_rows(rows), now)
                await self._tell(tx, has_deliveries=True)
        return count

    async def group_depth(self) -> list[tuple[str, int, datetime]]:
        """How many deliveries of each group wait, up to one more than `MOST_WAITING`, and since when."""
        rows = await self.primary.fetch(self._sql["group_depth"].bind(most=MOST_WAITING + 1))
        return [(name, count, instant(oldest)) for name, count, oldest in rows if count]

    async def group_dead(self) -> dict[str, int]:
        """How many of the newest dead deliveries each group has."""
        rows = await self.primary.fetch(self._sql["group_dead"].bind(most=MOST_WAITING + 1))
        return {kind.removeprefix(OF_GROUP): count for kind, count in rows}

    async def standings(self) -> list[GroupStanding]:
        """How all groups stand."""
        depth = {name: (count, since) for name, count, since in await self.group_depth()}
        dead = await self.group_dead()
        standings = []
        for row in await self.primary.fetch(self._sql["standings"].bind()):
            name, kind, patterns, position, behind, is_paused, served_at, first_time = row
            waiting, oldest = depth.get(name, (0, None))
            times = [oldest, None if first_time is None else instant(first_time)]
            standings.append(
                GroupStanding(
                    name,
                    kind,
                    tuple(_value(patterns)),
                    int(position),
                    int(behind),
                    waiting,
                    min((time for time in times if time is not None), default=None),
                    bool(is_paused),
                    None if served_at is None else instant(served_at),
                    dead.get(name, 0),
                )
            )
        return standings

    # -- bridges

    async def lead_bridge(self, name: str, lease: str, now: datetime, until: datetime) -> int | None:
        """Take or keep the lease of a bridge; where it stands, or None where another process leads it."""
        times = {"now": self._time(now), "until": self._time(until)}
        rows = await self.adapter.write(self._sql["lead_bridge"].bind(name=name, lease=lease, **times))
        return int(rows[0][0]) if rows else None

    async def move_bridge(self, name: str, lease: str, position: int, until: datetime) -> bool:
        """Write down how far a bridge has come; False where it is another's by now, or paused."""
        statement = self._sql["move_bridge"].bind(
            name=name, lease=lease, position=position, until=self._time(until)
        )
        return any(not is_paused for (is_paused,) in await self.adapter.write(statement))

    async def leave_bridge(self, name: str, lease: str) -> None:
        """Let another process lead a bridge."""
        await self.adapter.write(self._sql["leave_bridge"].bind(name=name, lease=lease))

    async def give_up(self, name: str, event_row: str, reason: str, now: datetime) -> None:
        """Keep an event that a broker never takes as a dead delivery."""
        statement = self._sql["give_up"].bind(
            id=new_id(), kind=OF_GROUP + name, event=event_row, reason=reason, now=self._time(now)
        )
        await self.adapter.write(statement)

    # -- reading

    async def load(self, ids: Iterable[str]) -> list[FeedEvent]:
        """The events of these rows, as far as they are there."""
        text = by_dialect(
            self.adapter.dialect,
            sqlite=f"SELECT {_COLUMNS} FROM event_log WHERE id IN (SELECT value FROM json_each(?))",
            postgres=f"SELECT {_COLUMNS} FROM event_log WHERE id = ANY($1::text[])",
        )
        return [read_event(row) for row in await self.primary.fetch(Sql(text, (self._texts(list(ids)),)))]

    async def read(self, after: int, limit: int, until: int | None = None) -> list[FeedEvent]:
        """The events behind a position, in their order."""
        condition = f"position > {self._place(1)}"
        params: tuple[Any, ...] = (after,)
        if until is not None:
            condition += f" AND position <= {self._place(2)}"
            params = (after, until)
        text = f"SELECT {_COLUMNS} FROM event_log WHERE {condition} ORDER BY position LIMIT {int(limit)}"
        return [read_event(row) for row in await self.primary.fetch(Sql(text, params))]

    async def read_latest(self, wants: Callable[[str], bool], limit: int) -> list[FeedEvent]:
        """The last events of these types, in their order."""
        latest: list[FeedEvent] = []
        before = (await self.position()).last + 1
        text = f"SELECT {_COLUMNS} FROM event_log WHERE position < {self._place(1)} ORDER BY position DESC"
        while len(latest) < limit:
            rows = await self.primary.fetch(Sql(f"{text} LIMIT {ROUTE_AT_ONCE}", (before,)))
            events = [read_event(row) for row in rows]
            latest += [
                one for one in events if wants(one.event.type) and not one.event.type.startswith(CONTROL)
            ]
            if len(rows) < ROUTE_AT_ONCE:
                break
            before = events[-1].event.position or 0
        return latest[:limit][::-1]

    async def first_since(self, moment: datetime) -> int:
        """The position before the first event of this moment or later."""
        text = f"SELECT min(position) FROM event_log WHERE position IS NOT NULL AND time >= {self._place(1)}"
        [[first]] = await self.primary.fetch(Sql(text, (self._time(moment),)))
        return int(first) - 1 if first is not None else (await self.position()).last

    # -- going

    async def prune(self, before: datetime, limit: int, now: datetime) -> int:
        """Remove events that nobody needs any more, oldest first; how many."""
        oldest = await self._find_from(0)
        if oldest is None or oldest[1] >= before:
            return 0
        near = await self._find_from(oldest[0] + 2 * limit)
        count = 0
        if near is not None and near[1] < before:
            count = await self._prune_until(near[0], before, limit, now)
        if count == limit:
            return count
        until = await self._last_before(before, oldest[0])
        return count + await self._prune_until(until, before, limit - count, now)

    async def _prune_until(self, until: int, before: datetime, limit: int, now: datetime) -> int:
        statement = self._sql["prune"].bind(before=self._time(before), until=until, limit=limit)
        conditions = "".join(f" AND NOT ({taker.needed})" for taker in self.takers)
        async with self.adapter.transaction() as tx:
            rows = await tx.write(Sql(statement.text.format(needed=conditions), statement.params))
            if rows:
                position = max(position for (position,) in rows)
                await tx.write(self._sql["note_pruned"].bind(position=position, now=self._time(now)))
        return len(rows)

    async def _last_before(self, moment: datetime, oldest: int) -> int:
        """The position of the last event from before a moment, of which one is known.

        Positions and times nearly go alike, so it is found by halves: no index says it, and to look at all
        that is kept would take longer with every event.
        """
        low, high = oldest, (await self.position()).last
        while low < high:
            middle = (low + high + 1) // 2
            first_event = await self._find_from(middle)
            if first_event is None or first_event[0] > high or first_event[1] >= moment:
                high = middle - 1
            else:
                low = first_event[0]
        return low

    async def _find_from(self, position: int) -> tuple[int, datetime] | None:
        """The first event at this position or behind it: where it is, and when it was stored."""
        rows = await self.primary.fetch(self._sql["find_from"].bind(position=position))
        return (int(rows[0][0]), instant(rows[0][1])) if rows else None

    async def erase(self, run: Executor, subject: str, now: datetime) -> int:
        """Take the data out of the events about a subject; how many."""
        return len(await run.write(self._sql["erase"].bind(subject=subject, now=self._time(now))))

    @asynccontextmanager
    async def listen(self, wake: Wake) -> AsyncIterator[None]:
        """Call `wake` when there may be new events, or new positions."""
        async with self.adapter.listen(CHANNEL, wake):
            yield

    def _place(self, number: int) -> str:
        return by_dialect(self.adapter.dialect, sqlite=f"?{number}", postgres=f"${number}")


class _RoutingBatch:
    """A pass of the router as one batch, which does nothing where a group is behind: of SQLite.

    Each statement in a transaction of its own would be a way to the writer and back.
    """

    def __init__(self, store: FeedStore, now: datetime, limit: int) -> None:
        self.is_group_behind = False
        self.outcome = Routed(0, 0, 0)
        self._store, self._now, self._limit = store, now, limit
        self._groups: list[GroupState] = []
        self._last = 0
        sql = store._sql
        self.statements: list[BatchStatement] = [
            *(sql["lock_position"].bind(), sql["groups"].bind(), self._place),
            *(self._deliver, self._advance, self._advance_groups),
        ]

    def _place(self, rows: Sequence[list[Row]]) -> Sql | None:
        [[[_, self._last]], group_rows] = rows
        groups = [group for group in map(read_group, group_rows) if group.kind == HANDLER]
        self._groups = groups
        self.is_group_behind = any(group.position < self._last for group in groups)
        self.outcome = Routed(0, 0, self._last, frozenset(group.name for group in groups if group.paused))
        if self.is_group_behind:
            return None
        return self._store._sql["place"].bind(last=self._last, limit=self._limit)

    def _deliver(self, rows: Sequence[list[Row]]) -> Sql | None:
        count = 0 if self.is_group_behind else len(rows[-1])
        deliveries: list[Delivery] = []
        if count and self._groups:
            deliveries = self._store._deliveries(self._groups, events_of_rows(rows[-1]))
        self.outcome = self.outcome._replace(
            events=count, deliveries=len(deliveries), last=self._last + count
        )
        return self._store._bind_deliveries(deliveries, self._now) if deliveries else None

    def _advance(self, rows: Sequence[list[Row]]) -> Sql | None:
        if not self.outcome.events:
            return None
        return self._store._sql["advance"].bind(last=self.outcome.last, now=self._store.as_time(self._now))

    def _advance_groups(self, rows: Sequence[list[Row]]) -> Sql | None:
        if not self.outcome.events or not self._groups:
            return None
        return self._store._bind_advance_of(self._groups, self.outcome.last)


def read_group(row: Row) -> GroupState:
    """A group as the statement `groups` gives it."""
    name, kind, patterns, is_ordered, position, is_paused = row
    return GroupState(name, kind, tuple(_value(patterns)), bool(is_ordered), int(position), bool(is_paused))


def events_of_rows(rows: Sequence[Row]) -> list[RoutedEvent]:
    """The events of rows that end with their positions, in the order of these."""
    return [RoutedEvent(*row[:-1]) for row in sorted(rows, key=itemgetter(-1))]


def quote_literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def new_epoch() -> str:
    """The name of an epoch: 16 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(8)


def read_event(row: Row) -> FeedEvent:
    """The event of a row of `_COLUMNS`."""
    type, data, *names, changed, headers, dataref, position, is_erased, row_id, scope = row
    names[_TIME] = instant(names[_TIME])
    changed_names = None if changed is None else tuple(changed.split(",")) if changed else ()
    values = (
        *(type, _value(data), *names),
        *(changed_names, _value(headers) or {}, dataref, position, bool(is_erased)),
    )
    return FeedEvent(row_id, Event.restore_values(values), _value(scope))


def _value(stored: Any) -> Any:
    """What a JSON column holds."""
    return None if stored is None else decode(stored)
