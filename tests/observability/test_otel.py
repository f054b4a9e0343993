"""A trace connects a request with its steps and statements, and the run it submits with its calls (56)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from maniflex import Context, DeclarationError, Next, Run, Server
from maniflex.background.outbox.message import Message
from maniflex.ext import otel
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.waiting import eventually

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


class Traces:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.spans_provider = TracerProvider()
        self.spans_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self.reader])

    def instrument(self, server: Server) -> None:
        otel.instrument(server, self.spans_provider, self.meters)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans if span.name == name]
        return span

    def children(self, parent: ReadableSpan) -> list[str]:
        return [s.name for s in self.spans if s.parent and s.parent.span_id == parent.context.span_id]


@pytest.fixture
def traces() -> Traces:
    return Traces()


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


@contextmanager
def receiver() -> Iterator[tuple[str, list[str]]]:
    """Another service, and the `traceparent` of each call it got."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is the library's
            seen.append(self.headers.get("traceparent", ""))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_request_has_a_span_with_its_steps_and_statements(traces: Traces, database_url: str) -> None:
    server = Server()
    server.register(Note)
    traces.instrument(server)
    seen: list[tuple[str, str]] = []

    @server.pipeline.auth.middleware(name="who")
    async def who(ctx: Context, next: Next) -> None:
        seen.append((ctx.trace_id, ctx.traceparent))
        await next()

    async with client(server, database=database_url) as http:
        await http.get("/api/notes?secret=hunter2", headers={"traceparent": TRACEPARENT})
        await http.get("/api/notes/7")
        await http.get("/nowhere")

    listed, missing, nowhere = [span for span in traces.spans if span.kind is SpanKind.SERVER]
    assert (listed.name, missing.name, nowhere.name) == ("GET /api/notes", "GET /api/notes/{id}", "GET")
    assert trace_of(listed) == TRACE_ID
    assert listed.parent is not None
    assert f"{listed.parent.span_id:016x}" == SPAN_ID
    own = f"00-{TRACE_ID}-{listed.context.span_id:016x}-01"
    assert seen[0] == (TRACE_ID, own)
    assert trace_of(missing) not in (TRACE_ID, "0" * 32)
    about = dict(listed.attributes or {})
    assert (about["http.route"], about["http.response.status_code"]) == ("/api/notes", 200)
    assert (missing.attributes or {})["http.response.status_code"] == 404
    assert missing.status.status_code is StatusCode.UNSET
    assert {"auth:who", "response"} <= set(traces.children(listed))
    [database] = [span for span in traces.spans if span.name == "db" and trace_of(span) == TRACE_ID]
    statements = [s for s in traces.spans if s.kind is SpanKind.CLIENT and trace_of(s) == TRACE_ID]
    assert "SELECT" in traces.children(database)
    texts = [str((span.attributes or {})["db.query.text"]) for span in statements]
    assert any("notes" in text for text in texts)
    systems = {(span.attributes or {})["db.system.name"] for span in statements}
    assert systems <= {"sqlite", "postgresql"}
    assert "hunter2" not in str([span.to_json() for span in traces.spans])


async def test_a_trace_connects_request_run_and_outgoing_call(traces: Traces, database_url: str) -> None:
    """Check 56."""
    server = Server()
    traces.instrument(server)
    with receiver() as (url, calls):

        @server.work.handler("default.call")
        async def call(run: Run) -> None:
            async with httpx.AsyncClient() as http:
                await http.post(url, headers={"traceparent": run.traceparent or ""})
            await run.submit("default.child")

        @server.work.handler("default.child")
        async def child(run: Run) -> None: ...

        @server.outbox.handler("order.placed")
        async def placed(message: Message) -> None: ...

        @server.action("POST", "/orders")
        async def order(ctx: Context) -> None:
            async with ctx.transaction():
                await server.work.submit("default.call")
                await server.outbox.enqueue("order.placed", {})

        async with client(server, database=database_url, background=True) as http:
            await http.post("/api/orders", headers={"traceparent": TRACEPARENT})
            names = {"run default.call", "run default.child", "message order.placed"}
            await eventually(lambda: names <= {span.name for span in traces.spans})
            [stored] = [row for row in await server.work.list() if row.type == "default.call"]

    request = traces.one("POST /api/orders")
    run, sub, message = (
        traces.one(name) for name in ("run default.call", "run default.child", "message order.placed")
    )
    for span, maker in ((run, request), (message, request), (sub, run)):
        assert trace_of(span) == TRACE_ID
        assert [f"{link.context.span_id:016x}" for link in span.links] == [f"{maker.context.span_id:016x}"]
    assert calls == [f"00-{TRACE_ID}-{run.context.span_id:016x}-01"]
    assert (stored.trace_id, stored.traceparent) == (
        TRACE_ID,
        f"00-{TRACE_ID}-{request.context.span_id:016x}-01",
    )
    assert (run.attributes or {})["maniflex.outcome"] == "done"


