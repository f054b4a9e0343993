"""`server.realtime`: WebSocket and SSE clients of the feed, who resume on any replica.

`enable` declares it. At the start it is given the routes of the models, so that it shows what they would;
while the server runs, one loop follows the feed and a fan-out hands events to connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from starlette.requests import HTTPConnection

from maniflex._callables import explain_arguments
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.feed.api import Events
from maniflex.background.feed.audience import Audience, subscribe_endpoint
from maniflex.errors import Abort, RequestError
from maniflex.events.patterns import pattern_problem
from maniflex.http.protocol import SocketOptions
from maniflex.pipeline.answer import answer, send_answer
from maniflex.pipeline.context import AsgiScope, AuthInfo, Context, Receive
from maniflex.pipeline.exchange import OWN_ORIGINS, Send
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, error_response, status_of
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs
from maniflex.pipeline.runtime import Runtime
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
from maniflex.realtime.log import CannotContinue, FeedLog
from maniflex.realtime.options import HubOptions, HubSettings, library_problem, read_options
from maniflex.realtime.sse import MEDIA_TYPE, EndedStream, EventStream
from maniflex.realtime.viewer import FeedJudge, Viewer
from maniflex.realtime.websocket import MOST_PATTERNS, serve_socket

STREAMS = "Streams"  # the group of the routes in the API description
_LEAVES_WITHIN = 2.0  # seconds that connections have to end in when the hub stops
log = logging.getLogger("maniflex.realtime")


@dataclass(slots=True)
class _RunningHub:
    """What a started hub consists of."""

    log: FeedLog
    fanout: Fanout


class Realtime(DeclaredPart):
    """Declares the hub of a server, and asks it when it is at work."""

    too_late = "the server is sealed; realtime is enabled before it starts"
    too_early = "the hub is asked once the server is started"
    not_used = "realtime is not in use: server.realtime.enable() before the start"

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events
        self.options = HubSettings()
        self._authenticator: Authenticate | None = None
        self._problems: list[str] = []
        self._work: _RunningHub | None = None
        self._audience: Audience | None = None
        self._runtime: Runtime | None = None
        self._who: Endpoint | None = None  # the chain that finds out who connects
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @explain_arguments("server.realtime.enable")
    def enable(self, *, authenticator: Authenticate | None = None, **options: Unpack[HubOptions]) -> None:
        """Serve events to WebSocket clients at `ws` and to `EventSource` at `sse`, as REST would show them.

        Without an `authenticator`, the server's own auth step says who connects. Every word is explained in
        docs/realtime/index.md.
        """
        self.require_open()
        self.options, problems = read_options(options)
        if self._enabled:
            problems.append("it was called already")
        fn: Any = authenticator
        if fn is not None and not callable(fn):
            problems.append(f"authenticator={authenticator!r} is no function of a request")
        if missing := library_problem(self.options):
            problems.append(missing)
        self._problems += [f"realtime.enable: {problem}" for problem in problems]
        self._authenticator = authenticator
        self._enabled = True
        self._events.use_feed()
        self._events.revocations.is_used = True

    def problems(self) -> list[str]:
        return list(self._problems)

    @property
    def asks_nobody(self) -> bool:
        """Whether nobody is asked who connects."""
        from maniflex.realtime.handshake import AnonymousOnly

        return isinstance(self._authenticator, AnonymousOnly)

    @property
    def has_authenticator(self) -> bool:
        """Whether the application names somebody else than its auth step to say who connects."""
        return self._authenticator is not None

    @property
    def socket_options(self) -> SocketOptions | None:
        """What the protocol of WebSocket connections is told; None where there are none."""
        return self.options.socket_options if self.is_used else None

    # -- being wired

    def endpoints(self, routes: RouteBuilder) -> Iterator[Endpoint]:
        """The routes of the hub."""
        options = self.options
        if options.sse is not None:
            respond = self._answer_stream
            for method in ("GET", "HEAD"):
                about = _ABOUT_STREAM if method == "GET" else _ABOUT_STREAM.of_head()
                yield self._endpoint(routes, method, options.sse, respond, about)
        if options.ws is not None:
            yield routes.bare(
                "GET", options.ws, _demand_upgrade, owner="realtime", about=_ABOUT_SOCKET, mount=Mount.ROOT
            )

    def private_endpoints(self, routes: RouteBuilder) -> Iterator[Endpoint]:
        """The chain of handshakes."""
        self._who = self._endpoint(routes, "GET", "/", _admit_socket, None)
        yield self._who
        for store in routes.runtime.stores.values():
            if not store.meta.is_internal:
                endpoint = subscribe_endpoint(routes, store.meta)
                yield from () if endpoint is None else (endpoint,)

    def _endpoint(
        self, routes: RouteBuilder, method: str, path: str, respond: Any, about: RouteDocs | None
    ) -> Endpoint:
        return routes.endpoint(
            method,
            path,
            Operation.SUBSCRIBE,
            steps=() if self._authenticator is not None else ("auth",),
            outer=[("realtime", self._judge_handshake)],
            respond=respond,
            owner="realtime",
            about=about,
            mount=Mount.ROOT,
        )

    def judge_by(self, routes: RouteBuilder) -> None:
        """The rules of the models are sealed: what clients are shown follows from them."""
        self._runtime = routes.runtime
        self._audience = Audience(routes, self._events, routes.runtime.clock.now)

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self._work = None
        if self.is_used:
            mask_tokens()

    def services(self) -> Sequence[Service]:
        """Nothing that works in the background alone: a hub serves wherever HTTP is served."""
        return ()

    def hub_services(self) -> Sequence[Service]:
        """What runs in a process that serves HTTP."""
        if not self.is_used or self._audience is None:
            return ()
        environment = self.require_sealed()
        config, clock, logger = environment.config, environment.clock, environment.logger
        interval = config.event_poll_interval
        feed = FeedLog(self._events.store, clock, interval, logger, self.options.resume_buffer)
        self._audience.on_withheld = partial(environment.metrics.add, "realtime_withheld_total")
        judge = FeedJudge(self._audience, self._events, self.options.allow_patterns, self._context)
        fanout = Fanout(self.options, feed, judge, clock, environment.metrics, self._find_caller_again)
        feed.dispatch, feed.on_new_epoch = fanout.dispatch, fanout.begin_anew
        self._work = _RunningHub(feed, fanout)
        self._events.on_routed.append(feed.wake)
        return [feed, *beat_parts(fanout, clock, logger), _Closing(self)]

    @property
    def _fanout(self) -> Fanout:
        if self._work is None:
            raise Abort(503, "UNAVAILABLE", "the server does not run")
        return self._work.fanout

    # -- asking and telling

    def stats(self) -> Stats:
        """Connections, subscriptions, clients that were too slow, and how late the last events were."""
        self.require_sealed()
        return Stats(0, 0, 0, 0.0) if self._work is None else self._work.fanout.stats()

    async def disconnect(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
        token_id: str | None = None,
    ) -> None:
        """End the connections of a user, session, tenant or token (its claim `jti`), on every replica."""
        self.require_sealed()
        if not (user_id or session_id or tenant_id or token_id):
            raise ValueError("whose connections end? Name user_id=, session_id=, tenant_id= or token_id=")
        await self._events.revocations.note(
            user_id=user_id, session_id=session_id, tenant_id=tenant_id, token_id=token_id
        )

    def end_streams(self) -> None:
        """The process stops: let clients go, at once. Signal handlers call it."""
        loop, work = self._event_loop, self._work
        if loop is not None and work is not None and not loop.is_closed():
            loop.call_soon_threadsafe(work.fanout.end_all)

    # -- handshakes

    async def _judge_handshake(self, ctx: Context, next: Next) -> None:
        """What comes before anybody is asked who connects: a server that stops, the origin, credentials."""
        scope, fanout = ctx.scope, self._fanout
        is_websocket = "subprotocols" in scope
        scope[OWN_ORIGINS] = True
        if fanout.is_stopping:
            if is_websocket:
                raise Abort(503, "UNAVAILABLE", "the server goes away", headers={"retry-after": "1"})
            stream = EndedStream(_as_texts(origin_headers(scope, self.options)))
            ctx.response = stream  # type: ignore[assignment]  # as answers of Starlette are
            return
        try:
            check_origin(scope, self.options, is_websocket=is_websocket)
        except Abort as refusal:
            fanout.note_refused(refusal.code)
            raise
        ctx.scope = with_credentials(scope)
        if self._authenticator is not None:
            ctx.auth = await ask(self._authenticator, HTTPConnection({**ctx.scope, "type": "http"}))
            ctx.authenticated = True
        await next()

    async def _find_caller(self, scope: AsgiScope) -> Viewer:
        """Who connects with this handshake; the refusal where nobody may."""
        assert self._who is not None
        assert self._runtime is not None
        ctx = Context(self._runtime, scope, _hear_nothing, Operation.SUBSCRIBE, _id_of(self._runtime, scope))
        response = await answer(self._who, ctx, self._runtime.watch)
        if status_of(response) >= 400:
            raise _Answered(response)
        return self._viewer_of(ctx)

    def _viewer_of(self, ctx: Context) -> Viewer:
        scope = _kept_of(ctx.scope)
        key = caller_key(scope)
        return self._fanout.viewer(key, lambda: Viewer(key, ctx.auth, scope))

    async def _find_caller_again(self, viewer: Viewer) -> AuthInfo | None:
        """Who has connected, by the same handshake; `RequestError` where it is not welcome any more."""
        assert self._who is not None
        assert self._runtime is not None
        scope = dict(viewer.scope)
        ctx = Context(self._runtime, scope, _hear_nothing, Operation.SUBSCRIBE, _id_of(self._runtime, scope))
        status = status_of(await answer(self._who, ctx, self._runtime.watch))
        if status >= 400:
            raise Abort(status, "REFUSED", "the caller is not welcome any more")
        return ctx.auth

    def _context(self, viewer: Viewer) -> Context:
        """A request of the caller for a model."""
        assert self._runtime is not None
        scope = {**viewer.scope, "query_string": b""}
        ctx = Context(self._runtime, scope, _hear_nothing, Operation.SUBSCRIBE, "subscribe")
        if viewer.auth is not None:
            ctx.auth, ctx.authenticated = replace(viewer.auth), True
        ctx.csrf_exempt = True
        return ctx

    # -- WebSockets

    async def serve_websocket(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket connection, or refuse it."""
        await receive()  # its wish to connect
        path: str = scope["path"]
        if (root := scope.get("root_path")) and path.startswith(root):
            path = path[len(root) :] or "/"
        assert self._runtime is not None
        try:
            if path != self.options.ws:
                raise self._runtime.no_such_path(path)
            request = {**scope, "type": "http", "method": "GET"}
            fanout = self._fanout
            viewer = await self._find_caller(request)
            admit = partial(self._admit_again, scope)
            await serve_socket(scope, receive, send, fanout, viewer, admit)
        except _Answered as refused:
            if self._work is not None:
                code = "" if refused.response.error is None else str(refused.response.error.get("code", ""))
                if code != "ORIGIN_DENIED":
                    self._work.fanout.note_refused(code)
            await self._refuse(refused.response, scope, send)
        except RequestError as refusal:
            if self._work is not None:
                self._work.fanout.note_refused(refusal.code)
            await self._refuse(error_response(refusal), scope, send)

    async def _admit_again(self, scope: AsgiScope, token: str) -> Viewer:
        """The caller of another token on the same connection."""
        try:
            return await self._find_caller(with_credentials({**scope, "subprotocols": []}, token))
        except _Answered as refused:
            raise Abort(status_of(refused.response), "UNAUTHORIZED", "the token is not valid") from None

    async def _refuse(self, response: Response, scope: AsgiScope, send: Send) -> None:
        """Answer a handshake with a refusal: as the envelope, where the HTTP server can."""
        assert self._runtime is not None
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        body = response.encode(self._runtime.encode)
        headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in (response.headers or {}).items()]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-request-id", self._runtime.request_ids.identify(scope)[0]),
        ]
        start = {"type": "websocket.http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": body})

    # -- SSE

    async def _answer_stream(self, ctx: Context) -> None:
        """The stream, for a caller who may have what it asks for."""
        fanout = self._fanout
        if ctx.response is not None:
            if status_of(ctx.response) >= 400 and isinstance(ctx.response, Response):
                code = str((ctx.response.error or {}).get("code", ""))
                if code != "ORIGIN_DENIED":
                    fanout.note_refused(code)
            return
        pairs = query_pairs(ctx.scope)
        patterns = list(dict.fromkeys(value for name, value in pairs if name == "subscribe")) or ["*"]
        problems = [f"{one} {wrong}" for one in patterns if (wrong := pattern_problem(one)) is not None]
        if len(patterns) > MOST_PATTERNS:
            problems.append(f"there are more than {MOST_PATTERNS} patterns")
        if problems:
            details = [{"field": "subscribe", "code": "bad_pattern", "message": one} for one in problems]
            raise Abort(422, "BAD_PATTERN", "a pattern is not well-formed", details)
        viewer = self._viewer_of(ctx)
        if patterns != ["*"] or self.options.allow_patterns:
            try:
                await fanout.judge.grant(viewer, patterns)
            except Abort as refusal:
                fanout.note_refused(refusal.code)
                raise
        position = await self._position(ctx, pairs)
        headers = _as_texts(origin_headers(ctx.scope, self.options))
        refuse = partial(_refuse_stream, ctx.runtime)
        stream = EventStream(fanout, viewer, patterns, position, headers, refuse)
        ctx.response = stream  # type: ignore[assignment]  # as answers of Starlette are

    async def _position(self, ctx: Context, pairs: Sequence[tuple[str, str]]) -> int | None:
        """Where the client goes on; None where it cannot."""
        cursor = header_of(ctx.scope, b"last-event-id")
        if not cursor:
            cursor = next((value for name, value in pairs if name == "lastEventId"), "")
        feed = self._fanout.log
        if not cursor:
            return feed.last
        try:
            return await feed.locate(cursor)
        except CannotContinue:
            return None


