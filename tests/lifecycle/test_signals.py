"""A served process and what it is told: signals, a busy port, clients that leave."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.processes import Served, accepts, free_port, run_command, serve_process, start_process
from tests.kit.sockets import Connection, a_request, connected
from tests.kit.waiting import PATIENCE, until

APP = """
import asyncio, os, sys, threading
from pathlib import Path
from maniflex import Config, Context, Model, Next, Server
from maniflex.config import Trace

class Note(Model):
    text: str

HERE = Path(__file__).parent
server = Server(Config.from_env(database=f"sqlite:///{HERE}/app.db", trace=Trace(enabled=True, bodies=True)))
server.register(Note)

async def until_exists(name):
    (HERE / f"{name}-waits").touch()
    while not (HERE / name).exists():
        await asyncio.sleep(0.01)

@server.pipeline.service.middleware(name="hold")
async def hold(ctx: Context, next: Next) -> None:
    if ctx.header("x-hold"):
        await until_exists(ctx.header("x-hold"))
    await next()

@server.action("GET", "/pid")
async def pid(ctx: Context) -> int:
    return os.getpid()

@server.action("POST", "/boom")
async def boom(ctx: Context) -> None:
    raise RuntimeError("the cause")

@server.action("POST", "/block")
def block(ctx: Context) -> None:
    (HERE / "handler-waits").touch()
    threading.Event().wait()

@server.pipeline.service.middleware(name="block")
def stay(ctx: Context, next) -> None:
    if ctx.header("x-block"):
        (HERE / "middleware-waits").touch()
        threading.Event().wait()
    next()

@server.computed(Note, "blocked")
def blocked(note: Note) -> bool:
    if note.text == "block":
        (HERE / "field-waits").touch()
        threading.Event().wait()
    return False

@server.on_start
async def start() -> None:
    if os.environ.get("SLOW_START"):
        await until_exists("start")

@server.on_shutdown
async def stop() -> None:
    (HERE / f"stopped-{os.getpid()}").touch()
    if os.environ.get("HANG"):
        await asyncio.Event().wait()

if __name__ == "__main__":
    server.run(port=int(sys.argv[1]))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def stopped(app: Path) -> int:
    return len(list(app.glob("stopped-*")))


class InFlight(threading.Thread):
    """A create that the server holds until its file appears."""

    def __init__(self, served: Served, app: Path, name: str = "go") -> None:
        super().__init__()
        self.served, self.answer, self.name_ = served, 0, name
        self.start()
        until((app / f"{name}-waits").exists, "a request in flight")

    def run(self) -> None:
        try:
            self.answer = httpx.post(
                f"{self.served.url}/api/notes",
                json={"text": "held"},
                headers={"x-hold": self.name_},
                timeout=30,
            ).status_code
        except httpx.TransportError:
            self.answer = -1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_the_request_in_flight_finish_and_ends_with_0(
    number: signal.Signals, app: Path
) -> None:
    with serve_process(app) as served:
        request = InFlight(served, app)
        served.send(number)
        until(lambda: not accepts(served.port), "a closed port")
        assert served.process.poll() is None
        (app / "go").touch()
        request.join()

        assert request.answer == 201
        assert served.ended() == 0
        assert stopped(app) == 1
        assert "Traceback" not in served.output


def test_the_deadline_ends_a_request_and_a_hook_that_do_not_end_by_themselves(app: Path) -> None:
    with serve_process(app, SHUTDOWN_TIMEOUT="1s", HANG="1") as served:
        InFlight(served, app, "never")
        served.send(signal.SIGTERM)
        assert served.process.wait(10) == 0
        assert stopped(app) == 1


