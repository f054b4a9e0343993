"""`Caller`: what the other service hears, when it is asked again, and what comes back."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from maniflex import Context, Server
from maniflex._webhook_signatures import new_key_pair
from maniflex.background.metrics import Metrics
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.ext.integration import (
    Caller,
    CallFailed,
    CrossOriginRedirect,
    HttpStatusError,
    ResponseTooLarge,
    ServiceUnreachable,
    UnreadableResponse,
)
from maniflex.ext.integration.caller import pause_before
from maniflex.testing import client
from tests.kit.http import data_of
from tests.kit.processes import run_program
from tests.kit.scripted_http import scripted
from tests.kit.waiting import eventually

SECRET = "Bearer very-secret"
PUBLIC = new_key_pair()[1]


def at_once(attempt: int) -> float:
    return 0


def caller_of(url: str, **options: Any) -> Caller:
    return Caller(url, **{"backoff": at_once, "headers": {"Authorization": SECRET}, **options})


@dataclass
class Invoice:
    id: int
    total: float


async def test_json_goes_out_and_comes_back() -> None:
    async with scripted((200, {}, b'{"id": 7, "total": 2.5}'), (204, {}, b"")) as service:
        caller = caller_of(f"{service.url}/v1/")
        made = await caller.post("/invoices", {"amount": 3})
        nothing = await caller.delete("invoices/7")

    first, second = service.asked
    assert (made, nothing) == ({"id": 7, "total": 2.5}, None)
    assert (first.method, first.target, json.loads(first.body)) == ("POST", "/v1/invoices", {"amount": 3})
    assert (second.method, second.target, second.body) == ("DELETE", "/v1/invoices/7", b"")
    assert first.headers["content-type"] == "application/json"
    assert first.headers["authorization"] == SECRET


async def test_an_answer_is_read_into_a_type() -> None:
    async with scripted((200, {}, b'[{"id": 7, "total": 2.5}]'), (200, {}, b'{"id": "x"}')) as service:
        caller = caller_of(service.url)
        assert await caller.get("/invoices", into=list[Invoice]) == [Invoice(7, 2.5)]
        with pytest.raises(UnreadableResponse, match="no Invoice: see id, total"):
            await caller.get("/invoices/7", into=Invoice)


async def test_bytes_and_texts_go_as_they_are() -> None:
    async with scripted() as service:
        caller = caller_of(service.url)
        await caller.put("/a", b"\x00\xff")
        await caller.put("/b", "grüße")
        await caller.put("/c", b"<x/>", headers={"Content-Type": "application/xml"})

    assert [one.body for one in service.asked] == [b"\x00\xff", "grüße".encode(), b"<x/>"]
    assert service.asked[2].headers["content-type"] == "application/xml"


async def test_parameters_are_encoded() -> None:
    async with scripted() as service:
        await caller_of(service.url).get("/find?x=1", {"q": "a&b", "n": 2, "tag": ["a", "b"]})

    assert service.asked[0].target == "/find?x=1&q=a%26b&n=2&tag=a&tag=b"


async def test_it_is_tried_again_with_one_key_until_it_succeeds() -> None:
    metrics = Metrics()
    async with scripted((503, {}, b""), (503, {}, b""), (200, {}, b'{"ok": true}')) as service:
        assert await caller_of(service.url, metrics=metrics).post("/pay", {"n": 1}) == {"ok": True}

    keys = {one.headers["idempotency-key"] for one in service.asked}
    assert len(service.asked) == 3
    assert len(keys) == 1
    assert {s.labels[1][1]: s.value for s in metrics.counters()} == {"ok": 1, "retried": 2}


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
async def test_a_refusal_is_final(status: int) -> None:
    async with scripted((status, {}, b'{"error": "no"}')) as service:
        with pytest.raises(HttpStatusError) as refused:
            await caller_of(service.url).post("/pay", {"n": 1})

    assert len(service.asked) == 1
    error = refused.value
    assert (error.status, error.body, error.raw) == (status, {"error": "no"}, b'{"error": "no"}')
    assert not error.retryable


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_what_may_pass_is_tried_four_times_and_then_raised(status: int) -> None:
    async with scripted((status, {}, b"oops")) as service:
        with pytest.raises(HttpStatusError) as failed:
            await caller_of(service.url).get("/x")
        with pytest.raises(HttpStatusError):
            await caller_of(service.url, max_retry=0).get("/y")

    assert [one.target for one in service.asked] == ["/x"] * 4 + ["/y"]
    assert failed.value.retryable
    assert (failed.value.body, failed.value.raw) == (None, b"oops")


async def test_only_writes_that_are_not_repeatable_get_a_key_and_one_of_the_callers_stays() -> None:
    async with scripted() as service:
        caller = caller_of(service.url)
        for method in ("GET", "PUT", "DELETE", "POST", "PATCH"):
            await caller.request(method, "/x")
        await caller.post("/x", headers={"Idempotency-Key": "mine"})

    keys = [one.headers.get("idempotency-key") for one in service.asked]
    assert keys[:3] == [None] * 3
    assert keys[3]
    assert keys[4]
    assert keys[5] == "mine"


async def test_an_attempt_is_over_in_time() -> None:
    async with scripted(None) as service:
        with pytest.raises(ServiceUnreachable, match=r"no answer within 0\.2 s"):
            await caller_of(service.url, timeout=0.2, max_retry=1).get("/x")

    assert len(service.asked) == 2


async def test_an_answer_that_drips_is_over_in_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            try:
                await asyncio.wait_for(reader.read(1), 0.02)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ServiceUnreachable):
            await caller_of(url, timeout=0.3, max_retry=0).get("/x")


async def test_a_cancelled_call_ends_while_it_waits() -> None:
    async with scripted((503, {}, b"")) as service:
        call = asyncio.create_task(caller_of(service.url, backoff=lambda n: 3600).get("/x"))
        await eventually(lambda: service.asked, "the first attempt")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert len(service.asked) == 1


@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_that_is_too_large_is_not_read(announced: bool) -> None:
    content = b"x" * (5 * 1024 * 1024)
    head = f"Content-Length: {len(content)}\r\n" if announced else "Connection: close\r\n"
    async with scripted(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + content) as service:
        with pytest.raises(ResponseTooLarge):
            await caller_of(service.url).get("/x")

    assert len(service.asked) == 1


async def test_a_small_answer_that_unpacks_to_a_large_one_is_not_unpacked() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    async with scripted((200, {"Content-Encoding": "gzip"}, bomb)) as service:
        with pytest.raises(ResponseTooLarge):
            await caller_of(service.url).get("/x")


async def test_a_packed_answer_is_unpacked() -> None:
    async with scripted((200, {"Content-Encoding": "gzip"}, gzip.compress(b'{"a": 1}'))) as service:
        assert await caller_of(service.url).get("/x") == {"a": 1}


async def test_redirects_are_followed_within_the_origin_only() -> None:
    async with scripted() as other:
        away = (307, {"Location": f"{other.url}/steal"}, b"")
        near = (307, {"Location": "/there"}, b"")
        async with scripted(near, (200, {}, b"1"), away, near) as service:
            caller = caller_of(service.url)
            assert await caller.post("/here", {"a": 1}) == 1
            with pytest.raises(CrossOriginRedirect, match="another origin"):
                await caller.get("/away")
            with pytest.raises(CallFailed, match="more than 5 redirects"):
                await caller.get("/round")

    assert [(one.method, one.target, one.body) for one in service.asked[:2]] == [
        ("POST", "/here", b'{"a":1}'),
        ("POST", "/there", b'{"a":1}'),
    ]
    assert other.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "//evil.test/x",
        "http://evil.test/",
        "\\\\evil.test",
        "/a\\..\\b",
        "/../admin",
        "/a/../../b",
        "/%2e%2e/admin",
        "/%252e%252e/admin",
        "/a\r\nX: 1",
        "/a b",
        "/a#b",
    ],
)
async def test_a_path_cannot_leave_the_base(path: str) -> None:
    async with scripted() as service:
        with pytest.raises(ValidationFailed):
            await caller_of(f"{service.url}/v1").get(path)

    assert service.asked == []


async def test_the_trace_of_a_request_goes_along() -> None:
    server = Server()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with scripted() as service:
        caller = caller_of(service.url)

        @server.action("POST", "/call")
        async def call(ctx: Context) -> Any:
            return await caller.get("/x")

        async with client(server) as http:
            data_of(await http.post("/api/call", headers={"traceparent": trace}))

    assert service.asked[0].headers["traceparent"].split("-")[1] == trace.split("-")[1]


async def test_cookies_of_one_answer_are_not_sent_with_the_next_call() -> None:
    async with scripted((200, {"Set-Cookie": "session=a"}, b"1")) as service:
        caller = caller_of(service.url)
        await caller.get("/a")
        await caller.get("/b")

    assert "cookie" not in service.asked[1].headers


async def test_no_error_and_no_log_line_has_a_header(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted((500, {}, b"secret body")) as service:
        caller = caller_of(service.url, max_retry=1)
        with pytest.raises(HttpStatusError) as failed:
            await caller.get("/x", {"token": "also-secret"})

    texts = [str(failed.value), repr(failed.value), repr(caller), *(r.getMessage() for r in caplog.records)]
    assert not [text for text in texts if "very-secret" in text or "secret body" in text]
    assert "also-secret" not in str(failed.value)
    assert "also-secret" not in caplog.text  # nor what httpx2 says of each request


async def test_requests_of_clients_of_ones_own_are_still_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with scripted() as service, httpx2.AsyncClient() as own:
        await caller_of(service.url).get("/ours")
        await own.get(f"{service.url}/own")

    assert "/own" in caplog.text
    assert "/ours" not in caplog.text


async def test_without_private_addresses_nothing_is_connected_to() -> None:
    async with scripted() as service:
        caller = Caller(f"http://localtest.test:{service.port}", allow_private=False, max_retry=0)
        with pytest.raises(CallFailed):
            await caller.get("/x")
        with pytest.raises(DeclarationError, match="not a public address"):
            Caller(service.url, allow_private=False)

    assert service.asked == []


async def test_a_public_service_is_called_by_its_name_and_its_redirects_are_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("maniflex._outbound.is_public", lambda address: True)
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **options: real("127.0.0.1" if host == "name.test" else host, *args, **options),
    )
    async with scripted((200, {}, b'{"a": 1}'), (307, {"Location": "/there"}, b"")) as service:
        caller = Caller(f"http://name.test:{service.port}", allow_private=False, max_retry=0)
        assert await caller.get("/x") == {"a": 1}
        with pytest.raises(HttpStatusError, match="307"):
            await caller.get("/y")
        await caller.close()

    assert [one.target for one in service.asked] == ["/x", "/y"]
    assert service.asked[0].headers["host"] == f"name.test:{service.port}"


LACKING = """
import sys
sys.modules[sys.argv[1]] = None  # as where the extra is not installed
from maniflex import DeclarationError
from maniflex.ext.integration import Caller, WebhookReceiver
from maniflex.ext.mail import SmtpMailer
try:
    eval(sys.argv[2])
except DeclarationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "code", "extra"),
    [
        ("httpx2", "Caller('https://example.com')", "http"),
        ("aiosmtplib", "SmtpMailer('smtp.example.com', sender='a@example.com')", "mail"),
        (
            "cryptography.hazmat.primitives.asymmetric",
            f"WebhookReceiver({PUBLIC!r}, scheme='standard')",
            "auth",
        ),
    ],
    ids=["http", "mail", "auth"],  # a key is another one in each process that collects
)
def test_a_missing_package_is_a_declaration_error_that_says_what_to_type(
    module: str, code: str, extra: str
) -> None:
    with run_program(LACKING, module, code) as program:
        assert f"pip install 'maniflex[{extra}]'" in program.hear()


async def test_a_client_of_ones_own_is_used() -> None:
    async with scripted() as service, httpx2.AsyncClient(headers={"X-Own": "1"}) as own:
        await caller_of(service.url, client=own).get("/x")

    assert service.asked[0].headers["x-own"] == "1"


def test_wrong_arguments_are_named_together() -> None:
    with pytest.raises(DeclarationError) as refused:
        Caller("", timeout=0, max_retry=-1, max_response=0)

    text = str(refused.value)
    assert all(name in text for name in ("base_url", "timeout", "max_retry", "max_response"))
    with pytest.raises(DeclarationError, match="user"):
        Caller("https://user:pw@example.com")
    with pytest.raises(DeclarationError, match="client="):
        Caller("https://example.com", allow_private=False, client=httpx2.AsyncClient())


def test_a_server_that_puts_us_off_is_heard_up_to_half_a_minute() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def asked(text: str) -> float:
        from maniflex.ext.integration.caller import _HttpAnswer

        return pause_before(1, lambda n: 1, _HttpAnswer(503, {"retry-after": text}, b""), now)

    assert asked("7") == 7
    assert asked("120") == 30
    assert asked("Thu, 01 Jan 2026 00:00:09 GMT") == 9
    assert asked("Thu, 01 Jan 2025 00:00:09 GMT") == 0
    assert asked("soon") == 1
    assert pause_before(2, lambda n: timedelta(seconds=n), None, now) == 2
