"""Layers around the whole application, which see a request before it is routed and its answer last.

The first that was added is outermost; entries that were registered on a step stand outside of all others,
so that their headers are on every answer. A layer that raises before it answers is a 500 like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

from maniflex._client_address import TrustedProxies
from maniflex._fence import Fence
from maniflex.pipeline.answer import send_answer
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, LayerEntry, ObserverEntry, ServerEntry, steps_of
from maniflex.pipeline.exchange import OBSERVED, App, AsgiScope, Receive, Send
from maniflex.pipeline.observation import CLIENT_LEFT, MOST_DURATIONS, Observation, RequestNumbers, Tracing
from maniflex.pipeline.registration import takes
from maniflex.pipeline.response import panic_response
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.runtime import Runtime

Layer = Callable[[App], App]


class Surroundings:
    """The layers and observers that an application has declared."""

    def __init__(
        self,
        layers: Sequence[Any],
        observers: Sequence[Any],
        entries: Iterable[Entry],
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        of_server = [e for e in entries if isinstance(e, ServerEntry) and e.is_lifted]
        self._layers = [*(e for e in of_server if isinstance(e, LayerEntry)), *layers]
        self._observers = [*observers, *(e for e in of_server if isinstance(e, ObserverEntry))]

    def problems(self) -> list[str]:
        """The mistakes in what was given to `server.use` and `server.observe`."""
        problems = [f"server.use: {p}" for layer in self._layers for p in _problems(layer, LayerEntry)]
        problems += [f"server.observe: {p}" for fn in self._observers for p in _problems(fn, ObserverEntry)]
        return list(dict.fromkeys(problems))

    def around(self, app: App, runtime: Runtime) -> App:
        """The application with its layers, and its observers outside of them."""
        for layer in reversed(self._layers):
            if isinstance(layer, LayerEntry):
                app = layer.layer(app, runtime)
            else:
                app = GuardedLayer(layer(app), runtime)
        if self._tracing is not None:
            app = self._tracing.layer(app)
        if self._layers:
            app = _NoteTrust(app, runtime)
        observers, numbers = [_observer(fn, runtime) for fn in self._observers], runtime.request_numbers
        if observers or numbers is not None or self._tracing is not None:  # spans need to know the route
            return Observed(app, observers, runtime.proxies, numbers, service=runtime.config.service_name)
        return app


def _observer(fn: Any, runtime: Runtime) -> Observer:
    return GuardedObserver(fn.observe if isinstance(fn, ObserverEntry) else fn, runtime)


def _problems(value: Any, kind: type[Entry]) -> list[str]:
    if isinstance(value, LayerEntry | ObserverEntry) and isinstance(value, kind):
        return [f"{value.name}: {mistake}" for mistake in (*value.mistakes, *value.server_problems())]
    if isinstance(value, Entry):
        return [f"{value.name}: it belongs on {steps_of(value)}"]
    name = getattr(value, "__qualname__", None) or repr(value)
    argument = "app" if kind is LayerEntry else "observation"
    if not callable(value):
        return [f"{name} is not callable"]
    return [] if takes(value, 1) else [f"{name} is called with ({argument}), which it does not take"]


class _NoteTrust:
    """Tells the access log whose word about addresses is taken, for requests that a layer answers."""

    def __init__(self, app: App, runtime: Runtime) -> None:
        self._app = app
        self._proxies = runtime.proxies

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if OBSERVED in scope:
            scope[OBSERVED].proxies = self._proxies
        await self._app(scope, receive, send)


class GuardedLayer:
    """A layer of the application, whose failure is answered as long as nothing was sent."""

    def __init__(self, app: App, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        fence = Fence()
        try:
            await self._app(scope, receive, note)
        except BaseException as error:
            failed = fence.absorb(error)
            if is_begun:
                raise failed  # noqa: B904 - it is the error, or has it as its cause
            self._runtime.panic_logger.exception("a layer failed")
            await send_answer(panic_response(), scope, send, self._runtime)


# Observers of requests: each is called when a request is over.
#
# `Observed` stands around everything else, so it also sees requests that a layer, the router or auth
# refused, and those whose client left. Two of them around one another measure once. A server without
# observers has none.


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
            observation = request.observation(scope, status, duration)
            for observer in (*self._observers, *(one.observe for one in request.joined)):
                observer(observation)
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
