"""Observers of requests: each is called when a request is over.

`Observed` stands around everything else, so it also sees requests that a layer, the router or auth refused,
and those whose client left. Two of them around one another measure once. A server without observers has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

from maniflex._client_address import TrustedProxies
from maniflex._fence import Fence
from maniflex.pipeline.context import Context
from maniflex.pipeline.exchange import OBSERVED, App, AsgiScope, Receive, Send
from maniflex.pipeline.observation import CLIENT_LEFT, MOST_DURATIONS, Observation, RequestNumbers
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.runtime import Runtime

Observer = Callable[[Observation], None]
MOST_WAITING = 1000  # observations that an async observer may be behind with
_NOBODY = TrustedProxies()


class ObservedRequest:
    """One request while it is served; the application notes its route in it, and answers by calling it."""

    # Of the class, because most requests leave most of them alone and all pay for each that is set.
    context: Context | None = None
    endpoint: Endpoint | None = None
    proxies = _NOBODY
    service = ""  # where no context has it
    joined: tuple[Observed, ...] = ()  # those further in
    route = ""  # where no endpoint has it
    code = ""  # of the error it is answered with
    size = 0  # bytes of the body
    start: Mapping[str, Any] = MappingProxyType({"status": 0})  # the message its answer began with

    def __init__(self, send: Send) -> None:
        self.send = send
        self.began = perf_counter()

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        if "status" in message:
            self.start = message
        elif "body" in message:
            self.size += len(message["body"])
        return self.send(message)

    def fail(self) -> None:
        """An exception left the application; the HTTP server answers 500 unless an answer has begun."""
        if not self.start["status"]:
            self.start = {"status": 500}

    def observation(self, scope: AsgiScope, status: int, duration: float) -> Observation:
        """The request as observers are told of it."""
        context, endpoint = self.context, self.endpoint
        auth = context.auth if context is not None else None
        route, model, operation = (self.route, "", "") if endpoint is None else endpoint.names
        return Observation(
            scope["method"],
            route,
            scope["path"],
            model,
            operation,
            status,
            duration,
            self.size,
            self._sent_id() if context is None else context.request_id,
            "" if context is None else context.trace_id,
            "" if auth is None else auth.user_id,
            "" if auth is None else auth.tenant_id,
            self.proxies.client_of(scope) if context is None else context.client_ip,
            "" if context is None else context.resource_id,
            self.code,
            self.service if context is None else context.service_name,
            "" if context is None else context.traceparent,
        )

    def _sent_id(self) -> str:
        """The id in the answer to a request that never had a context."""
        headers = self.start.get("headers", ())
        return next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), "")


class RequestLines(Protocol):
    """Where the access log is written."""

    def note(self, request: ObservedRequest, scope: AsgiScope, status: int, duration: float) -> None:
        """Write the line of a request that is over."""


class Observed:
    """The application, and observers of each of its requests."""

    def __init__(
        self,
        app: App,
        observers: Sequence[Observer],
        proxies: TrustedProxies = _NOBODY,
        numbers: RequestNumbers | None = None,
        lines: RequestLines | None = None,
        service: str = "",
    ) -> None:
        self._app = app
        self._observers = tuple(observers)
        self._proxies = proxies
        self._numbers = numbers
        self._lines = lines
        self._service = service

    def with_lines(self, lines: RequestLines) -> Observed:
        """The same with an access log."""
        return Observed(self._app, self._observers, self._proxies, self._numbers, lines, self._service)

    def note_refused(self, seen: Observation) -> None:
        """Tell of a request that never came here."""
        if self._numbers is not None:
            self._numbers.begun += 1
        self.observe(seen)

    def observe(self, seen: Observation) -> None:
        """Tell numbers and observers of a request that others have measured."""
        if self._numbers is not None:
            self._numbers.observe(seen)
        for observer in self._observers:
            observer(seen)

    def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        request: ObservedRequest | None = scope.get(OBSERVED)
        if request is None:
            return self.serve(scope, receive, send)
        request.joined = (*request.joined, self)  # one further out measures already
        request.proxies, request.service = self._proxies, self._service
        if self._numbers is not None:
            self._numbers.begun += 1
        return self._app(scope, receive, send)

    async def serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve and measure an HTTP request."""
        scope[OBSERVED] = request = ObservedRequest(send)
        if self._numbers is not None:
            self._numbers.begun += 1
        try:
            await self._app(scope, receive, request)
        except Exception:
            request.fail()
            raise
        finally:
            scope.pop(OBSERVED, None)
            self._tell(request, scope)

    def _tell(self, request: ObservedRequest, scope: AsgiScope) -> None:
        """Count the request and write its line; then let go of the context, which has the scope."""
        # Every request pays for each line of this, so the two that most servers have are no observers.
        duration, numbers = perf_counter() - request.began, self._numbers
        status = request.start["status"] or CLIENT_LEFT
        if numbers is not None:
            endpoint = request.endpoint
            durations = numbers.durations.get((endpoint, status))
            if durations is None or endpoint is None:
                route = request.route if endpoint is None else endpoint.route
                durations = numbers.add_durations(endpoint, scope["method"], route, status)
            durations.append(duration)
            if len(durations) >= MOST_DURATIONS:
                numbers.fold()
            if request.code:
                numbers.count_error(request.code)
        if request.context is None:
            request.service = request.service or self._service
            if request.proxies is _NOBODY:
                request.proxies = self._proxies
        if self._lines is not None:
            self._lines.note(request, scope, status, duration)
        if self._observers or request.joined:
            seen = request.observation(scope, status, duration)
            for observer in (*self._observers, *(one.observe for one in request.joined)):
                observer(seen)
        request.context = None


class GuardedObserver:
    """An observer of the application: its failures are logged, and no request waits for it."""

    def __init__(self, fn: Callable[[Observation], Any], runtime: Runtime) -> None:
        self._fn = fn
        self._runtime = runtime
        self._name = f"observer {getattr(fn, '__qualname__', None) or type(fn).__name__}"
        self._waiting = 0

    def __call__(self, seen: Observation) -> None:
        fence = Fence()
        try:
            if self._waiting >= MOST_WAITING:
                return
            outcome = self._fn(seen)
            if inspect.isawaitable(outcome):
                self._waiting += 1
                if self._waiting == MOST_WAITING:
                    self._runtime.logger.warning("%s is too slow; it misses requests", self._name)
                self._runtime.tasks.start(self._finish(outcome), self._name)
        except BaseException as error:
            fence.absorb(error)
            self._runtime.logger.exception("%s failed", self._name)

    async def _finish(self, outcome: Awaitable[Any]) -> None:
        try:
            await outcome
        finally:
            self._waiting -= 1
