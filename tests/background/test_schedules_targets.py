"""What schedules do when they fire: runs, actions of this process, and POSTs to URLs that are let out."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from maniflex import Context, Next, Server, _outbound
from maniflex._outbound import MOST_BYTES, AddressRefused, is_public, post
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.targets import ACTION, URL
from maniflex.errors import DeclarationError, InvalidSchedule
from tests.kit.schedules import Bench, a_bench

HOUR = timedelta(hours=1)


class Receiver(BaseHTTPRequestHandler):
    """Notes what it is sent and answers as its server is told to."""

    server: Listening

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), json.loads(body)))
        status, headers, content = self.server.answers[
            min(len(self.server.got), len(self.server.answers)) - 1
        ]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Nothing on the screen."""


class Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: list[tuple[int, dict[str, str], bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.answers = answers
        self.got: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?a=1"


@contextmanager
def listening(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Listening]:
    with Listening(list(answers) or [(200, {}, b"thanks")]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def fired(bench: Bench, type: str) -> WorkflowRun:
    """The run of the one schedule, after its time has come and a worker has seen to it."""
    bench.clock.advance(HOUR)
    await bench.scheduler.tick()
    await bench.server.work.worker().run_once()
    [run] = await bench.runs(type)
    return run


def to_url(url: str, **options: Any) -> Callable[[Schedules], None]:
    return lambda s: s.add("hook", cron="@hourly", url=url, payload={"n": 1}, **options)


async def test_a_run_of_a_schedule_ends_with_the_execution_timeout(database_url: str) -> None:
    def handlers(server: Server) -> None:
        @server.work.handler("slow.v1", max_attempts=1)
        async def slow(run: Any) -> None:
            await asyncio.Event().wait()

    def declare(schedules: Schedules) -> None:
        schedules.add("slow", cron="@hourly", run="slow.v1")

    limit = timedelta(milliseconds=50)
    async with a_bench(database_url, declare, handlers=handlers, schedule_execution_timeout=limit) as bench:
        async with asyncio.timeout(30):
            run = await fired(bench, "slow.v1")

    assert (run.status, run.timeout) == ("failed", 0.05)
    assert run.error is not None
    assert run.error["code"] == "timeout"


async def test_a_handler_that_sets_a_limit_keeps_it_under_a_schedule(database_url: str) -> None:
    def handlers(server: Server) -> None:
        @server.work.handler("patient.v1", timeout=timedelta(hours=2))
        async def patient(run: Any) -> None: ...

    def declare(schedules: Schedules) -> None:
        schedules.add("patient", cron="@hourly", run="patient.v1")
        schedules.add("elsewhere", cron="@hourly", run="far.away.v1")

    async with a_bench(database_url, declare, handlers=handlers) as bench:
        bench.clock.advance(HOUR)
        await bench.scheduler.tick()
        now = await bench.schedules.run_now("elsewhere")
        runs = [*await bench.runs("patient.v1"), *await bench.runs("far.away.v1")]

    assert [run.timeout for run in runs] == [None, 600, 600]
    assert now.timeout == 600


async def test_an_interval_fires_from_when_the_schedule_was_made(database_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        schedules.add("beat", cron="@every 25m", run="beat.v1", policy="all")

    async with a_bench(database_url, declare) as bench:
        start = bench.clock.now()
        for _ in range(3):
            bench.clock.advance(timedelta(minutes=25))
            assert await bench.scheduler.tick() == 1
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 2
        dues = [firing.due_at - start for firing in await bench.firings("beat")]
        await bench.schedules.declare()  # another start leaves the beat alone
        beat = await bench.schedules.get("beat")

    assert dues == [timedelta(minutes=25 * n) for n in range(1, 6)]
    assert beat.next_run_at == start + timedelta(minutes=150)


async def test_a_url_is_posted_to_with_the_payload_and_a_stable_key(database_url: str) -> None:
    with listening((503, {}, b""), (200, {}, b"thanks")) as receiver:
        declare = to_url(receiver.url, allow_private=True, attempts=3)
        async with a_bench(database_url, declare) as bench:
            failed = await fired(bench, URL)
            assert failed.status == "pending"
            assert "answered 503" in (failed.last_error or "")
            bench.clock.advance(HOUR / 2)
            await bench.server.work.worker().run_once()
            [run] = await bench.runs(URL)
            [firing] = await bench.firings("hook")

    assert run.status == "succeeded"
    assert run.result == {"status": 200, "body": "thanks", "truncated": False}
    assert [(path, body) for path, _, body in receiver.got] == [("/hook?a=1", {"n": 1})] * 2
    for _, headers, _ in receiver.got:
        assert headers["Idempotency-Key"] == headers["X-Maniflex-Firing"] == firing.id
        assert headers["X-Maniflex-Schedule"] == firing.schedule_id
        assert headers["X-Maniflex-Due"] == "2026-01-01T01:00:00+00:00"
        assert headers["Content-Type"] == "application/json"


async def test_a_url_is_told_tenant_and_actor(sqlite_url: str) -> None:
    with listening() as receiver:
        declare = to_url(receiver.url, allow_private=True, tenant_id="red", actor_id="Zoë\r\nX-Evil: 1")
        with pytest.raises(DeclarationError, match="actor_id: it has characters that cannot be shown"):
            async with a_bench(sqlite_url, declare):
                pass
        declare = to_url(receiver.url, allow_private=True, tenant_id="red", actor_id="Zoë")
        async with a_bench(sqlite_url, declare) as bench:
            await fired(bench, URL)

    [(_, headers, _)] = receiver.got
    assert (headers["X-Maniflex-Tenant"], headers["X-Maniflex-Actor"]) == ("red", "Zo%C3%AB")


async def test_without_attempts_a_url_is_tried_once(sqlite_url: str) -> None:
    with listening((500, {}, b"")) as receiver:
        async with a_bench(sqlite_url, to_url(receiver.url, allow_private=True)) as bench:
            run = await fired(bench, URL)

    assert (run.status, run.attempt, len(receiver.got)) == ("failed", 1, 1)


async def test_a_redirect_is_not_followed(sqlite_url: str) -> None:
    with listening() as other, listening((302, {"Location": other.url}, b"")) as receiver:
        async with a_bench(sqlite_url, to_url(receiver.url, allow_private=True, attempts=5)) as bench:
            run = await fired(bench, URL)

    assert (run.status, run.attempt, other.got) == ("failed", 1, [])


async def test_a_private_address_is_refused_unless_allowed(sqlite_url: str) -> None:
    with listening() as receiver:
        async with a_bench(sqlite_url, to_url(receiver.url, allow_private=True, attempts=5)) as bench:
            await bench.schedules.update("hook", allow_private=False)
            run = await fired(bench, URL)

    assert (run.status, run.attempt, receiver.got) == ("failed", 1, [])
    assert "not public" in (run.last_error or "")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::", False),
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "[::1]", "localhost", "[::ffff:7f00:1]"])
def test_a_loopback_by_any_other_name_is_refused(host: str) -> None:
    with listening() as receiver, pytest.raises((AddressRefused, socket.gaierror)):
        post(f"http://{host}:{receiver.server_port}/", {}, {}, timeout=5)

    assert receiver.got == []


def test_one_private_address_among_several_condemns_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [(2, 1, 6, "", (ip, 80)) for ip in ("93.184.216.34", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: mixed)

    with pytest.raises(AddressRefused, match="not public") as refused:
        post("http://example.com/", {}, {}, timeout=5)

    assert "127" not in str(refused.value)  # who may make schedules is not told what our names lead to


def test_the_name_is_looked_up_once_and_the_connection_goes_to_what_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up = []

    with listening() as receiver:

        def rebinding(host: str, port: int, *args: Any, **options: Any) -> Any:
            looked_up.append(host)
            return [(2, 1, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(_outbound, "is_public", lambda address: address == "127.0.0.1")
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, *args, **options: (rebinding if host == "name.test" else real)(
                host, *args, **options
            ),
        )
        sent = post(f"http://name.test:{receiver.server_port}/", {"a": 1}, {}, timeout=5)

    assert sent.status == 200
    assert looked_up == ["name.test"]
    assert receiver.got[0][1]["Host"] == f"name.test:{receiver.server_port}"


def test_of_a_long_answer_only_the_beginning_is_read() -> None:
    with listening((200, {}, b"x" * (MOST_BYTES * 20))) as receiver:
        sent = post(receiver.url, {}, {}, timeout=5, allow_private=True)

    assert (len(sent.text), sent.truncated) == (MOST_BYTES, True)


def test_an_answer_that_drips_is_cut_off_at_the_deadline() -> None:
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stopped.wait(0.05):
                    try:
                        connection.sendall(b"X-Drip: 1\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(OSError, match="time"):
            post(f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, {}, timeout=0.5, allow_private=True)
        stopped.set()
        thread.join()


@contextmanager
def speaking(say: Callable[[socket.socket], object]) -> Iterator[str]:
    """The URL of somebody who reads a request and then says what they like."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                heard = b""
                while not heard.endswith(b"{}"):  # all of it: closing on something unread resets the line
                    heard += connection.recv(65536)
                say(connection)

        thread = threading.Thread(target=talk)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n", b"Content-Length: 60000\r\n"])
def test_an_answer_cannot_switch_off_the_deadline(more: bytes) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + more + b"\r\n")
        while True:  # until the other side has had enough
            connection.sendall(b"x")
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return

    with speaking(drip) as url, pytest.raises(TimeoutError, match="time was up"):
        post(url, {}, {}, timeout=0.5, allow_private=True)


@pytest.mark.parametrize(
    "answer",
    [b"Content-Length: 500\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n10\r\nabc"],
    ids=["by length", "in chunks"],
)
def test_an_answer_that_breaks_off_is_a_failure(answer: bytes) -> None:
    with (
        speaking(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)) as url,
        pytest.raises(OSError, match="broke off"),
    ):
        post(url, {}, {}, timeout=5, allow_private=True)


def test_an_answer_is_over_with_its_last_byte_though_the_line_stays_open() -> None:
    over = threading.Event()

    def stay(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        over.wait(30)

    with speaking(stay) as url:
        sent = post(url, {}, {}, timeout=30, allow_private=True)
        over.set()

    assert (sent.status, sent.text) == (200, "ok")


def test_looking_up_the_host_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: over.wait(30))

    with pytest.raises(TimeoutError, match="looked up"):
        post("http://name.test/", {}, {}, timeout=0.2)
    over.set()


async def test_slow_receivers_hold_up_nobody_else(sqlite_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        for n in range(40):  # more than asyncio has threads
            schedules.add(f"s{n}", cron="@hourly", url=url, allow_private=True)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with a_bench(sqlite_url, declare) as bench:
            bench.clock.advance(HOUR)
            await bench.scheduler.tick()
            working = asyncio.create_task(bench.server.work.worker(concurrency=40).run_once())
            lines = [(await asyncio.to_thread(silent.accept))[0] for _ in range(40)]
            for line in lines:
                line.close()
            assert await working == 40
            assert {run.status for run in await bench.runs(URL)} == {"failed"}


async def test_a_run_that_no_schedule_was_fired_as_reaches_nothing(database_url: str) -> None:
    with listening() as receiver:
        said = {"target": receiver.url, "payload": {}, "firing_id": "f", "schedule_id": "s", "due_at": "now"}
        async with a_bench(database_url) as bench:
            for type in (URL, ACTION):
                await bench.server.work.submit(type, {**said, "allow_private": True})
            await bench.server.work.worker().drain()
            runs = [*await bench.runs(URL), *await bench.runs(ACTION)]

    assert [run.status for run in runs] == ["failed"] * 2
    assert all("no schedule" in (run.last_error or "") for run in runs)
    assert receiver.got == []


async def test_the_inner_network_is_open_by_what_is_stored_when_the_run_begins(sqlite_url: str) -> None:
    with listening() as receiver:
        async with a_bench(sqlite_url, to_url(receiver.url, allow_private=True)) as bench:
            bench.clock.advance(HOUR)
            await bench.scheduler.tick()
            await bench.schedules.update("hook", allow_private=False)
            await bench.server.work.worker().run_once()
            [run] = await bench.runs(URL)

    assert (run.status, receiver.got) == ("failed", [])
    assert "not public" in (run.last_error or "")


@pytest.mark.parametrize("type", [URL, ACTION, "schedule.other"])
async def test_the_runs_of_schedules_themselves_are_no_targets(sqlite_url: str, type: str) -> None:
    server = Server(sqlite_url)
    server.schedules.add("in", cron="@hourly", run=type)
    with pytest.raises(DeclarationError, match="those of schedules"):
        server.seal()

    async with a_bench(sqlite_url, lambda s: s.add("a", cron="@hourly", run="report.v1")) as bench:
        with pytest.raises(InvalidSchedule, match="those of schedules"):
            await bench.schedules.create("b", cron="@hourly", run=type)
        with pytest.raises(InvalidSchedule, match="those of schedules"):
            await bench.schedules.update("a", run=type)

        await bench.server.raw_exec("UPDATE schedules SET target = ?", type)  # as by an older version
        with pytest.raises(InvalidSchedule, match="those of schedules"):
            await bench.schedules.run_now("a")
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 0
        assert "those of schedules" in ((await bench.schedules.get("a")).last_error or "")


def with_actions(server: Server) -> None:
    @server.action("POST", "/tidy", request=dict[str, int])
    async def tidy(ctx: Context) -> dict[str, Any]:
        assert ctx.auth is not None
        if ctx.body["n"] == 0:
            ctx.abort(409, "NOTHING_TO_DO", "all is tidy")
        return {"n": ctx.body["n"], "by": ctx.auth.user_id, "kind": ctx.auth.identity_type}


def to_action(name: str, payload: Any) -> Callable[[Schedules], None]:
    return lambda s: s.add("tidy", cron="@hourly", action=name, payload=payload)


async def test_an_action_is_called_in_this_process(database_url: str) -> None:
    async with a_bench(database_url, to_action("tidy", {"n": 3}), handlers=with_actions) as bench:
        run = await fired(bench, ACTION)

    assert run.status == "succeeded", run.last_error
    assert run.result == {"n": 3, "by": "schedule", "kind": "service_account"}


async def test_an_action_needs_no_token_from_a_schedule(sqlite_url: str) -> None:
    passed = []

    def handlers(server: Server) -> None:
        with_actions(server)

        @server.pipeline.auth.middleware()
        async def a_token_please(ctx: Context, next: Next) -> None:
            if not ctx.header("authorization"):
                ctx.abort(401, "UNAUTHORIZED", "a token please")
            await next()

        async def its_own(ctx: Context, next: Next) -> None:
            passed.append(ctx.auth and ctx.auth.user_id)
            await next()

        @server.action("POST", "/sweep", middleware=[its_own])
        async def sweep(ctx: Context) -> str:
            return "swept"

    async with a_bench(sqlite_url, to_action("sweep", None), handlers=handlers) as bench:
        run = await fired(bench, ACTION)
        transport = httpx.ASGITransport(bench.server)
        async with httpx.AsyncClient(transport=transport, base_url="http://test/api") as http:
            assert (await http.post("/sweep")).status_code == 401

    assert (run.status, run.result) == ("succeeded", "swept")
    assert passed == ["schedule"]


@pytest.mark.parametrize(
    ("name", "payload", "reason"),
    [
        ("tidy", {"n": 0}, "NOTHING_TO_DO"),
        ("tidy", {"n": "x"}, "answered 4"),
        ("gone", {}, "no action 'gone'"),
    ],
)
async def test_an_action_that_refuses_or_is_gone_fails_its_run(
    sqlite_url: str, name: str, payload: Any, reason: str
) -> None:
    async with a_bench(sqlite_url, to_action("tidy", {"n": 1}), handlers=with_actions) as bench:
        older = (name, json.dumps(payload))  # as by an older version
        await bench.server.raw_exec("UPDATE schedules SET target = ?, payload = ?", *older)
        run = await fired(bench, ACTION)

    assert run.status == "failed"
    assert reason in (run.last_error or "")


async def test_a_run_target_uses_its_handler_and_attempts(sqlite_url: str) -> None:
    seen = []

    def handlers(server: Server) -> None:
        @server.work.handler("report.v1", max_attempts=7)
        async def report(run: Any) -> None:
            seen.append(run.payload)

    def declare(schedules: Schedules) -> None:
        schedules.add("own", cron="@hourly", run="report.v1")
        schedules.add("two", cron="@hourly", run="report.v1", payload=[1], attempts=2)

    async with a_bench(sqlite_url, declare, handlers=handlers) as bench:
        bench.clock.advance(HOUR)
        assert await bench.scheduler.tick() == 2
        await bench.server.work.worker().run_once()
        runs = await bench.runs("report.v1")

    assert sorted(run.max_attempts for run in runs) == [2, 7]
    assert [run.status for run in runs] == ["succeeded"] * 2
    assert {} in seen
    assert [1] in seen
