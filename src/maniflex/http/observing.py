"""Observers of requests: each is called when a request is over.

`Observed` stands around everything else, so it also sees requests that a layer, the router or auth refused,
and those whose client left. Two of them around one another measure once. A server without observers has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from time import perf_counter
from typing import Any

from maniflex._client_address import TrustedProxies
from maniflex._fence import Fence
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.exchange import OBSERVED, App, AsgiScope, Receive, Send
from maniflex.pipeline.observation import CLIENT_LEFT, Observation
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.runtime import Runtime

Observer = Callable[[Observation], None]
MOST_WAITING = 1000  # observations that an async observer may be behind with
_NOBODY = TrustedProxies()
_WITHOUT_MODEL = frozenset({Operation.ACTION, Operation.SEARCH, *Operation.FILES})


class ObservedRequest:
    """One request while it is served; the application notes its route in it."""

    __slots__ = ("_began", "_headers", "_send", "_size", "_status", "context", "endpoint", "observers",
                 "proxies", "route")  # fmt: skip

    def __init__(self, send: Send, observers: Sequence[Observer]) -> None:
        self._send = send
        self._began = perf_counter()
        self._status = self._size = 0
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self.observers = observers
        self.context: Context | None = None
        self.endpoint: Endpoint | None = None
        self.proxies = _NOBODY
        self.route = ""  # where no endpoint has it

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message.get("headers", ())
        else:
            self._size += len(message.get("body", b""))
        await self._send(message)

    def fail(self) -> None:
        """An exception left the application; the HTTP server answers 500 unless an answer has begun."""
        self._status = self._status or 500

    def tell(self, scope: AsgiScope) -> None:
        """Tell the observers; then let go of the context, which has the scope that this stands in."""
        observation = self._observation(scope)
        self.context = None
        for observer in self.observers:
            observer(observation)

    def _observation(self, scope: AsgiScope) -> Observation:
        context, endpoint = self.context, self.endpoint
        auth = context.auth if context is not None else None
        model = endpoint.model if endpoint is not None else None
        has_operation = endpoint is not None and (model is not None or endpoint.operation in _WITHOUT_MODEL)
        return Observation(
            scope["method"],
            self._route(context, endpoint),
            scope["path"],
            "" if model is None else model.name,
            str(endpoint.operation) if endpoint is not None and has_operation else "",
            self._status or CLIENT_LEFT,
            perf_counter() - self._began,
            self._size,
            next((value.decode("latin-1") for name, value in self._headers if name == b"x-request-id"), ""),
            "" if context is None else context.trace_id,
            "" if auth is None else auth.user_id,
            "" if auth is None else auth.tenant_id,
            self.proxies.client_of(scope) if context is None else context.client_ip,
            "" if context is None else context.resource_id,
        )

    def _route(self, context: Context | None, endpoint: Endpoint | None) -> str:
        if context is None or endpoint is None:
            return self.route
        is_below_prefix = endpoint.mount is Mount.API
        return (context.runtime.config.path_prefix if is_below_prefix else "") + endpoint.path


class Observed:
    """The application, and observers of each of its requests."""

    def __init__(self, app: App, observers: Sequence[Observer], proxies: TrustedProxies = _NOBODY) -> None:
        self._app = app
        self._observers = tuple(observers)
        self._proxies = proxies

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request: ObservedRequest | None = scope.get(OBSERVED)
        if request is not None:  # one further out measures already
            request.observers = (*request.observers, *self._observers)
            request.proxies = self._proxies
            await self._app(scope, receive, send)
            return
        scope[OBSERVED] = request = ObservedRequest(send, self._observers)
        request.proxies = self._proxies
        try:
            await self._app(scope, receive, request.send)
        except Exception:
            request.fail()
            raise
        finally:
            scope.pop(OBSERVED, None)
            request.tell(scope)


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
