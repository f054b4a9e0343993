"""ASGI in, `Context` out: find the endpoint of a path, run the pipeline, send the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, MutableMapping
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

from maniflex._fence import Fence
from maniflex._json import text_trouble
from maniflex.errors import MethodNotAllowed, NotFound, OwnAnswerTooLarge, RequestError
from maniflex.pipeline.answer import answer, failure, translate_refusal
from maniflex.pipeline.context import AsgiScope, Context, Header, Receive
from maniflex.pipeline.exchange import OBSERVED
from maniflex.pipeline.exchange import App as App
from maniflex.pipeline.exchange import Send as Send
from maniflex.pipeline.large_answers import write_answer
from maniflex.pipeline.response import JSON, Response, error_response, panic_response
from maniflex.pipeline.routes import Endpoint, set_params
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.watch import ClientGone

# Paths → endpoints, by dictionary: finding a route costs the same with one model or a thousand.
#
# A fixed segment goes before a parameter in the same place, and a parameter before the rest of a path,
# which `/files/{key...}` has. Two endpoints that want the same method on the same path are a mistake, found
# when the routes are built.


E = TypeVar("E")
_NO_PARAMS: Mapping[str, str] = {}
_REST = "..."  # in the name of a parameter that takes the rest of a path, slashes included


class Route(Generic[E]):
    """What one path answers to."""

    __slots__ = ("allow", "methods", "names")

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, ...]] = {}  # each method may call its parameters as it likes
        self.methods: dict[str, E] = {}
        self.allow = ""

    def add(self, method: str, endpoint: E, names: tuple[str, ...]) -> None:
        self.methods[method] = endpoint
        self.names[method] = names
        self.allow = ", ".join(sorted(self.methods))


class _Node(Generic[E]):
    __slots__ = ("fixed", "parameter", "route")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node[E]] = {}
        self.parameter: _Node[E] | None = None
        self.route: Route[E] | None = None


class Router(Generic[E]):
    """All routes of a server."""

    def __init__(self) -> None:
        self._whole: dict[str, Route[E]] = {}  # paths without parameters
        self._last: dict[str, Route[E]] = {}  # one parameter, at the end: by what is before it
        self._root: _Node[E] = _Node()
        self._tails: dict[str, Route[E]] = {}  # the rest of a path: by what is before it

    def add(self, method: str, path: str, endpoint: E) -> E | None:
        """Mount an endpoint; gives back the one that already has this method and path."""
        segments = path.split("/")[1:]
        names = tuple(s[1:-1].removesuffix(_REST) for s in segments if _is_parameter(s))
        route = self._route(path, segments, names)
        existing = route.methods.get(method)
        if existing is None:
            route.add(method, endpoint, names)
        return existing

    def _route(self, path: str, segments: list[str], names: tuple[str, ...]) -> Route[E]:
        if not names:
            return self._whole.setdefault(path, Route())
        if path.endswith(_REST + "}"):
            return self._tails.setdefault(path.rpartition("{")[0], Route())
        if len(names) == 1 and _is_parameter(segments[-1]):
            return self._last.setdefault(path.rpartition("/")[0], Route())
        node = self._root
        for segment in segments:
            if _is_parameter(segment):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        node.route = node.route or Route()
        return node.route

    def find(self, path: str, method: str) -> tuple[Route[E] | None, str | Mapping[str, str]]:
        """The route of a path, preferring one that has the method; with its parameter or parameters."""
        other: tuple[Route[E] | None, str | Mapping[str, str]] = (None, _NO_PARAMS)
        route = self._whole.get(path)
        if route is not None:
            if method in route.methods:
                return route, _NO_PARAMS
            other = (route, _NO_PARAMS)
        base, _, last = path.rpartition("/")
        if last:
            route = self._last.get(base)
            if route is not None:
                if method in route.methods:
                    return route, last
                other = other if other[0] else (route, last)
        for candidate, values in _walk(self._root, path.split("/")[1:], ()):
            match = (candidate, dict(zip(candidate.names.get(method, ()), values, strict=False)))
            if method in candidate.methods:
                return match
            other = other if other[0] else match
        if other[0] is None:
            for base, tail in self._tails.items():
                if path.startswith(base):
                    return tail, path[len(base) :]
        return other

    def paths(self) -> list[str]:
        """Fixed parts of every route, for finding what a mount would hide."""
        return [*self._whole, *(f"{base}/" for base in self._last), *self._tails]


def _is_parameter(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _walk(
    node: _Node[E], segments: list[str], values: tuple[str, ...]
) -> Iterable[tuple[Route[E], tuple[str, ...]]]:
    if not segments:
        if node.route is not None:
            yield node.route, values
        return
    head, *rest = segments
    child = node.fixed.get(head)
    if child is not None:
        yield from _walk(child, rest, values)
    if node.parameter is not None and head:
        yield from _walk(node.parameter, rest, (*values, head))


_JSON_TYPE = (b"content-type", JSON.encode())
# Answers are private and soon out of date; code that knows better sets the header.
_NO_STORE = (b"cache-control", b"no-store")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class HttpApp:
    """Serves a sealed server over HTTP."""

    def __init__(self, runtime: Runtime, router: Router[Endpoint], mounts: dict[str, App]) -> None:
        quiet_aborts()
        self._runtime = runtime
        self._router = router
        self._find = router.find
        self._mounts = mounts
        self._watch = runtime.watch
        self._encode = runtime.encode
        name = runtime.config.service_name
        self._service = ((b"x-service-name", name.encode("latin-1", "replace")),) if name else ()
        self._identify = runtime.request_ids.identify
        self._shows_times = runtime.config.trace.on("timings")

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if (root := scope.get("root_path")) and path.startswith(root):
            path = path[len(root) :] or "/"
        method: str = scope["method"]
        route, params = self._find(path, method)
        endpoint = route.methods.get(method) if route is not None else None
        if endpoint is None:
            await self._serve_without_endpoint(route, path, scope, receive, send)
            return
        request_id, traceparent = self._identify(scope)
        ctx = endpoint.context(self._runtime, scope, receive, endpoint.operation, request_id.decode("ascii"))
        ctx.model = endpoint.model  # type: ignore[assignment]  # an action has none
        if OBSERVED in scope:
            request = scope[OBSERVED]
            request.context, request.endpoint = ctx, endpoint
        if traceparent:
            ctx.traceparent, ctx.trace_id = traceparent, traceparent[3:35]
        if params and ("\x00" in path or not path.isascii()) and text_trouble(path):
            await self._refuse(NotFound(), request_id, scope, receive, send)
            return
        if type(params) is str and endpoint.model is not None:  # most requests with parameters
            ctx.resource_id = params
        elif params:
            set_params(ctx, endpoint, route.names[method], params)  # type: ignore[union-attr]  # it has one
        try:
            response = await answer(endpoint, ctx, self._watch)
        except ClientGone:
            return
        if self._shows_times and ctx.step_times is not None and ctx.has_role(self._runtime.config.admin_role):
            ctx.add_header("server-timing", ctx.step_times.header())
        if ctx.extra_headers is not None:
            send = with_headers(send, ctx.extra_headers)
        if type(response) is Response:
            if response.stream is None:
                rest = None
                if not (ctx.body_complete or method in _WITHOUT_BODY):
                    rest = unread_body(scope, receive, asked=ctx.body_asked)
                await self._send(response, request_id, scope, send, rest)
            else:
                await self._stream(response, response.stream, ctx, request_id, send)
        else:
            self._complete_headers(response, request_id)
            chunks = getattr(response, "body_iterator", None)
            if chunks is not None and not isinstance(chunks, FencedChunks):  # it may be sent again
                response.body_iterator = FencedChunks(chunks)
            await send_fenced(response, scope, receive, send)

    def _complete_headers(self, response: Any, request_id: bytes) -> None:
        """Give an answer of Starlette the headers that all of ours have, unless it has them."""
        for name, value in ((b"x-request-id", request_id), _NO_STORE, *self._service):
            response.headers.setdefault(name.decode(), value.decode("latin-1"))

    async def _serve_without_endpoint(
        self, route: Route[Endpoint] | None, path: str, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        """Hand the request to an application mounted under a prefix of its path, or refuse it."""
        request = scope.get(OBSERVED)
        if request is not None:
            request.proxies = self._runtime.proxies
        for prefix, app in self._mounts.items():
            if path == prefix or path.startswith(prefix + "/"):
                if request is not None:
                    request.route = f"{prefix}/{{path}}"
                await app(scope, receive, send)
                return
        error = (
            self._runtime.no_such_path(path)
            if route is None
            else MethodNotAllowed(headers={"allow": route.allow})
        )
        await self._refuse(error, self._identify(scope)[0], scope, receive, send)

    async def _send(
        self,
        response: Response,
        request_id: bytes,
        scope: AsgiScope,
        send: Send,
        rest: Inbound | None = None,
    ) -> None:
        try:
            body = response.body
            if body is None:
                body = await write_answer(response, self._runtime)
            extra = [_header(*pair) for pair in response.headers.items()] if response.headers else ()
        except OwnAnswerTooLarge as error:
            about = {"request_id": request_id.decode("ascii")}
            self._runtime.logger.error("%s %s: %s", error.status, error.code, error, extra=about)
            response = error_response(error)
            body, extra = response.encode(self._encode), ()
        except GeneratorExit:
            raise
        except BaseException as error:  # iterators of the application run here
            failed = Fence().absorb(error)
            about = {"request_id": request_id.decode("ascii")}
            self._runtime.panic_logger.error("an answer could not be encoded", exc_info=failed, extra=about)
            response = panic_response()
            body, extra = response.encode(self._encode), ()
        if response.error is not None and OBSERVED in scope:
            scope[OBSERVED].code = str(response.error.get("code", ""))
        kind = _JSON_TYPE if response.content_type == JSON else _header("content-type", response.content_type)
        headers = [kind, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
        if response.status in (204, 304):
            del headers[:2]
        if self._service:
            headers += self._service
        if not extra:
            headers.append(_NO_STORE)
        else:
            headers += extra
            if not _sets_caching(response.headers):
                headers.append(_NO_STORE)
        if response.marks:
            headers += response.marks
        if rest is not None:
            await _send_before(rest, response.status, headers, body, send)
            return
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        if scope["method"] == "HEAD":
            body = b""
        if OBSERVED in scope and scope[OBSERVED] is send:
            request: Any = send
            # Nothing stands between us and the server, so the messages need not be looked at again.
            request.start, request.size, send = start, len(body), request.send
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self,
        response: Response,
        stream: AsyncGenerator[bytes, None],
        ctx: Context,
        request_id: bytes,
        send: Send,
    ) -> None:
        try:
            extra = [_header(*pair) for pair in (response.headers or {}).items()]
            headers = [_header("content-type", response.content_type), (b"x-request-id", request_id)]
        except Exception as error:
            await self._send(failure(ctx, error), request_id, ctx.scope, send)
            return
        headers += [*self._service, *extra]
        if not _sets_caching(response.headers):
            headers.append(_NO_STORE)
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        if ctx.scope["method"] == "HEAD":
            await stream.aclose()
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        instead = await deliver(stream, start, ctx, send)
        if instead is not None:
            await self._send(instead, request_id, ctx.scope, send)

    async def _refuse(
        self, error: RequestError, request_id: bytes, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        """Refuse a request before its body is read."""
        rest = None if scope["method"] in _WITHOUT_BODY else unread_body(scope, receive, asked=False)
        response = error_response(error)
        translate_refusal(response, scope, self._runtime)
        await self._send(response, request_id, scope, send, rest)


def with_headers(send: Send, headers: list[Header]) -> Send:
    """The same, with these headers in the answer; a `Cache-Control` among them is the only one."""
    sets_caching = any(name == b"cache-control" for name, _ in headers)

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            others = [h for h in message["headers"] if not (sets_caching and h[0] == b"cache-control")]
            message = {**message, "headers": [*others, *headers]}
        await send(message)

    return send_with_headers


async def _send_before(
    rest: Inbound, status: int, headers: list[tuple[bytes, bytes]], body: bytes, send: Send
) -> None:
    """Answer a request whose body is still arriving."""
    if rest.closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await rest.drop()
    await send({"type": "http.response.body", "body": b""})


def _sets_caching(headers: dict[str, str] | None) -> bool:
    return headers is not None and ("cache-control" in headers or "Cache-Control" in headers)


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    """A response header; a line break in it would start another one."""
    if "\n" in value or "\r" in value or "\n" in name or "\r" in name:
        raise ValueError(f"the header {name!r} contains a line break")
    return name.encode("latin-1"), value.encode("latin-1")


# The body of a request that is answered before it was read.
#
# A server that closes a connection while the client is still sending makes the client's system throw the
# answer away, and the client sees a reset. So the answer is sent first, and what still comes is read and
# dropped, up to a size and a time, before the exchange ends.


DROP_AT_MOST = 32 * 1024 * 1024  # bytes
DROP_WITHIN = 10.0  # seconds
# So little is in the buffers of the server already, or will be; the connection can be kept.
SMALL = 64 * 1024


class Inbound:
    """The part of a body that has not arrived when the answer is ready, and how to answer before it."""

    __slots__ = ("_complete", "_receive", "closes", "comes")

    def __init__(self, receive: Receive, closes: bool, comes: bool) -> None:
        self._receive = receive
        self._complete = False
        self.closes = closes  # say that the connection will be closed
        self.comes = comes  # the client sends it without being told to

    async def drop(self) -> None:
        """Read the rest of the body and forget it, within bounds."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_WITHIN):
                while self.comes and not self._complete and size <= DROP_AT_MOST:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    self._complete = not message.get("more_body")  # the last part, or a client that is gone


