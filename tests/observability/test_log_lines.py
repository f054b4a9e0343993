"""What a log line says of the request or run it was written in, as text and as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Run, Server
from maniflex._logging import JsonFormatter, LineHandler, TextFormatter, line_handler
from maniflex.http.access_log import AccessLog
from maniflex.pipeline.observation import Observation, write_access_line
from maniflex.testing import client
from tests.kit.processes import serve_process
from tests.kit.waiting import eventually

TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"
SEEN = Observation(
    "GET", "/api/notes/{id}", "/api/notes/7", "Note", "read", 200, 0.0123, 42, "r-1", "ab" * 16, "ada",
    "acme", "127.0.0.1", "7",
)  # fmt: skip
other = logging.getLogger("shop.mail")


@pytest.fixture
def written() -> Iterator[list[logging.LogRecord]]:
    """Lines of all loggers, each formatted where it was written."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.json = json.loads(JsonFormatter("shop").format(record))
            record.text = TextFormatter("%(message)s").format(record)
            records.append(record)

    handler = Keep()
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


def test_names_of_callers_begin_no_line() -> None:
    record = logging.makeLogRecord({"msg": "hello", "user_id": "ada\n12:00:00 INFO forged"})
    assert "\n" not in TextFormatter("%(message)s").format(record)
    logger, stream = logging.getLogger("test.access"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    write_access_line(logger, SEEN._replace(actor_id="ada\nforged", path="/a\nb"))
    logger.removeHandler(handler)
    assert stream.getvalue().count("\n") == 1


def of(written: list[logging.LogRecord], message: str) -> Any:
    [record] = [record for record in written if record.getMessage() == message]
    return record


async def test_a_line_of_a_request_names_it_and_its_caller(written: Any, database_url: str) -> None:
    server = Server(service_name="shop")

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        ctx.logger.warning("before auth")
        ctx.auth = AuthInfo(user_id="ada", tenant_id="acme")
        await next()

    @server.action("POST", "/orders/{id}/pay")
    async def pay(ctx: Context) -> None:
        ctx.logger.warning("by the context", extra={"resource_id": "own"})
        other.warning("by another logger")
        await asyncio.to_thread(other.warning, "on a thread")

    async with client(server, database=database_url) as http:
        await http.post("/api/orders/7/pay", headers={"x-request-id": "r-1", "traceparent": TRACE})

    about = {
        "request_id": "r-1",
        "trace_id": "ab" * 16,
        "traceparent": TRACE,
        "service": "shop",
        "user_id": "ada",
        "tenant_id": "acme",
        "route": "/api/orders/{id}/pay",
    }
    for message in ("by the context", "by another logger", "on a thread"):
        line = of(written, message).json
        assert {name: line[name] for name in about} == about
    assert of(written, "by the context").json["resource_id"] == "own"
    assert "user_id" not in of(written, "before auth").json
    ids = f"r-1 trace_id={'ab' * 16} user_id=ada tenant_id=acme"
    text = of(written, "by another logger").text
    assert text == f"by another logger [{ids} route=/api/orders/{{id}}/pay]"


async def test_a_line_of_a_run_names_it(written: Any, database_url: str) -> None:
    server = Server()

    @server.work.handler("default.note")
    async def note(run: Run) -> None:
        run.logger.warning("by the run")
        other.warning("by another logger")

    async with client(server, database=database_url, background=True):
        run = await server.work.submit("default.note", actor_id="ada", tenant_id="acme", trace_id="ab" * 16)
        await server.work.wait(run.id, timeout=20)

    for message in ("by the run", "by another logger"):
        line = of(written, message).json
        assert (line["run_id"], line["run_type"], line["trace_id"]) == (run.id, "default.note", "ab" * 16)
        assert (line["user_id"], line["tenant_id"]) == ("ada", "acme")


async def test_a_line_outside_has_neither(written: Any) -> None:
    other.warning("alone")

    assert of(written, "alone").text == "alone"
    assert of(written, "alone").json.keys() == {"time", "level", "logger", "message", "service"}


# -- the quick way of the access log


@contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """The one handler of all loggers, as a process of `maniflex run` has it."""
    root, maniflex = logging.getLogger(), logging.getLogger("maniflex")
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel("INFO")
    maniflex.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("status", [200, 404, 499, 500])
@pytest.mark.parametrize("path", ["/api/notes/7", "/gone\nnext", "/h\udc80", ""])
def test_the_quick_way_writes_what_logging_writes(as_json: bool, status: int, path: str) -> None:
    log = logging.getLogger("maniflex.access")
    seen = SEEN._replace(status=status, path=path)
    lines = []
    for quickly in (True, False):
        handler, stream = LineHandler(as_json=as_json, service="shop"), io.StringIO()
        handler.setStream(stream)
        with only_handler(handler):
            if not quickly:
                handler.addFilter(lambda record: True)
            assert (line_handler(log) is handler) is quickly
            write_access_line(log, seen)
        lines.append(stream.getvalue())

    quick, usual = (_without_time(line, as_json) for line in lines)
    assert quick == usual
    assert lines[0].count("\n") == 1


def _without_time(line: str, as_json: bool) -> Any:
    if not as_json:
        return line.partition(" ")[2]
    return {name: value for name, value in json.loads(line).items() if name != "time"}


async def test_lines_of_one_moment_are_written_together_and_before_later_ones() -> None:
    log, writes = logging.getLogger("maniflex.access"), []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    handler = LineHandler(as_json=False, service="")
    handler.setStream(Stream())
    with only_handler(handler):
        for number in range(3):
            write_access_line(log, SEEN._replace(request_id=f"r-{number}"))
        assert writes == []
        await eventually(lambda: writes)
        assert len(writes) == 1
        write_access_line(log, SEEN)
        other.warning("later")

    assert writes[0].count("\n") == 3
    assert [text.strip().rpartition(" ")[2] for text in writes[1:]] == ["[r-1]", "later"]


async def test_requests_that_join_waiting_lines_are_written_like_the_first(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id=ctx.request.headers.get("x-user", "").replace("|", "\n"))
        await next()

    @server.action("GET", "/notes/{id}")
    async def show(ctx: Context) -> dict[str, str]:
        return {"id": ctx.resource_id}

    caplog.set_level("WARNING", "httpx")  # its lines would be written behind each of ours
    asked = (("1", "ada"), ("1", "ada"), ("1", ""), ("a%0Ab", ""), ("", ""), ("1", "ada"), ("1", "a|b"))
    stream = io.StringIO()
    handler = LineHandler(as_json=False, service="")
    handler.setStream(stream)
    async with client(server, database=sqlite_url):
        transport = httpx.ASGITransport(app=AccessLog(server))
        with only_handler(handler):
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                for path, user in asked:
                    headers = {"x-user": user, "x-request-id": "r-1"}
                    await http.get(f"/api/notes/{path}", headers=headers)
            handler.flush()

    lines = [re.sub(r"[\d.]+ ms", "N ms", line.partition(" ")[2]) for line in stream.getvalue().splitlines()]
    assert lines == [
        "INFO    GET /api/notes/1 200 N ms 19 B ada [r-1]",
        "INFO    GET /api/notes/1 200 N ms 19 B ada [r-1]",
        "INFO    GET /api/notes/1 200 N ms 19 B [r-1]",
        "INFO    GET /api/notes/a\\nb 200 N ms 22 B [r-1]",
        "WARNING GET /api/notes/ 404 N ms 55 B [r-1]",
        "INFO    GET /api/notes/1 200 N ms 19 B ada [r-1]",
        "INFO    GET /api/notes/1 200 N ms 19 B a\\nb [r-1]",
    ]


async def test_json_lines_that_wait_are_those_of_logging(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        name = ctx.request.headers.get("x-user", "").replace("|", "\n").replace("^", "é\u2028%s")
        ctx.auth = AuthInfo(user_id=name, tenant_id=name[:1])
        await next()

    @server.action("GET", "/notes/{id}")
    async def show(ctx: Context) -> dict[str, str] | None:
        return None if ctx.resource_id == "none" else {"id": ctx.resource_id}

    @server.action("GET", "/all%s")
    async def show_all(ctx: Context) -> None:
        return None

    caplog.set_level("WARNING", "httpx")
    users = ("ada", "", "a|b", 'a"b', "a\\b", "100%s", "^", "ada")
    paths = (
        "notes/1",
        'notes/a"b',
        "notes/a%22b",
        "notes/a\\b",
        "notes/a%0Ab",
        "notes/none",
        "all%25s",
        "no",
    )
    written = []
    async with client(server, database=sqlite_url):
        for quickly in (True, False):
            handler, stream = LineHandler(as_json=True, service="shop 50%"), io.StringIO()
            handler.setStream(stream)
            if not quickly:
                handler.addFilter(lambda record: True)
            transport = httpx.ASGITransport(app=AccessLog(server))
            with only_handler(handler):
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                    for path in paths:
                        for user in users:
                            headers = {"x-user": user, "x-request-id": "r-1"}
                            await http.get(f"/api/{path}", headers=headers)
                assert not quickly or len(stream.getvalue().splitlines()) < len(users) * len(paths)
                handler.flush()
            written.append([json.loads(line) for line in stream.getvalue().split("\n")[:-1]])
    for line in (line for lines in written for line in lines):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
        line["message"] = re.sub(r"[\d.]+ ms", "N ms", line["message"])
        assert line.pop("duration_ms") > 0
    assert written[0] == written[1]
    assert len(written[0]) == len(users) * len(paths)
    assert {line["service"] for line in written[0]} == {"shop 50%"}


def test_an_application_with_handlers_of_its_own_gets_every_line() -> None:
    log, lines = logging.getLogger("maniflex.access"), []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = LineHandler(as_json=False, service="")
    handler.setStream(io.StringIO())
    own = Own()
    with only_handler(handler):
        for logger in (logging.getLogger(), logging.getLogger("maniflex"), log):
            logger.addHandler(own)
            write_access_line(log, SEEN)
            logger.removeHandler(own)

    assert lines == ["GET /api/notes/7 200 12.3 ms 42 B ada"] * 3


OWN_LOGGER = """
import json, logging, sys

from maniflex import Context, Server

class Attributes(logging.Handler):
    def emit(self, record):
        names = ("service", "request_id", "trace_id", "traceparent")
        about = {name: getattr(record, name, "") for name in names}
        with open("lines.json", "a") as file:
            file.write(json.dumps({"logger": record.name, "message": record.getMessage(), **about}) + "\\n")

logging.getLogger().addHandler(Attributes())
logging.getLogger().setLevel("INFO")
server = Server("sqlite:///own.db", logger=logging.getLogger("shop.log"), service_name="shop")

@server.action("GET", "/hello")
async def hello(ctx: Context) -> str:
    return "hello"

@server.work.handler("greet")
async def greet(run):
    return None
"""


def test_lines_of_access_and_start_have_the_fields_of_the_request_under_an_own_logger(tmp_path: Path) -> None:
    """Whoever formats the records finds service, trace and request in them."""
    (tmp_path / "app.py").write_text(OWN_LOGGER)
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-request-id": "one"}
    with serve_process(tmp_path) as served:
        assert httpx.get(f"{served.url}/api/hello", headers=headers).status_code == 200
        assert httpx.get(f"{served.url}/nowhere", headers=headers).status_code == 404
        too_large = {"x-much": "x" * 200_000}  # so it never comes to the server
        assert httpx.get(f"{served.url}/api/hello", headers=too_large).status_code == 431
    lines = [json.loads(line) for line in (tmp_path / "lines.json").read_text().splitlines()]
    ours = [line for line in lines if line["logger"] in ("shop.log", "maniflex.access")]
    assert {line["service"] for line in ours} == {"shop"}
    own = " ".join(line["message"] for line in ours if line["logger"] == "shop.log")
    for start in ("sqlite", "worker started", "listening on"):
        assert start in own
    access = [line for line in ours if line["logger"] == "maniflex.access"]
    [hello] = [line for line in access if "GET /api/hello 200" in line["message"]]
    assert [hello[name] for name in ("request_id", "trace_id")] == ["one", trace]
    assert hello["traceparent"] == headers["traceparent"]
    assert [line["request_id"] for line in access if "/nowhere 404" in line["message"]] == ["one"]
    assert len(access) >= 3
