"""What a scope rule costs a read by id, as CPU time in this process (X14)."""

from __future__ import annotations

from time import process_time
from typing import Any

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.middleware import db
from maniflex.testing import client

READS = 150
TRIES = 40  # short ones, of which some are left alone by other processes


class Doc(Model):
    org_id: str = field(filterable=True, relation=None)
    name: str


async def identify(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ann", tenant_id="org-a")
    await next()


def make_server(*, bound: bool) -> Server:
    server = Server()
    server.register(Doc)
    server.pipeline.auth.register(identify)
    if bound:
        server.pipeline.auth.register(db.tenancy("org_id"))
    return server


async def seconds_of_reads(server: Server) -> float:
    scope = {"type": "http", "method": "GET", "path": "/api/docs/d", "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    start = process_time()
    for _ in range(READS):
        await server({**scope}, receive, send)
    return process_time() - start


async def test_a_bound_read_costs_little_more_than_a_free_one() -> None:
    """At most 1.15 times, best of several tries each, taken in turns."""
    free, bound = make_server(bound=False), make_server(bound=True)
    async with client(free), client(bound):
        for server in (free, bound):
            await server.db(Doc).create(id="d", org_id="org-a", name="x")
        tries = [(await seconds_of_reads(free), await seconds_of_reads(bound)) for _ in range(TRIES)]
    best_free, best_bound = (min(times) for times in zip(*tries, strict=True))
    assert best_bound <= 1.15 * best_free, (best_bound / best_free, tries)