def unread_body(scope: AsgiScope, receive: Receive, *, asked: bool) -> Inbound | None:
    """The unread part of the body, which was `asked` for or not; None when the request has no body."""
    size: int | None = 0
    waits = False  # for a sign to send its body, which an answer is not
    for name, value in scope["headers"]:
        if name == b"content-length":
            size = int(value) if value.isdigit() and len(value) < 19 else None
        elif name == b"transfer-encoding":
            size = None
        elif name == b"expect":
            waits = not asked and value.lower() == b"100-continue"
    if size == 0:
        return None
    closes = waits or size is None or size > SMALL
    return Inbound(receive, closes and scope.get("http_version", "1.1").startswith("1"), not waits)


# Requests that come although the process is to stop: balancers need a while to notice.
#
# They are answered, and told that the connection ends, so that the next request of the client goes
# elsewhere.


QUIET_AFTER = 1.0  # seconds
_PROBES = ("/ready", "/live", "/health", "/metrics")
_CLOSE = [(b"connection", b"close")]


class LateRequests:
    """Notices whether requests still come."""

    def __init__(self) -> None:
        self._last = 0.0

    @property
    def are_coming(self) -> bool:
        return time.monotonic() - self._last < QUIET_AFTER

    def note(self, scope: AsgiScope, send: Send) -> Send:
        """How to answer this request."""
        if not scope["path"].endswith(_PROBES):
            self._last = time.monotonic()
        is_http_1 = scope.get("http_version", "").startswith("1")  # later ones have no such header
        return with_headers(send, _CLOSE) if is_http_1 else send


