"""One client: its subscriptions, what waits for it, and how it catches up when it falls behind.

A connection that reads as fast as events come is served by the fan-out at once. When what waits for it
exceeds `send_buffer`, or when it takes waiting to know whether it is shown an event, it goes on from the log
at its own pace, in a task of its own, until nothing is left. Whoever takes nothing then is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from maniflex._fence import Fence
from maniflex.db.current import detached_context
from maniflex.errors import RequestError
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import matcher
from maniflex.realtime.log import CannotContinue, FeedEntry
from maniflex.realtime.viewer import PENDING, SeenEvent, Viewer

if TYPE_CHECKING:
    from maniflex.realtime.fanout import Fanout

LOOK_EVERY = 0.25  # seconds: how often a connection that takes nothing is looked at
STUCK_AFTER = 1.0  # seconds without a byte taken
MOST_QUEUED = 256 * 1024  # bytes of frames that wait for one connection
AGAIN_AFTER = 1.0  # seconds, while the database is away
TURN = 50  # events of a replay after which others have their turn
GOING_AWAY, OUR_FAULT, TOO_SLOW = 1001, 1011, 1013
GONE, LOST_PERMISSION = 4401, 4403
log = logging.getLogger("maniflex.realtime")


class ClientSubscription:
    """Patterns of one connection."""

    __slots__ = ("connection", "id", "patterns", "position", "wants")

    def __init__(self, connection: ClientConnection, id: str, patterns: Sequence[str], position: int) -> None:
        self.connection = connection
        self.id = id
        self.patterns = tuple(patterns)
        self.position = position  # what comes up to here was given, or is not for it
        self.wants: Callable[[str], bool] = matcher(self.patterns)


class ClientConnection:
    """What connections of both kinds share; a kind says how frames look and how they are sent."""

    transport = ""  # of the metric

    def __init__(self, fanout: Fanout, viewer: Viewer) -> None:
        self.fanout = fanout
        self.viewer = viewer
        self.subscriptions: dict[str, ClientSubscription] = {}
        self.is_behind = False
        self.is_closed = False
        self.slot: Any = None  # what it counts for
        self.serving = asyncio.current_task()  # the task of its request
        self.told = -1  # the last position that the client knows of
        self.beat_at = fanout.clock.monotonic()
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._judged: tuple[FeedEntry, SeenEvent | None] | None = None

    # -- what a kind of connection says

    def frame(self, subscription: ClientSubscription, view: SeenEvent, entry: FeedEntry) -> bytes:
        """The bytes that tell of an event."""
        raise NotImplementedError

    def resync_frame(self, subscription: ClientSubscription, cursor: str) -> bytes:
        """The bytes that say that the client has to begin anew."""
        raise NotImplementedError

    def beat_frame(self, cursor: str) -> bytes | None:
        """The bytes that keep the connection alive, and move the client's position."""
        raise NotImplementedError

    @property
    def is_paused(self) -> bool:
        """Whether nothing more can be sent right now."""
        raise NotImplementedError

    @property
    def progress(self) -> Any:
        """Something that changes when the client takes anything."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Send these bytes, which never waits."""
        raise NotImplementedError

    def end(self, code: int, reason: str) -> None:
        """Say farewell and see to it that the connection ends soon."""
        raise NotImplementedError

    # -- what is given to it

    @property
    def position(self) -> int:
        """Everything up to here was given to the client, or is not for it."""
        if self.is_behind and self.subscriptions:
            return min(one.position for one in self.subscriptions.values())
        return self.fanout.dispatched

    @property
    def cursor(self) -> str:
        """Where the client stands, as it is told."""
        position = self.position
        if not self.is_behind:
            position = self.told = max(position, self.told)
        return self.fanout.log.cursor(position)

    def add(self, subscription: ClientSubscription) -> None:
        """Serve a subscription, from its position on."""
        if subscription.position < self.fanout.log.last and not self.is_behind:
            self._begin_behind(self.fanout.dispatched)
        self.subscriptions[subscription.id] = subscription
        self.fanout.topics.add(subscription)
        if self.is_behind:
            self._wake()

    def remove(self, id: str) -> bool:
        """End a subscription; False where there is none."""
        subscription = self.subscriptions.pop(id, None)
        if subscription is None:
            return False
        self.fanout.topics.remove(subscription)
        return True

    def offer(self, subscription: ClientSubscription, entry: FeedEntry) -> bool:
        """Give it an event that its subscription wants, if that needs no waiting; whether it was given."""
        fanout = self.fanout
        if fanout.options.visibility is None:
            view: Any = fanout.judge.view_now(self.viewer, entry)
        else:
            view = self._view_now(entry)
        if view is PENDING:
            self.fall_behind(entry)
            return False
        subscription.position = entry.position
        if view is None:
            return False
        frame = self.frame(subscription, view, entry)
        if self._queue or self.is_paused:
            is_full = len(self._queue) >= self.fanout.options.send_buffer
            if is_full or (self._queued + len(frame) > MOST_QUEUED and self._queue):
                subscription.position = entry.position - 1
                self.fall_behind(entry)
                return False
            self._queue.append(frame)
            self._queued += len(frame)
        else:
            self.send(frame)
        self.told = entry.position
        return True

    def say(self, frame: bytes) -> None:
        """Send something that is no event, behind what waits already."""
        if self.is_closed:
            return
        if self._queue or self.is_paused:
            self._queue.append(frame)
            self._queued += len(frame)
            if len(self._queue) > 2 * self.fanout.options.send_buffer:  # answers that it never reads
                self.kick(TOO_SLOW, "too slow")
        else:
            self.send(frame)

    def beat(self) -> None:
        """Keep the connection alive, unless it has something before it anyhow."""
        if not (self._queue or self.is_paused or self.is_closed) and self.position >= self.told:
            frame = self.beat_frame(self.cursor)
            if frame is not None:
                self.send(frame)

    def _view_now(self, entry: FeedEntry) -> Any:
        if self._judged is not None and self._judged[0] is entry:
            return self._judged[1]
        view = self.fanout.judge.view_now(self.viewer, entry)
        if view is PENDING or self.fanout.options.visibility is None:
            return view
        return self._ask_visibility(view, entry)  # type: ignore[arg-type]  # a view, or none

    def _ask_visibility(self, view: SeenEvent | None, entry: FeedEntry) -> SeenEvent | None:
        """What the application leaves this client of an event; asked once for all its subscriptions."""
        visibility = self.fanout.options.visibility
        if view is not None and visibility is not None:
            fence = Fence()
            try:
                verdict = visibility(self.viewer.who, view.event)
                if isinstance(verdict, Event):
                    view = SeenEvent(verdict)
                elif verdict is not True:
                    view = None
            except BaseException as error:
                fence.absorb(error)
                text = "visibility failed, so a client misses an event of %s"
                log.error(text, entry.event.type, exc_info=error)
                view = None
        self._judged = entry, view
        return view

    # -- behind

    def fall_behind(self, entry: FeedEntry) -> None:
        """Go on from the log, where this event is the next one."""
        if not self.is_behind:
            self._begin_behind(entry.position - 1)
            self._wake()

    def _begin_behind(self, position: int) -> None:
        self.is_behind = True
        for one in self.subscriptions.values():
            one.position = max(one.position, position)

    def begin_anew(self) -> None:
        """The events before now are others than the client thinks: say so, and go on from here."""
        for one in self.subscriptions.values():
            self._resync(one)

    def _resync(self, subscription: ClientSubscription) -> None:
        subscription.position = self.told = self.fanout.log.last
        self.fanout.metrics.add("realtime_resyncs_total")
        self.say(self.resync_frame(subscription, self.fanout.log.cursor(subscription.position)))

    def _wake(self) -> None:
        if self._task is None and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._catch_up(), context=detached_context())

    async def _catch_up(self) -> None:
        fence = Fence()
        try:
            while not (self.is_closed or self._is_level()):
                try:
                    await self._take_page()
                except CannotContinue:
                    self.begin_anew()
                except RequestError as error:  # the database is away; connections stay
                    log.debug("a client waits for the database: %s", error)
                    await asyncio.sleep(AGAIN_AFTER)
        except BaseException as error:
            fence.absorb(error)
            log.error("a client cannot be served any more", exc_info=error)
            self.kick(OUR_FAULT, "internal error")
        finally:
            self._task = None

    def _is_level(self) -> bool:
        """Whether nothing is left, so that the fan-out serves it again."""
        if self._queue or self.is_paused:
            return False
        last = self.fanout.log.last
        if any(one.position < last for one in self.subscriptions.values()):
            return False
        self.is_behind = False
        return True

    async def _take_page(self) -> None:
        """Send what waits, and the next events of the log."""
        await self._until_writable()
        subscriptions = list(self.subscriptions.values())
        if self.is_closed or not subscriptions:
            return
        start, last = min(one.position for one in subscriptions), self.fanout.log.last
        if start >= last:
            return
        entries = await self.fanout.log.read(start)
        if not entries:  # what was there is removed, as nobody needed it
            for one in subscriptions:
                one.position = max(one.position, last)
        for count, entry in enumerate(entries):
            if count % TURN == TURN - 1:
                await asyncio.sleep(0)
            await self._take(entry, subscriptions)
            if self._is_over():
                return

    async def _take(self, entry: FeedEntry, subscriptions: Sequence[ClientSubscription]) -> None:
        """Send one event to those of the subscriptions that want it."""
        behind = [one for one in subscriptions if one.position < entry.position]
        type = entry.event.type
        wanting = [] if type.startswith(CONTROL) else [one for one in behind if one.wants(type)]
        view = await self._view(entry) if wanting else None
        for one in wanting:
            if view is None or one.id not in self.subscriptions:
                continue
            if self.is_paused:
                await self._until_writable()
            if self._is_over():
                return
            self.send(self.frame(one, view, entry))
            self.told = entry.position
        for one in behind:
            one.position = max(one.position, entry.position)

    async def _view(self, entry: FeedEntry) -> SeenEvent | None:
        if self._judged is not None and self._judged[0] is entry:
            return self._judged[1]
        verdict: Any = self.fanout.judge.view_now(self.viewer, entry)
        view: SeenEvent | None = (
            await self.fanout.judge.view(self.viewer, entry) if verdict is PENDING else verdict
        )
        return view if self.fanout.options.visibility is None else self._ask_visibility(view, entry)

    # -- the way out

    def on_writable(self) -> None:
        """The client takes something again."""
        queue = self._queue
        while queue and not self.is_paused:
            frame = queue.popleft()
            self._queued -= len(frame)
            self.send(frame)
        if self._writable is not None and not self._writable.done() and not self.is_paused:
            self._writable.set_result(None)

    async def _until_writable(self) -> None:
        """Wait until what waits is sent; a client that takes nothing meanwhile is dropped."""
        progress, since = self.progress, self._time()
        while (self._queue or self.is_paused) and not self.is_closed:
            self._writable = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._writable
            except TimeoutError:
                pass
            finally:
                self._writable = None
            if self.progress != progress:
                progress, since = self.progress, self._time()
            elif self._time() - since >= self.stuck_after and (self._queue or self.is_paused):
                self.kick(TOO_SLOW, "too slow")

    stuck_after = STUCK_AFTER

    def _is_over(self) -> bool:
        return self.is_closed

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def kick(self, code: int, reason: str) -> None:
        """End the connection from our side."""
        if self.is_closed:
            return
        if code == TOO_SLOW:
            self.fanout.note_kicked()
        self.end(code, reason)
        self.close()

    def close(self) -> None:
        """It is over, whoever ended it: give its place to another."""
        if self.is_closed:
            return
        self.is_closed = True
        self.fanout.forget(self)
        for id in list(self.subscriptions):
            self.remove(id)
        self._queue.clear()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
