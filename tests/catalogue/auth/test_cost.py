"""What a read costs behind `jwt` and `require_role`, against a bare one (X14)."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

from maniflex import Server
from maniflex.middleware import auth
from tests.catalogue.auth.kit import SECRET, Post, bearer

ROUNDS, REQUESTS, MOST = 25, 200, 1.3


async def test_a_read_with_a_remembered_token_is_hardly_dearer() -> None:
    guarded = [auth.jwt(SECRET), auth.require_role("admin")]
    token = bearer(roles=["admin"], exp=4e9)["Authorization"].encode()
    async with AsyncExitStack() as stack:
        scopes: list[tuple[Server, dict[str, Any]]] = []
        for entries in ([], guarded):
            server = Server()
            server.register(Post)
            for entry in entries:
                server.pipeline.auth.register(entry)
            stack.enter_context(server.on_database(":memory:", background=False))
            await stack.enter_async_context(server.lifespan())
            post = await server.db(Post).create(title="x")
            headers = [(b"host", b"x"), (b"accept", b"*/*"), (b"authorization", token)]
            path = f"/api/posts/{post.id}"
            scopes.append((server, _request(path, headers)))
        best = [await _cpu(*scopes[0]), await _cpu(*scopes[1])]
        for _ in range(ROUNDS):
            for place, (server, scope) in enumerate(scopes):
                best[place] = min(best[place], await _cpu(server, scope))

    assert best[1] / best[0] < MOST, f"{best[1] * 1e6:.1f} µs against {best[0] * 1e6:.1f} µs"


def _request(path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}


async def _cpu(server: Server, scope: dict[str, Any]) -> float:
    statuses = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    start = time.process_time()
    for _ in range(REQUESTS):
        await server({**scope}, receive, send)
    spent = time.process_time() - start
    assert statuses == {200}
    return spent / REQUESTS