@pytest.mark.parametrize(
    ("place", "path", "headers", "text"),
    [
        ("handler", "block", {}, ""),
        ("middleware", "notes", {"x-block": "1"}, ""),
        ("field", "notes", {}, "block"),
    ],
)
def test_the_deadline_does_not_wait_for_a_thread_that_never_returns(
    app: Path, place: str, path: str, headers: dict[str, str], text: str
) -> None:
    with serve_process(app, SHUTDOWN_TIMEOUT="1s") as served:
        body = b'{"text": "%s"}' % text.encode()
        lines = [f"POST /api/{path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        with socket.create_connection(("127.0.0.1", served.port)) as blocked:
            blocked.sendall("\r\n".join(lines).encode() + body)
            until((app / f"{place}-waits").exists, "a thread that blocks")
            served.send(signal.SIGTERM)
            assert served.process.wait(10) == 0
        assert stopped(app) == 1


def test_a_script_serves_and_stops_like_the_command(app: Path) -> None:
    port = free_port()
    command: list[str | Path] = [sys.executable, "app.py", str(port)]
    with start_process(command, port, cwd=app) as served:
        served.until_up()
        assert f"listening on http://127.0.0.1:{port}" in served.output
        served.send(signal.SIGTERM)
        assert served.ended() == 0
        assert stopped(app) == 1


def test_a_stop_during_the_start_never_opens_the_port(app: Path) -> None:
    port = free_port()
    command: list[str | Path] = [sys.executable, "app.py", str(port)]
    with start_process(command, port, cwd=app, SLOW_START="1") as served:
        until((app / "start-waits").exists, "a start that waits")
        assert not accepts(port)
        served.send(signal.SIGTERM)
        (app / "start").touch()

        assert served.ended() == 0
        assert stopped(app) == 1  # what was started is stopped
        assert "listening" not in served.output


def test_a_busy_port_is_one_clear_sentence(app: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for options in ((), ("--workers", "2")):
            refused = run_command("run", "app:server", "--port", str(port), *options, cwd=app)
            assert refused.returncode == 1
            assert refused.stderr.count("\n") == 1
            assert f"port {port} on 127.0.0.1 is already in use" in refused.stderr
    assert stopped(app) == 0
    assert not (app / "app.db").exists()


def test_a_start_that_fails_ends_with_an_error_and_without_a_traceback(app: Path) -> None:
    (app / "app.db").mkdir()  # no file can be there

    refused = run_command("run", "app:server", "--port", str(free_port()), cwd=app)

    assert refused.returncode == 1
    assert "the server could not start: " in refused.stderr
    assert "it is a directory" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_host_and_port_options_win_over_the_settings(app: Path) -> None:
    with serve_process(app, host="127.0.0.2", HOST="127.0.0.1", PORT="1") as served:
        assert f"listening on http://127.0.0.2:{served.port}" in served.output


def test_two_workers_serve_and_both_stop_in_order(app: Path) -> None:
    with serve_process(app, "--workers", "2", LOG_JSON="1") as served:
        seen: set[int] = set()

        def both_answered() -> bool:
            seen.add(httpx.get(f"{served.url}/api/pid").json()["data"])
            return len(seen) == 2

        until(both_answered, "two workers that answer")
        assert served.process.pid not in seen
        assert httpx.post(f"{served.url}/api/boom").status_code == 500
        assert any("the cause" in line["message"] for line in served.lines)

        served.send(signal.SIGTERM)
        assert served.ended() == 0
        assert {path.name for path in app.glob("stopped-*")} == {f"stopped-{pid}" for pid in seen}


def test_reload_starts_serves_and_stops(app: Path) -> None:
    with serve_process(app, "--reload") as served:
        assert httpx.post(f"{served.url}/api/notes", json={"text": "x"}).status_code == 201
        served.send(signal.SIGINT)
        assert served.ended() == 0
        assert "Traceback" not in served.output


def test_a_client_that_leaves_causes_no_noise_and_no_harm(app: Path) -> None:
    body = b'{"text": "never read"}'
    head = b"POST /api/notes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with serve_process(app) as served:
        for name in ("a", "b", "c"):
            with socket.create_connection(("127.0.0.1", served.port)) as gone:
                gone.sendall(
                    head + b"X-Hold: %s\r\nContent-Length: %d\r\n\r\n" % (name.encode(), len(body)) + body
                )
                until((app / f"{name}-waits").exists, "a request in flight")
            (app / name).touch()
        with socket.create_connection(("127.0.0.1", served.port)) as gone:  # half a body
            gone.sendall(head + b"Content-Length: 5000\r\n\r\n" + body)

        assert httpx.post(f"{served.url}/api/notes", json={"text": "stays"}).status_code == 201
        served.send(signal.SIGTERM)
        assert served.ended() == 0
        for word in ("Traceback", "ERROR", "WARNING", "Exception"):
            assert word not in served.output


def test_json_logs_are_one_object_a_line_with_the_request_id(app: Path) -> None:
    with serve_process(app, LOG_JSON="true", LOG_LEVEL="DEBUG", SERVICE_NAME="notes") as served:
        headers = {"X-Request-Id": "r-77", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        assert httpx.post(f"{served.url}/api/boom", headers=headers).status_code == 500
        assert httpx.post(f"{served.url}/api/notes", json={"text": "x"}, headers=headers).status_code == 201
        served.send(signal.SIGTERM)
        assert served.ended() == 0

        mine = [line for line in served.lines if line.get("request_id") == "r-77"]
        [panic] = [line for line in mine if line["level"] == "error" and "unhandled" in line["message"]]
        assert "the cause" in panic["message"]
        steps = [line for line in mine if line["message"].startswith("→ service:hold")]
        assert [(line["trace_id"], line["service"]) for line in steps] == [("ab" * 16, "notes")]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in served.lines)


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "two processes"])
async def test_clients_with_kept_connections_are_told_that_these_end(
    app: Path, options: tuple[str, ...]
) -> None:
    with serve_process(app, *options) as served:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(served.port)) for _ in range(10)]
            for client in clients:
                assert (await client.ask("GET", "/api/notes"))[0] == 200
            asking = [asyncio.create_task(ask_until_told(client)) for client in clients]
            served.send(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*asking)
            assert await asyncio.to_thread(served.ended) == 0


async def ask_until_told(client: Connection) -> None:
    """Ask again and again, as a client with a pool does, until an answer says that the connection ends."""
    while True:
        await client.send(a_request("GET", "/api/notes"))
        status, headers, _ = await client.answer()
        assert status == 200
        if headers.get("connection") == "close":
            return
        await asyncio.sleep(0.1)  # it must stay: between two requests the connection is idle