class _Answered(Exception):
    """A handshake was refused, by this answer."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response: Response = response


class _Closing:
    """Ends the connections when the services of the server stop, before the hub's own loops do."""

    def __init__(self, realtime: Realtime) -> None:
        self._realtime = realtime

    async def start(self) -> None:
        work = self._realtime._work
        self._realtime._event_loop = asyncio.get_running_loop()
        if work is not None:
            await work.log.know()
            work.fanout.dispatched = work.log.last

    async def stop(self) -> None:
        work, self._realtime._event_loop = self._realtime._work, None
        if work is None:
            return
        work.fanout.end_all()
        await work.fanout.until_left(_LEAVES_WITHIN)


def _admit_socket(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(204)


async def _demand_upgrade(ctx: Context) -> None:
    raise Abort(426, "UPGRADE_REQUIRED", "this path speaks WebSocket", headers={"upgrade": "websocket"})


async def _refuse_stream(runtime: Runtime, refusal: RequestError, scope: AsgiScope, send: Send) -> None:
    await send_answer(error_response(refusal), scope, send, runtime)


async def _hear_nothing() -> dict[str, Any]:
    """What a request that is a handshake hears of its client: nothing while it is judged."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def _id_of(runtime: Runtime, scope: AsgiScope) -> str:
    return runtime.request_ids.identify(scope)[0].decode("ascii")


_KEPT = ("type", "method", "path", "raw_path", "root_path", "query_string", "headers", "client", "server",
         "scheme", "http_version", "app")  # fmt: skip


def _kept_of(scope: AsgiScope) -> AsgiScope:
    """What stays of a handshake as long as its connection."""
    return {name: scope[name] for name in _KEPT if name in scope}


def _as_texts(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


_ABOUT_STREAM = RouteDocs(
    name="stream_events",
    summary="Stream events",
    description=(
        "Server-Sent Events: every event that the caller may see and that matches, as a CloudEvent, until one"
        " side leaves. A client that comes back goes on behind the last id that it has seen."
    ),
    tags=(STREAMS,),
    parameters=(
        {
            "name": "subscribe",
            "in": "query",
            "description": "A pattern of types such as `order.*`; may be repeated. All without any.",
            "schema": {"type": "array", "items": {"type": "string"}},
        },
        {
            "name": "lastEventId",
            "in": "query",
            "description": "The cursor to go on from, for clients that cannot set the header.",
            "schema": {"type": "string"},
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The cursor to go on from, as browsers send it.",
            "schema": {"type": "string"},
        },
    ),
    media=(MEDIA_TYPE.partition(";")[0],),
    answer_texts={200: "The stream."},
    errors=(401, 403, 422, 503),
    codes=("BAD_PATTERN", "FORBIDDEN_PATTERN", "ORIGIN_DENIED", "TOO_MANY_CONNECTIONS"),
)
_ABOUT_SOCKET = RouteDocs(
    name="open_websocket",
    summary="Open a WebSocket",
    description="The path of the WebSocket protocol; a request that is no handshake is refused.",
    tags=(STREAMS,),
    status=101,
    answer_texts={101: "The connection speaks WebSocket from here on."},
    errors=(426,),
    codes=("UPGRADE_REQUIRED",),
)