# Send an answer while it is being made.
#
# Until its first bytes are there, a failure is answered like any other. After that an answer ends whole or
# is broken off: the connection closes without the last chunk, so no client takes a part for the whole. A
# client that goes away, or takes nothing for `STALLED`, ends the making too; it is sent small pieces, so
# that one who reads slowly is seen to read.


STALLED = 60.0  # seconds
PIECE = 64 * 1024
TURN = 256 * 1024  # bytes after which others have their turn


class Aborted(Exception):
    """Closes the connection of an answer that cannot be completed; the cause is in the log already."""


async def deliver(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, send: Send
) -> Response | None:
    """Send the whole stream; or give back the answer to send instead, when nothing was sent yet."""
    reader = _Recipient(send)
    pump = asyncio.create_task(_pump(stream, start, ctx, reader))
    reader.watch(pump)
    departure = asyncio.create_task(_until_gone(ctx.receive))
    try:
        await asyncio.wait((pump, departure), return_when=asyncio.FIRST_COMPLETED)
    finally:
        reader.leave()
        for task in (pump, departure):
            task.cancel()
        await asyncio.wait((pump, departure))
    if pump.cancelled():
        ctx.logger.info("the client went away while the answer was being sent")
        return None
    return pump.result()


async def _pump(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, reader: _Recipient
) -> Response | None:
    is_started = False
    sent_bytes = 0
    fence = Fence()
    try:
        async with aclosing(stream):
            chunk = await anext(stream, None)
            is_started = True
            await reader.send(start)
            while chunk is not None:
                for piece in _pieces(chunk):
                    await reader.send({"type": "http.response.body", "body": piece, "more_body": True})
                sent_bytes += len(chunk)
                # Neither the maker nor the server may have to wait, and a client that left must be noticed.
                if len(chunk) < PIECE or sent_bytes >= TURN:
                    sent_bytes = 0
                    await asyncio.sleep(0)
                chunk = await anext(stream, None)
    except ClientGone:
        return None
    except BaseException as error:
        failed = fence.absorb(error)
        if not is_started:
            return failure(ctx, failed)
        ctx.logger.error("an answer was broken off: %r", error, exc_info=error)
        raise Aborted("an answer was broken off") from None
    await reader.send({"type": "http.response.body", "body": b""})
    return None


