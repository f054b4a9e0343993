"""Requests as bytes, and a caller that hands them to an ASGI application the way uvicorn would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

PATIENCE = 10.0  # seconds; a request that takes longer hangs
HEADER_TROUBLE = frozenset(b"\r\n\0")


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it would stand on the wire."""

    method: str
    path: bytes
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    cut: tuple[int, ...] = ()  # where the body is torn into chunks
    gone: bool = False  # the client leaves before its body is complete


@dataclass(slots=True)
class Answer:
    """What came back; `status` is 0 when nothing did."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def scope_of(call: Call) -> dict[str, Any]:
    """The scope of a request; the path is decoded as uvicorn decodes it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 50_000),
        "method": call.method,
        "root_path": "",
        "path": unquote(call.path.decode("latin-1")),
        "raw_path": call.path,
        "query_string": call.query,
        "headers": [(name.lower(), value) for name, value in call.headers],
        "state": {},
    }


async def send(app: Any, call: Call, **scope: Any) -> Answer:
    """Ask the application; its messages must follow the protocol and come in time.

    `scope` replaces what the scope would say of the call.
    """
    answer, done, chunks = Answer(), asyncio.Event(), _chunks(call)

    async def receive() -> dict[str, Any]:
        if chunks:
            body = chunks.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(chunks) or call.gone}
        if not call.gone:
            await done.wait()
        return {"type": "http.disconnect"}

    async def take(message: MutableMapping[str, Any]) -> None:
        assert not done.is_set(), "a message after the last one"
        if message["type"] == "http.response.start":
            assert answer.status == 0, "a second start"
            answer.status, answer.headers = message["status"], list(message.get("headers", ()))
        else:
            assert message["type"] == "http.response.body"
            assert answer.status, "a body before the start"
            answer.body += message.get("body", b"")
            if not message.get("more_body"):
                done.set()

    async with asyncio.timeout(PATIENCE):
        await app({**scope_of(call), **scope}, receive, take)
    assert done.is_set() or call.gone, "the answer has no end"
    return answer


def _chunks(call: Call) -> list[bytes]:
    edges = [0, *sorted(cut % (len(call.body) + 1) for cut in call.cut), len(call.body)]
    return [call.body[start:end] for start, end in pairwise(edges)]


def check_framing(call: Call, answer: Answer) -> None:
    """What every HTTP client relies on, whatever was asked."""
    assert 200 <= answer.status < 500, f"{call} was answered {answer.status} {answer.body[:300]!r}"
    for name, value in answer.headers:
        assert name == name.lower(), name
        assert not HEADER_TROUBLE & {*name, *value}, (name, value)
    if call.method == "HEAD" and call.path.startswith(b"/static"):
        return  # Starlette leaves it to the HTTP server to drop the body of a refusal
    if answer.status in (204, 304) or call.method == "HEAD":
        assert answer.body == b"", f"{call} has a body where none may be"
    elif (length := answer.header(b"content-length")) is not None:
        assert int(length) == len(answer.body)
