"""`Hub`: the same streams for a bus instead of the feed, as an ASGI application and a service.

There are no models, so nobody's rules apply but `visibility`; resume is what this process remembers, or a
`ResumeStore`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, Unpack

from starlette.requests import HTTPConnection

from maniflex._clock import Clock, SystemClock
from maniflex._ids import new_id
from maniflex.background.feed.store import FeedEvent
from maniflex.background.metrics import Metrics
from maniflex.errors import Abort, CursorGone, RequestError
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import pattern_problem
from maniflex.events.port import Bus, Handle
from maniflex.pipeline.context import AsgiScope, AuthInfo, Receive
from maniflex.pipeline.exchange import Send
from maniflex.pipeline.response import Response, error_response
from maniflex.realtime.fanout import Fanout, Stats, beat_parts
from maniflex.realtime.handshake import (
    Authenticate,
    ask,
    caller_key,
    check_origin,
    header_of,
    mask_tokens,
    origin_headers,
    query_pairs,
    with_credentials,
)
from maniflex.realtime.log import MOST_BEHIND, PAGE, CannotContinue, FeedEntry, Memory
from maniflex.realtime.options import HubOptions, library_problem, raise_problems, read_options
from maniflex.realtime.sse import EndedStream, EventStream
from maniflex.realtime.viewer import OpenJudge, Viewer
from maniflex.realtime.websocket import serve_socket


class ResumeStore(Protocol):
    """Keeps events for clients that come back, also to another process."""

    async def append(self, event: Event) -> str:
        """Keep an event; its cursor."""

    async def after(self, cursor: str, limit: int) -> Sequence[tuple[str, Event]]:
        """The next events behind a cursor, each with its own; `CursorGone` where they are not kept."""


class BusLog:
    """The events of a bus, as this process has heard of them."""

    def __init__(self, store: ResumeStore | None, buffer: int) -> None:
        self._store = store
        self._memory = Memory(buffer)
        self._epoch = secrets.token_hex(8)
        self._cursors: dict[str, int] = {}  # of the entries in memory, where a store gives them
        self._texts: dict[int, str] = {}
        self.last = 0
        self.dispatch: Callable[[Sequence[FeedEntry]], Awaitable[None]]
        self._lock = asyncio.Lock()

    async def take(self, event: Event) -> None:
        """Hand an event of the bus on."""
        if event.type.startswith(CONTROL):
            return
        async with self._lock:
            cursor = None if self._store is None else await self._store.append(event)
            self.last += 1
            if cursor is not None:
                self._texts[self.last] = cursor
                self._cursors[cursor] = self.last
                if len(self._texts) > 2 * len(self._memory) + 16:
                    self._forget()
            entry = FeedEntry(FeedEvent(event.id, event, None), self.last, self.cursor(self.last))
            self._memory.add(entry)
            await self.dispatch([entry])

    def _forget(self) -> None:
        for position in [one for one in self._texts if one < self._memory.first]:
            self._cursors.pop(self._texts.pop(position), None)  # whoever is there begins anew

    def cursor(self, position: int) -> str:
        return self._texts.get(position) or f"{self._epoch}:{position}"

    async def locate(self, cursor: str) -> int:
        position = self._cursors.get(cursor)
        if position is not None:
            return position
        epoch, _, digits = cursor.partition(":")
        if epoch == self._epoch and digits.isascii() and digits.isdecimal() and len(digits) < 18:
            place = int(digits)
            if self._memory.first <= place <= self.last:
                return place
        return await self._locate_in_store(cursor)

    async def _locate_in_store(self, cursor: str) -> int:
        """The position of a cursor that the store alone knows: so far before what is known here."""
        pairs = await self._read_store(cursor, MOST_BEHIND)
        for place, (one, _) in enumerate(pairs):
            if one in self._cursors:
                position = self._cursors[one] - 1 - place
                break
        else:
            position = self.last - len(pairs)
        self._texts[position] = cursor
        return position

    async def _read_store(self, cursor: str, limit: int) -> Sequence[tuple[str, Event]]:
        if self._store is None:
            raise CannotContinue()
        try:
            return await self._store.after(cursor, limit)
        except CursorGone:
            raise CannotContinue() from None

    async def read(self, after: int) -> Sequence[FeedEntry]:
        entries = self._memory.read(after)
        if entries is not None:
            return entries
        cursor = self._texts.get(after)
        if cursor is None:
            raise CannotContinue()
        rows = await self._read_store(cursor, min(PAGE, self.last - after))
        older = []
        for position, (text, event) in enumerate(rows, after + 1):
            self._texts[position] = text
            older.append(FeedEntry(FeedEvent(event.id, event, None), position, text))
        return older


class Hub:
    """WebSocket and SSE clients of a bus: an ASGI application with both paths, and a service."""

    def __init__(
        self,
        bus: Bus,
        *,
        authenticator: Authenticate,
        resume_store: ResumeStore | None = None,
        clock: Clock | None = None,
        **options: Unpack[HubOptions],
    ) -> None:
        self.options, problems = read_options(options)
        if not callable(getattr(bus, "subscribe", None)):
            problems.append(f"{bus!r} is no bus")
        fn: Any = authenticator
        if not callable(fn):
            problems.append("authenticator= says who connects; AnonymousOnly() takes everybody")
        if missing := library_problem(self.options):
            problems.append(missing)
        raise_problems("Hub", problems)
        self._bus = bus
        self._authenticator = authenticator
        self._clock: Clock = SystemClock() if clock is None else clock
        self._logger = logging.getLogger("maniflex.realtime")
        self._log = BusLog(resume_store, self.options.resume_buffer)
        self._handle: Handle | None = None
        self.metrics = Metrics()
        judge = OpenJudge(self.options.allow_patterns)
        self._fanout = Fanout(
            self.options, self._log, judge, self._clock, self.metrics, self._find_caller_again
        )
        self._log.dispatch = self._fanout.dispatch
        self._loops = list(beat_parts(self._fanout, self._clock, self._logger))

    @property
    def websocket_options(self) -> Any:
        """What the protocol of WebSocket connections is told, under our own listener."""
        return self.options.socket_options

    def stats(self) -> Stats:
        """Connections, subscriptions, clients that were too slow, and how late the last event was."""
        return self._fanout.stats()

    async def start(self) -> None:
        """Subscribe to the bus; this process hears every event, whatever others hear."""
        mask_tokens()
        self._fanout.is_stopping = False
        await self._bus.open()
        self._handle = await self._bus.subscribe("*", handler=self._log.take, group=f"hub-{new_id()}")
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Let clients go, and take no more events."""
        self._fanout.end_all()
        if self._handle is not None:
            await self._handle.cancel()
            self._handle = None
        for loop in self._loops:
            await loop.stop()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path: str = scope["path"]
        if (root := scope.get("root_path")) and path.startswith(root):
            path = path[len(root) :] or "/"
        if scope["type"] == "websocket":
            await self._serve_socket(path, scope, receive, send)
        elif scope["type"] == "http":
            await self._serve_http(path, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            self._logger.error("the hub could not start: %s", error)
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _find_caller(self, scope: AsgiScope, *, is_websocket: bool, token: str | None = None) -> Viewer:
        if self._fanout.is_stopping:
            raise Abort(503, "UNAVAILABLE", "the server goes away", headers={"retry-after": "1"})
        check_origin(scope, self.options, is_websocket=is_websocket)
        request = with_credentials(scope, token)
        auth = await ask(self._authenticator, HTTPConnection({**request, "type": "http"}))
        key = caller_key(request)
        return self._fanout.viewer(key, lambda: Viewer(key, auth, request))

    async def _find_caller_again(self, viewer: Viewer) -> AuthInfo:
        return await ask(self._authenticator, HTTPConnection({**viewer.scope, "type": "http"}))

    async def _serve_socket(self, path: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            if path != self.options.ws:
                raise Abort(404, "NOT_FOUND", "there is nothing here")
            viewer = await self._find_caller(scope, is_websocket=True)

            async def admit(token: str) -> Viewer:
                return await self._find_caller(scope, is_websocket=True, token=token)

            await serve_socket(scope, receive, send, self._fanout, viewer, admit)
        except RequestError as refusal:
            self._fanout.note_refused(refusal.code)
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": 1008})
            else:
                await _send(error_response(refusal), send, "websocket.http.response")

    async def _serve_http(self, path: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            if path == self.options.ws:
                raise Abort(
                    426, "UPGRADE_REQUIRED", "this path speaks WebSocket", headers={"upgrade": "websocket"}
                )
            if path != self.options.sse:
                raise Abort(404, "NOT_FOUND", "there is nothing here")
            if scope["method"] not in ("GET", "HEAD"):
                headers = {"allow": "GET, HEAD"}
                raise Abort(405, "METHOD_NOT_ALLOWED", "the path has no such method", headers=headers)
            stream = await self._stream(scope)
        except RequestError as refusal:
            self._fanout.note_refused(refusal.code)
            await _send(error_response(refusal), send, "http.response")
            return
        await stream(scope, receive, send)

    async def _stream(self, scope: AsgiScope) -> EventStream:
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in origin_headers(scope, self.options)}
        if self._fanout.is_stopping:
            return EndedStream(headers)
        viewer = await self._find_caller(scope, is_websocket=False)
        pairs = query_pairs(scope)
        patterns = list(dict.fromkeys(value for name, value in pairs if name == "subscribe")) or ["*"]
        if any(pattern_problem(one) is not None for one in patterns):
            raise Abort(422, "BAD_PATTERN", "a pattern is not well-formed")
        await self._fanout.judge.grant(viewer, patterns)
        cursor = header_of(scope, b"last-event-id") or next(
            (value for name, value in pairs if name == "lastEventId"), ""
        )
        position: int | None = self._log.last
        if cursor:
            try:
                position = await self._log.locate(cursor)
            except CannotContinue:
                position = None
        return EventStream(self._fanout, viewer, patterns, position, headers, _refuse_stream)


async def _refuse_stream(refusal: RequestError, scope: AsgiScope, send: Send) -> None:
    await _send(error_response(refusal), send, "http.response")


async def _send(response: Response, send: Send, kind: str) -> None:
    """Answer with a refusal."""
    import msgspec

    body = response.encode(msgspec.json.Encoder().encode)
    headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in (response.headers or {}).items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