class FencedChunks:
    """The chunks of an answer of Starlette, each time anew: in its tasks `SystemExit` would end the loop."""

    def __init__(self, chunks: AsyncIterable[Any]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        fence, chunks = Fence(), None
        try:
            while True:
                try:
                    chunks = aiter(self._chunks) if chunks is None else chunks
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except BaseException as error:
                    failed = fence.absorb(error)
                    if failed is error:
                        raise
                    raise failed from error
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()


async def send_fenced(response: App, scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Send an answer of Starlette and do the work it has for afterwards; the task may be one of a layer."""
    fence = Fence()
    try:
        await response(scope, receive, send)
    except Exception:
        raise
    except BaseException as error:
        raise fence.absorb(error) from error


def _pieces(chunk: bytes) -> Iterable[bytes]:
    if len(chunk) <= PIECE:
        return (chunk,)
    return (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))


class _Recipient:
    """The client of one answer. One timer serves all pieces: one for each would cost more than sending it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # since when a piece waits to be taken
        self._stalled = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, pump: asyncio.Task[Any]) -> None:
        """End the task when the client takes nothing for too long."""
        since, now = self._since, self._loop.time()
        due = now + STALLED if since is None else since + STALLED
        if since is not None and due <= now:
            self._stalled = True
            pump.cancel()
            return
        self._timer = self._loop.call_at(due, self.watch, pump)

    def leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self._since = self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._stalled:
                raise TimeoutError("the client reads nothing") from None
            raise
        except OSError as error:  # some servers tell by this that the client is gone
            raise ClientGone("the client disconnected") from error
        self._since = None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def quiet_aborts(name: str = "uvicorn.error") -> None:
    """Keep the server from reporting as a crash what we have logged and broken off on purpose."""
    logging.getLogger(name).addFilter(_no_abort)


def _no_abort(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Aborted))
