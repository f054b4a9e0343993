"""The middle of a hub: all connections of this process, and every event handed to those that want it.

Events are dispatched in order, once each. Which subscriptions want a type is remembered by type, so those of
other types cost nothing. Here are also the places that connections take, the beat that keeps them alive,
tokens that expire, callers who are asked about again, those whose leave was taken back, and the end of all.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from maniflex._clock import Clock
from maniflex._fence import Fence
from maniflex.background.feed.revocations import REVOKED
from maniflex.background.loop import Loop
from maniflex.background.metrics import Labels, Metrics
from maniflex.errors import Abort, RequestError
from maniflex.events.event import CONTROL
from maniflex.events.patterns import matches
from maniflex.realtime.connection import (
    GOING_AWAY,
    GONE,
    LOST_PERMISSION,
    ClientConnection,
    ClientSubscription,
)
from maniflex.realtime.log import EventLog, FeedEntry
from maniflex.realtime.options import HubSettings
from maniflex.realtime.viewer import EventJudge, Viewer

TURN = 500  # deliveries after which others have their turn
BEATS = 6  # looks at all connections in one ping_interval
MOST_TYPES = 4096  # of which it is remembered who wants them
CHECKS_AT_ONCE = 4
EVERY_REFUSAL = 128  # is logged, besides the first
log = logging.getLogger("maniflex.realtime")


class Stats(NamedTuple):
    """What a hub does right now."""

    connections: int
    subscriptions: int
    kicked: int
    lag: float  # seconds between the last event that was handed on and that moment


class Topics:
    """Which subscriptions want which types."""

    def __init__(self) -> None:
        self._by_pattern: dict[str, dict[ClientSubscription, None]] = {}
        self._by_type: dict[str, list[dict[ClientSubscription, None]]] = {}
        self.count = 0

    def add(self, subscription: ClientSubscription) -> None:
        self.count += 1
        for pattern in subscription.patterns:
            bucket = self._by_pattern.get(pattern)
            if bucket is None:
                bucket = self._by_pattern[pattern] = {}
                for type, buckets in self._by_type.items():
                    if matches(pattern, type):
                        buckets.append(bucket)
            bucket[subscription] = None

    def remove(self, subscription: ClientSubscription) -> None:
        self.count -= 1
        for pattern in subscription.patterns:
            bucket = self._by_pattern.get(pattern, {})
            bucket.pop(subscription, None)
            if not bucket and self._by_pattern.pop(pattern, None) is not None:
                for buckets in self._by_type.values():
                    buckets[:] = [one for one in buckets if one is not bucket]

    def of(self, type: str) -> list[dict[ClientSubscription, None]]:
        """Those that want events of a type, by their patterns."""
        buckets = self._by_type.get(type)
        if buckets is None:
            if len(self._by_type) >= MOST_TYPES:
                self._by_type.clear()
            buckets = [bucket for pattern, bucket in self._by_pattern.items() if matches(pattern, type)]
            self._by_type[type] = buckets
        return buckets


class Slots:
    """The places of connections, in all and for each caller."""

    def __init__(self, most: int | None, most_of_caller: int | None) -> None:
        self._most = most
        self._most_of_caller = most_of_caller
        self._taken = 0
        self._by_caller: dict[Any, int] = {}

    def take(self, viewer: Viewer) -> Any:
        """A place for a connection of the caller; 503 where there is none."""
        auth = viewer.auth
        caller = (auth.tenant_id, auth.user_id) if auth is not None and auth.user_id else None
        if self._most is not None and self._taken >= self._most:
            raise _no_room("all connections are taken; try again later")
        own = self._by_caller.get(caller, 0)
        if caller is not None and self._most_of_caller is not None and own >= self._most_of_caller:
            raise _no_room("you have too many connections; close some of them")
        self._taken += 1
        if caller is not None:
            self._by_caller[caller] = own + 1
        return (caller,)

    def give_back(self, slot: Any) -> None:
        """A connection has ended."""
        [caller] = slot
        self._taken -= 1
        if caller is not None:
            number = self._by_caller.get(caller, 1) - 1
            if number:
                self._by_caller[caller] = number
            else:
                self._by_caller.pop(caller, None)


def _no_room(message: str) -> Abort:
    return Abort(503, "TOO_MANY_CONNECTIONS", message, headers={"retry-after": "5"})


class Fanout:
    """All connections of one process."""

    def __init__(
        self,
        options: HubSettings,
        log: EventLog,
        judge: EventJudge,
        clock: Clock,
        metrics: Metrics,
        check: Callable[[Viewer], Any],
    ) -> None:
        self.options = options
        self.log = log
        self.judge = judge
        self.clock = clock
        self.metrics = metrics
        self.topics = Topics()
        self.slots = Slots(options.max_connections, options.max_connections_per_caller)
        self.dispatched = 0  # the position up to which events were handed on
        self.is_stopping = False
        self.kicked = 0
        self.lag = 0.0
        self._check = check  # asks a caller's credentials again
        self._connections: set[ClientConnection] = set()
        self._leaving: set[ClientConnection] = set()
        self._viewers: dict[Any, Viewer] = {}
        self._expiries: list[tuple[float, int, ClientConnection]] = []
        self._order = count()
        self._refusals: dict[str, int] = {}
        self._expiry_changed: Callable[[], None] = lambda: None
        metrics.gauge("realtime_connections", self._count_connections)
        metrics.gauge("realtime_lag_seconds", self._measure_lag)

    # -- connections

    @property
    def farewell_time(self) -> float:
        """The seconds in which a farewell has to leave."""
        return min(self.options.send_timeout, 1.0) if self.is_stopping else self.options.send_timeout

    @property
    def connections(self) -> set[ClientConnection]:
        """Those that are open."""
        return self._connections

    def viewer(self, key: Any, make: Callable[[], Viewer]) -> Viewer:
        """The caller of this key, who may have connections already."""
        viewer = self._viewers.get(key)
        return make() if viewer is None else viewer

    def enter(self, connection: ClientConnection, slot: Any) -> None:
        """A connection is open."""
        connection.slot = slot
        self._connections.add(connection)
        self.join(connection, connection.viewer)

    def join(self, connection: ClientConnection, viewer: Viewer) -> None:
        """The connection is this caller's from now on."""
        self._leave(connection)
        viewer = self._viewers.setdefault(viewer.key, viewer)  # another may have come in meanwhile
        connection.viewer = viewer
        if not viewer.connections:
            viewer.checked_at = self.clock.monotonic()
        viewer.connections.add(connection)
        expires_at = viewer.expires_at
        if expires_at is not None:
            heapq.heappush(self._expiries, (expires_at, next(self._order), connection))
            self._expiry_changed()

    def _leave(self, connection: ClientConnection) -> None:
        viewer = connection.viewer
        viewer.connections.discard(connection)
        if not viewer.connections and self._viewers.get(viewer.key) is viewer:
            del self._viewers[viewer.key]

    def forget(self, connection: ClientConnection) -> None:
        """A connection is over."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._leave(connection)
            self.slots.give_back(connection.slot)

    def note_kicked(self) -> None:
        """A client was too slow."""
        self.kicked += 1
        self.metrics.add("realtime_kicked_total")

    def note_refused(self, code: str) -> None:
        """Somebody may not connect; the first of them, and now and then another one, is logged."""
        number = self._refusals[code] = self._refusals.get(code, 0) + 1
        self.metrics.add("realtime_refused_total", reason=code)
        if number == 1 or number % EVERY_REFUSAL == 0:
            log.warning("realtime: a connection was refused: %s (the %d. time)", code, number)

    # -- events

    async def dispatch(self, entries: Sequence[FeedEntry]) -> None:
        """Hand events to the connections that want them, in their order."""
        deliveries = 0
        for entry in entries:
            if entry.event.type.startswith(CONTROL):
                if entry.event.type == REVOKED:
                    self.revoke(entry.event.data)
            else:
                for bucket in self.topics.of(entry.event.type):
                    for subscription in tuple(bucket):
                        deliveries += self._deliver(subscription, entry)
                        if deliveries >= TURN:
                            deliveries = 0
                            await asyncio.sleep(0)
            self.dispatched = entry.position
        if entries:
            self.lag = max((self.clock.now() - entries[-1].event.time).total_seconds(), 0.0)

    def _deliver(self, subscription: ClientSubscription, entry: FeedEntry) -> int:
        connection = subscription.connection
        if connection.is_behind or subscription.position >= entry.position or connection.is_closed:
            return 0
        try:
            return connection.offer(subscription, entry)
        except BaseException as error:
            Fence().absorb(error)
            log.error("a client cannot be served any more", exc_info=error)
            connection.kick(1011, "internal error")
            return 0

    def begin_anew(self, was_known: bool) -> None:
        """The feed has begun a new epoch, or is known now: nobody can continue from before."""
        self.dispatched = self.log.last
        for connection in tuple(self._connections) if was_known else ():
            connection.begin_anew()

    # -- those who have to go

    def revoke(self, who: Any) -> None:
        """End the connections of those whose leave was taken back: by token, session, user or tenant."""
        if not isinstance(who, dict) or not any(who.get(name) for name in _NAMES):
            return
        for viewer in tuple(self._viewers.values()):
            if _is_meant(viewer, who):
                for connection in tuple(viewer.connections):
                    connection.kick(GONE, "revoked")

    async def expire(self) -> float | None:
        """End the connections whose tokens have expired; the moment when the next one does."""
        now = self.clock.now().timestamp()
        while self._expiries and self._expiries[0][0] <= now:
            _, _, connection = heapq.heappop(self._expiries)
            expires_at = connection.viewer.expires_at
            if not connection.is_closed and expires_at is not None and expires_at <= now:
                connection.kick(GONE, "the token has expired")
        while self._expiries and self._expiries[0][2].is_closed:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    async def check_callers(self) -> None:
        """Ask again about callers who were not asked about for `recheck_interval`."""
        due_at = self.clock.monotonic() - self.options.recheck_interval
        due = [viewer for viewer in self._viewers.values() if viewer.checked_at <= due_at]
        for start in range(0, len(due), CHECKS_AT_ONCE):
            await asyncio.gather(*map(self._check_caller, due[start : start + CHECKS_AT_ONCE]))

    async def _check_caller(self, viewer: Viewer) -> None:
        viewer.checked_at = self.clock.monotonic()
        fence = Fence()
        try:
            auth = await self._check(viewer)
            if not is_same(auth, viewer.auth):
                self._kick_all(viewer, LOST_PERMISSION, "the credentials are somebody else's now")
                return
            viewer.auth = auth
            await self.judge.recheck(viewer)
        except RequestError as refusal:
            if refusal.status in (401, 403):
                code = GONE if refusal.status == 401 else LOST_PERMISSION
                self._kick_all(viewer, code, "revoked")
        except BaseException as error:
            fence.absorb(error)
            log.error("a caller could not be asked about again", exc_info=error)

    def _kick_all(self, viewer: Viewer, code: int, reason: str) -> None:
        for connection in tuple(viewer.connections):
            connection.kick(code, reason)

    # -- the beat, and the end

    def beat(self) -> None:
        """Keep connections alive that have heard nothing for `ping_interval`."""
        now = self.clock.monotonic()
        due_at = now - self.options.ping_interval
        for connection in tuple(self._connections):
            if connection.beat_at <= due_at:
                connection.beat_at = now
                connection.beat()

    def end_all(self) -> None:
        """The server goes away: say so to everybody, and take nobody in."""
        self.is_stopping = True
        self._leaving |= self._connections
        for connection in tuple(self._connections):
            connection.kick(GOING_AWAY, "the server goes away")

    async def until_left(self, seconds: float) -> None:
        """Wait until the tasks of connections that were told to go have ended, for a while."""
        tasks = [one.serving for one in self._leaving if one.serving is not None]
        self._leaving.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    # -- numbers

    def stats(self) -> Stats:
        """What the hub does right now."""
        return Stats(len(self._connections), self.topics.count, self.kicked, self.lag)

    async def _count_connections(self) -> list[tuple[Labels, float]]:
        kinds = {"websocket": 0.0, "sse": 0.0}
        for connection in self._connections:
            kinds[connection.transport] += 1
        return [((("transport", kind),), number) for kind, number in kinds.items()]

    async def _measure_lag(self) -> list[tuple[Labels, float]]:
        return [((), self.lag)]


_NAMES = ("token_id", "session_id", "user_id", "tenant_id")


def _is_meant(viewer: Viewer, who: dict[str, Any]) -> bool:
    """Whether a caller is all that is named: this token, that session, this user of that tenant."""
    auth = viewer.auth
    if auth is None:
        return False
    own: dict[str, set[Any]] = {
        "token_id": {auth.claims.get("jti")},
        "session_id": {auth.session_id, auth.claims.get("sid")},
        "user_id": {auth.user_id},
        "tenant_id": {auth.tenant_id},
    }
    if not all(who[name] in own[name] for name in _NAMES if who.get(name) is not None):
        return False
    before, issued_at = who.get("before"), auth.claims.get("iat")
    is_later = isinstance(before, int | float) and isinstance(issued_at, int | float) and issued_at >= before
    return not is_later


def is_same(one: Any, other: Any) -> bool:
    """Whether two identities are the same user in the same tenant."""
    return _user(one) == _user(other)


def _user(auth: Any) -> tuple[str, str]:
    return ("", "") if auth is None else (auth.user_id, auth.tenant_id)


# What runs beside the connections.


class Beat(Loop):
    """Keeps connections alive, and asks about their callers again."""

    name = "realtime beat"

    def __init__(self, fanout: Fanout, clock: Clock, logger: logging.Logger) -> None:
        options = fanout.options
        seconds = min(options.ping_interval, options.recheck_interval) / BEATS
        super().__init__(clock, timedelta(seconds=seconds), logger)
        self._fanout = fanout

    async def tick(self) -> bool:
        self._fanout.beat()
        await self._fanout.check_callers()
        return False


class Expiry(Loop):
    """Ends connections at the second in which their tokens expire."""

    name = "realtime expiry"
    _longest = timedelta(seconds=30)

    def __init__(self, fanout: Fanout, clock: Clock, logger: logging.Logger) -> None:
        super().__init__(clock, self._longest, logger, jitter=0)
        self._fanout = fanout
        fanout._expiry_changed = self.wake

    async def tick(self) -> bool:
        due_at = await self._fanout.expire()
        wait = self._longest
        if due_at is not None:
            wait = min(datetime.fromtimestamp(due_at, UTC) - self.clock.now(), wait)
        self.interval = max(wait, timedelta(milliseconds=1))
        return False


def beat_parts(fanout: Fanout, clock: Clock, logger: logging.Logger) -> Iterator[Loop]:
    """The loops of a hub besides the one that follows its events."""
    yield Beat(fanout, clock, logger)
    yield Expiry(fanout, clock, logger)
