"""OpenTelemetry: spans of requests, their steps and statements, of runs and of messages.

    from maniflex.ext import otel

    otel.instrument(server)

A request that comes with a `traceparent` is a part of that trace. Runs and messages are part of the trace of
the request that made them, and linked to it, however much later they are worked on. `ctx.traceparent` and
`run.traceparent` are those of the span, to be sent on to others. Which spans are kept, and where they go, is
for the providers to say that the application has set up.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Protocol

from maniflex.db.statements import StatementObserver, log, shape_of
from maniflex.errors import DeclarationError
from maniflex.pipeline.exchange import OBSERVED, App, AsgiScope, Receive, Send
from maniflex.pipeline.observation import OTHER, Tracing, method_label

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ImportError as missing:
    raise DeclarationError(
        "maniflex.ext.otel needs opentelemetry-api: pip install 'maniflex[observability]'"
    ) from missing

_CARRIED = (b"traceparent", b"tracestate", b"baggage")
_SYSTEMS = {"postgres": "postgresql"}  # as the semantic conventions call them
_OTHER_METHOD = "_OTHER"  # as the semantic conventions have it
_GOOD = ("Done", "Delivered")  # outcomes of runs and messages; others say what became of them


class Traceable(Protocol):
    """A server, before it is sealed."""

    def trace_with(self, tracing: Tracing) -> None:
        """Make spans with this."""


def instrument(
    server: Traceable,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Make spans and measurements of everything this server does, by these providers or the global ones."""
    tracer = trace.get_tracer("maniflex", tracer_provider=tracer_provider)
    meter = metrics.get_meter("maniflex", meter_provider=meter_provider)
    server.trace_with(OtelTracing(tracer, meter))


class OtelTracing:
    """Makes the spans of one server."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._durations = meter.create_histogram(
            "http.server.request.duration", unit="s", description="Duration of HTTP server requests."
        )

    def layer(self, app: App) -> App:
        return partial(self._serve, app)

    async def _serve(self, app: App, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED
        }
        parent = propagate.extract(carrier)
        method, attributes = _method_of(scope), _request_attributes(scope)
        span = self._tracer.start_span(
            "HTTP" if method == _OTHER_METHOD else method, parent, SpanKind.SERVER, attributes
        )
        answer = _SentStatus(send)
        began, token = perf_counter(), context.attach(trace.set_span_in_context(span, parent))
        try:
            await app(_with_traceparent(scope, span), receive, answer.send)
        finally:
            context.detach(token)
            self._end_request(span, scope, answer.status, perf_counter() - began)

    def _end_request(self, span: Span, scope: AsgiScope, status: int, seconds: float) -> None:
        method, request = _method_of(scope), scope.get(OBSERVED)
        endpoint = request.endpoint if request is not None else None
        about = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        if endpoint is not None:
            span.update_name(f"{method} {endpoint.route}")
            span.set_attribute("http.route", endpoint.route)
            about["http.route"] = endpoint.route
        if status:
            span.set_attribute("http.response.status_code", status)
        if status >= 500 or not status:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", str(status) if status else "client_gone")
        span.end()
        self._durations.record(seconds, {**about, "http.response.status_code": status})

    def step(self, label: str) -> AbstractContextManager[Any]:
        # A refusal is an answer and no error of a step; what failed is said of the request.
        return self._tracer.start_as_current_span(
            label, record_exception=False, set_status_on_exception=False
        )

    def statements(self, database: str, system: str) -> StatementObserver:
        common = {"db.system.name": _SYSTEMS.get(system, system), "db.namespace": database}

        def observe(text: str, began: float, ended: float, error: BaseException | None) -> None:
            if not trace.get_current_span().is_recording():  # a look of background work, in no trace
                return
            now = time.time_ns()
            start = now - int((perf_counter() - began) * 1e9)
            shape, operation = _shape(text)
            attributes = {**common, "db.query.text": shape, "db.operation.name": operation}
            span = self._tracer.start_span(operation, None, SpanKind.CLIENT, attributes, None, start)
            if error is not None:
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute("error.type", type(error).__name__)
            span.end(start + int((ended - began) * 1e9))

        return _QuietObserver(observe)

    @contextmanager
    def run(self, run: Any) -> Iterator[Callable[[Any], None]]:
        attributes = {
            "messaging.operation.type": "process",
            "maniflex.run.id": run.id,
            "maniflex.run.type": run.type,
            "maniflex.run.attempt": run.attempt,
        }
        with self._work(f"run {run.type}", run.traceparent, attributes) as span:
            if (own := _traceparent_of(span)) is not None:
                run.traceparent, run.trace_id = own, own[3:35]
            yield partial(_note_outcome, span)

    @contextmanager
    def message(self, message: Any) -> Iterator[Callable[[Any], None]]:
        attributes = {
            "messaging.operation.type": "process",
            "messaging.message.id": message.id,
            "messaging.destination.name": message.kind,
            "maniflex.message.attempt": message.attempts,
        }
        with self._work(f"message {message.kind}", message.traceparent, attributes) as span:
            yield partial(_note_outcome, span)

    @contextmanager
    def _work(self, name: str, traceparent: str | None, attributes: dict[str, Any]) -> Iterator[Span]:
        """A span of durable work: in the trace of the request that made it, and linked to that."""
        parent = propagate.extract({"traceparent": traceparent} if traceparent else {}, context.Context())
        maker = trace.get_current_span(parent).get_span_context()
        links = [Link(maker)] if maker.is_valid else []
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        finally:
            context.detach(token)
            span.end()


class _SentStatus:
    """What was sent of an answer."""

    __slots__ = ("_send", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    def send(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)


def _method_of(scope: AsgiScope) -> str:
    """The method as a label: a client may send any word, and each would be a series of its own."""
    method: str = scope["method"]
    return _OTHER_METHOD if method_label(method) == OTHER else method


def _request_attributes(scope: AsgiScope) -> dict[str, Any]:
    host = (scope.get("server") or ("",))[0]
    attributes = {
        "http.request.method": _method_of(scope),
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", ""),
        "server.address": host or "",
    }
    return {name: value for name, value in attributes.items() if value}


def _with_traceparent(scope: AsgiScope, span: Span) -> AsgiScope:
    """The request as a part of its span, so that the context and all it makes belong to that."""
    own = _traceparent_of(span)
    if own is None:  # no provider is set up
        return scope
    others = [header for header in scope["headers"] if header[0] != b"traceparent"]
    scope["headers"] = [*others, (b"traceparent", own.encode())]
    return scope


def _traceparent_of(span: Span) -> str | None:
    about: SpanContext = span.get_span_context()
    if not about.is_valid:
        return None
    return f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"


def _note_outcome(span: Span, outcome: Any) -> None:
    name = type(outcome).__name__
    span.set_attribute("maniflex.outcome", name.lower())
    if name not in _GOOD:
        span.set_status(Status(StatusCode.ERROR))


@lru_cache(1024)
def _shape(text: str) -> tuple[str, str]:
    shape = shape_of(text)
    return shape, shape.partition(" ")[0].upper() or "STATEMENT"


class _QuietObserver:
    """Makes a span of each statement; its failures keep no statement from its answer."""

    after = 0.0  # it hears of all of them

    def __init__(self, observe: Callable[[str, float, float, BaseException | None], None]) -> None:
        self._observe = observe

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None, /) -> None:
        try:
            self._observe(text, began, ended, error)
        except Exception as failure:
            log.warning("a span of a statement could not be made: %r", failure)