async def test_without_tracing_runs_and_messages_keep_the_header_of_the_request(database_url: str) -> None:
    server = Server()
    seen: list[tuple[str, Any, Any]] = []

    @server.work.handler("default.note")
    async def note(run: Run) -> None:
        seen.append(("run", run.trace_id, run.traceparent))

    @server.outbox.handler("order.placed")
    async def placed(message: Message) -> None:
        seen.append(("message", message.trace_id, message.traceparent))

    @server.action("POST", "/orders")
    async def order(ctx: Context) -> None:
        async with ctx.transaction():
            await server.work.submit("default.note")
            await server.outbox.enqueue("order.placed", {})

    async with client(server, database=database_url, background=True) as http:
        await http.post("/api/orders", headers={"traceparent": TRACEPARENT})
        await eventually(lambda: len(seen) == 2)

    assert sorted(seen) == [("message", TRACE_ID, TRACEPARENT), ("run", TRACE_ID, TRACEPARENT)]


async def test_failures_are_errors_and_durations_are_measured(traces: Traces, sqlite_url: str) -> None:
    server = Server()
    traces.instrument(server)

    @server.action("GET", "/fail")
    async def fail(ctx: Context) -> None:
        raise KeyError("hunter2")

    @server.work.handler("default.fail", max_attempts=1)
    async def fail_too(run: Run) -> None:
        raise KeyError("hunter2")

    async with client(server, database=sqlite_url, background=True) as http:
        await http.get("/api/fail")
        run = await server.work.submit("default.fail")
        await server.work.wait(run.id, timeout=20)
        await eventually(lambda: any(span.name == "run default.fail" for span in traces.spans))

    assert traces.one("GET /api/fail").status.status_code is StatusCode.ERROR
    assert traces.one("run default.fail").status.status_code is StatusCode.ERROR
    assert "hunter2" not in str([span.to_json() for span in traces.spans])
    data: Any = traces.reader.get_metrics_data()
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "http.server.request.duration"
    assert [point.attributes["http.route"] for point in metric.data.data_points] == ["/api/fail"]


async def test_words_that_are_no_method_are_one_label(traces: Traces, sqlite_url: str) -> None:
    server = Server()
    traces.instrument(server)
    async with client(server, database=sqlite_url) as http:
        for number in range(3):
            await http.request(f"WORD{number}", "/nowhere")

    assert {span.name for span in traces.spans} == {"HTTP"}
    data: Any = traces.reader.get_metrics_data()
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert {point.attributes["http.request.method"] for point in metric.data.data_points} == {"_OTHER"}


async def test_requests_at_once_keep_their_spans_apart(traces: Traces, sqlite_url: str) -> None:
    server, barrier = Server(), asyncio.Barrier(5)
    traces.instrument(server)

    @server.action("GET", "/wait")
    async def wait(ctx: Context) -> str:
        await barrier.wait()
        assert trace.get_current_span().get_span_context().trace_id == int(ctx.trace_id, 16)
        return ctx.trace_id

    async with client(server, database=sqlite_url) as http:
        answers = await asyncio.gather(*(http.get("/api/wait") for _ in range(5)))

    assert len({answer.json()["data"] for answer in answers}) == 5


async def test_without_a_provider_nothing_changes(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.register(Note)
    otel.instrument(server)
    async with client(server, database=sqlite_url) as http:
        answer = await http.post("/api/notes", json={"text": "x"}, headers={"traceparent": TRACEPARENT})

    assert answer.status_code == 201
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_server_is_traced_once_and_before_it_is_sealed(traces: Traces) -> None:
    server = Server()
    traces.instrument(server)
    with pytest.raises(DeclarationError, match="traced already"):
        traces.instrument(server)
    sealed = Server()
    sealed.seal()
    with pytest.raises(DeclarationError, match="the server is sealed"):
        traces.instrument(sealed)
