"""A body that is refused before it has arrived: the client sees the answer, not a reset."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex import Context, Next, Server
from maniflex.http import asgi
from tests.kit.notes import Note
from tests.kit.sockets import PROTOCOLS, a_request, connected, listening

PATIENCE = 60.0
MEGABYTE = 1024 * 1024
LARGE = 5 * MEGABYTE


@asynccontextmanager
async def notes(sqlite_url: str, protocol: str) -> AsyncIterator[int]:
    server = Server(sqlite_url)
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def guard(ctx: Context, next: Next) -> None:
        if ctx.header("x-stranger"):
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        await next()

    async with listening(server, PROTOCOLS[protocol]) as port, asyncio.timeout(PATIENCE):
        yield port


def send_all_then_read(port: int, parts: list[bytes]) -> bytes:
    """What a simple client does: it reads nothing before it has sent everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        for part in parts:
            client.sendall(part)
        answer = b""
        while data := client.recv(65536):
            answer += data
            head, separator, body = answer.partition(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if separator and len(body) >= int(length[0].partition(b":")[2]):
                break
        return answer


def in_chunks(size: int) -> list[bytes]:
    head = a_request("POST", "/api/notes", b"", "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    return [head, *[chunk] * (size // 65_536), b"0\r\n\r\n"]


REFUSED: dict[str, tuple[list[bytes], int]] = {
    "with its length": ([a_request("POST", "/api/notes", b"x" * LARGE)], 413),
    "with its length, closing": (
        [a_request("POST", "/api/notes", b"x" * LARGE, "Connection: close")],
        413,
    ),
    "in chunks": (in_chunks(LARGE), 413),
    "to nowhere": ([a_request("POST", "/api/nothing", b"x" * LARGE, "Connection: close")], 404),
    "by a wrong method": ([a_request("PUT", "/api/notes", b"x" * LARGE, "Connection: close")], 405),
    "by a stranger": (
        [a_request("POST", "/api/notes", b"x" * 3 * MEGABYTE, "X-Stranger: 1", "Connection: close")],
        401,
    ),
    "of another kind": (
        [
            a_request(
                "POST", "/api/notes", b"x" * 3 * MEGABYTE, "Content-Type: text/plain", "Connection: close"
            )
        ],
        415,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_large_body_is_refused_with_an_answer(sqlite_url: str, protocol: str, case: str) -> None:
    parts, status = REFUSED[case]
    async with notes(sqlite_url, protocol) as port:
        for _ in range(3):
            answer = await asyncio.to_thread(send_all_then_read, port, parts)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_asks_first_is_refused_and_sends_nothing(sqlite_url: str, protocol: str) -> None:
    asks = a_request("POST", "/api/notes", b"", "Expect: 100-continue", f"Content-Length: {LARGE}")
    async with notes(sqlite_url, protocol) as port, connected(port) as client:
        await client.send(asks)
        answer = await client.read()  # to the end: the server closes, and says so
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()
        assert b"100 Continue" not in answer


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_asks_first_and_is_welcome_is_told_to_go_on(
    sqlite_url: str, protocol: str
) -> None:
    body = b'{"text": "a"}'
    asks = a_request("POST", "/api/notes", b"", "Expect: 100-continue", f"Content-Length: {len(body)}")
    async with notes(sqlite_url, protocol) as port, connected(port) as client:
        await client.send(asks)
        assert (await client.read(25)).startswith(b"HTTP/1.1 100 ")
        await client.send(body)
        assert (await client.answer())[0] == 201


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_small_body_that_is_refused_keeps_the_connection(sqlite_url: str, protocol: str) -> None:
    refused = a_request("POST", "/api/notes", b'{"text": "a"}', "X-Stranger: 1")
    async with notes(sqlite_url, protocol) as port, connected(port) as client:
        for _ in range(3):
            await client.send(refused)
            status, headers, _ = await client.answer()
            assert (status, headers.get("connection")) == (401, None)
        await client.send(a_request("POST", "/api/notes", b'{"text": "a"}'))
        assert (await client.answer())[0] == 201


BOUNDS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "size": lambda patch: patch.setattr(asgi, "DROP_AT_MOST", MEGABYTE),
    "time": lambda patch: patch.setattr(asgi, "DROP_WITHIN", 0.2),
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_sends_for_ever_is_cut_off(
    sqlite_url: str, protocol: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BOUNDS[bound](monkeypatch)
    head, chunk, *_ = in_chunks(LARGE)
    ended = threading.Event()

    def send_for_ever(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            client.sendall(head)
            try:
                while True:
                    client.sendall(chunk)
            except ConnectionError:
                ended.set()

    async with notes(sqlite_url, protocol) as port:
        await asyncio.to_thread(send_for_ever, port)
        assert ended.is_set()


async def test_an_action_that_ignores_its_body_answers_all_the_same(sqlite_url: str) -> None:
    server = Server(sqlite_url)

    @server.action("POST", "/careless")
    async def careless(ctx: Context) -> Any:
        return {"read": False}

    @server.action("POST", "/careful")
    async def careful(ctx: Context) -> Any:
        return {"read": sum([len(part) async for part in ctx.request.stream()])}

    @server.action("POST", "/whole")
    async def whole(ctx: Context) -> Any:
        return {"read": len(await ctx.request.body())}

    async with listening(server) as port, asyncio.timeout(PATIENCE):
        for path, status in (("/api/careless", 200), ("/api/careful", 200), ("/api/whole", 413)):
            sent = [a_request("POST", path, b"x" * LARGE, "Connection: close")]
            answer = await asyncio.to_thread(send_all_then_read, port, sent)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), path
