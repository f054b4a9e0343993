"""Bytes on a real socket: whatever arrives, the server answers below 500 or hangs up, and lives on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.kit.asgi import Call
from tests.kit.fuzz.bodies import KNOWN
from tests.kit.fuzz.requests import CURRENT, body_calls, header_calls, path_calls, query_calls
from tests.kit.processes import IMPORTS, Served, serve_process

ROOT = Path(__file__).parents[2]
APP = """
from maniflex import Config
from tests.kit.fuzz.app import fuzzed_server

server = fuzzed_server(config=Config.from_env())
"""
FRAMING = (b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"connection")
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

REQUEST_LINES = (
    *(b"GET /live HTTP/1.1", b"GET /live HTTP/1.0", b"GET /live HTTP/9.9", b"GET /live", b"GET", b"", b" "),
    *(
        b"POST /api/things HTTP/1.1",
        b"GET http://[::1/live HTTP/1.1",
        b"GET //[ HTTP/1.1",
        b"\x16\x03\x01\x02",
    ),
    *(b"GET /\xff\xfe HTTP/1.1", b"GET /a b HTTP/1.1", b"GET /live?\x00 HTTP/1.1", b"PRI * HTTP/2.0"),
    *(b"CONNECT a:443 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"G\x00T /live HTTP/1.1", b"GET " + b"/a" * 40_000),
)
HEADER_LINES = (
    *(b"Host: x", b"Host", b": x", b"Content-Length: 5", b"Content-Length: 5", b"Content-Length: -5"),
    *(b"Content-Length: 99999999999999999999", b"Content-Length: 5, 6", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: \x0bchunked", b"Expect: 100-continue"),
    *(b" folded", b"X: \x00", b"X\xff: y", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c"),
    *(b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 13", b"X: " + b"y" * 70_000, b"Connection: close"),
)
TAILS = (
    b"",
    b"{}",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"zz\r\n",
    b"ffffffffffffffffff\r\n",
    b"\x00" * 40,
    b"GET /live HTTP/1.1",
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    database = f"sqlite:///{tmp_path}/fuzz.db"
    (tmp_path / "app.py").write_text(APP)
    with serve_process(tmp_path, PYTHONPATH=IMPORTS, DB_WRITE_URL=database) as found:
        yield found
        assert httpx.get(f"{found.url}/live").status_code == 200
        assert found.process.poll() is None
        assert "Traceback" not in found.output


def exchange(port: int, request: bytes, *, hang_up: bool) -> bytes:
    """Everything the server says to these bytes until it closes; it must close in time."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            connection.sendall(request)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65_536):
                received += chunk
        except TimeoutError:
            raise
        except OSError:
            pass  # it refused to read on, which is its right
    return received


@st.composite
def malformed(draw: DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(st.binary(max_size=300))
    lines = [draw(st.sampled_from(REQUEST_LINES)), *draw(st.lists(st.sampled_from(HEADER_LINES), max_size=5))]
    end = draw(st.sampled_from((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")))
    return end.join(lines) + end * 2 + draw(st.sampled_from(TAILS))


def on_the_wire(call: Call) -> bytes | None:
    """A call as an HTTP client would frame it, or None when no client could.

    A long body is left out as well: a server that refuses one hangs up, and the answer may be lost.
    """
    if not re.fullmatch(r"[A-Z]{3,8}", call.method) or call.method == "CONNECT":
        return None
    if len(call.body) > 50_000:
        return None
    query = re.sub(rb"[^!-~]", b"%20", call.query)
    kept = [
        (n, v) for n, v in call.headers if n not in FRAMING and re.fullmatch(rb"[\t\x20-\x7e\x80-\xff]*", v)
    ]
    kept += [(b"connection", b"close"), (b"content-length", b"%d" % len(call.body))]
    target = call.path.replace(KNOWN.encode(), b"") + (b"?" + query if query else b"")
    head = b"".join(b"%b: %b\r\n" % (name, value.replace(CURRENT, b'"x"')) for name, value in kept)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (call.method.encode(), target, head, call.body)


def test_malformed_http_is_refused_and_the_server_lives_on(
    served: Served, fuzz_cases: int, long_mode: bool
) -> None:
    @settings(max_examples=fuzz_cases // 5, derandomize=not long_mode, database=None)
    @given(malformed())
    def case(request: bytes) -> None:
        for status in STATUS.findall(exchange(served.port, request, hang_up=True)):
            assert int(status) < 500, (request, status)

    case()


def test_every_framed_request_gets_an_answer(served: Served, fuzz_cases: int, long_mode: bool) -> None:
    answered: set[int] = set()

    @settings(max_examples=fuzz_cases // 5, derandomize=not long_mode, database=None)
    @given(st.one_of(body_calls(), header_calls(), path_calls(), query_calls()))
    def case(call: Call) -> None:
        request = on_the_wire(replace(call, gone=False))
        if request is None:
            return
        answer = exchange(served.port, request, hang_up=False)
        found = STATUS.match(answer)
        assert found is not None, (request, answer)
        assert int(found[1]) < 500, (request, answer)
        answered.add(int(found[1]))

    case()
    assert {200, 201, 400, 404} <= answered
