"""What keys cost in CPU, against the same requests without them (X14)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from maniflex import Server
from maniflex.middleware import idempotency
from tests.catalogue.idempotency.shop import Refund
from tests.kit.one_core import on_one_core

ROUNDS, REQUESTS = 20, 50
MOST_WITHOUT_KEY, MOST_FRESH, MOST_REPLAY = 1.2, 4.5, 1.2

Headers = list[tuple[bytes, bytes]]


async def test_a_replay_costs_less_than_a_read_and_a_request_without_key_next_to_nothing() -> None:
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        stack.enter_context(on_one_core())
        bare, keyed = [await _start(stack, with_keys) for with_keys in (False, True)]
        refund = await bare.db(Refund).create(title="x")
        cases: dict[str, tuple[Server, Callable[[], dict[str, Any]]]] = {
            "create": (bare, lambda: _request("POST", "/refunds")),
            "without key": (keyed, lambda: _request("POST", "/refunds")),
            "fresh": (keyed, lambda: _request("POST", "/refunds", b"key-%d" % next(numbers))),
            "read": (bare, lambda: _request("GET", f"/refunds/{refund.id}")),
            "replay": (keyed, lambda: _request("POST", "/refunds", b"one key")),
        }
        best = dict.fromkeys(cases, float("inf"))
        for _ in range(ROUNDS):
            for name, (server, request) in cases.items():
                best[name] = min(best[name], await _cpu(server, request))

    assert best["without key"] / best["create"] < MOST_WITHOUT_KEY, best
    assert best["fresh"] / best["create"] < MOST_FRESH, best
    assert best["replay"] / best["read"] < MOST_REPLAY, best


async def _start(stack: AsyncExitStack, with_keys: bool) -> Server:
    server = Server(path_prefix="")
    server.register(Refund)
    if with_keys:
        server.pipeline.deserialize.register(idempotency.keys(), at="after")
    stack.enter_context(server.on_database(":memory:", background=False))
    await stack.enter_async_context(server.lifespan())
    return server


def _request(method: str, path: str, key: bytes = b"") -> dict[str, Any]:
    headers: Headers = [(b"host", b"x"), (b"content-type", b"application/json")]
    if key:
        headers.append((b"idempotency-key", key.replace(b" ", b"-")))
    return {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}


async def _cpu(server: Server, request: Callable[[], dict[str, Any]]) -> float:
    statuses = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"title": "tea"}', "more_body": False}

    scopes = [request() for _ in range(REQUESTS)]
    start = time.process_time()
    for scope in scopes:
        await server(scope, receive, send)
    spent = time.process_time() - start
    assert statuses <= {200, 201}
    return spent / REQUESTS
