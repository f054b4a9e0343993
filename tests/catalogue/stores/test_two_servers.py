"""Two servers with one Redis and one prefix, and two tenants with one account, share nothing they store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from redis import asyncio as aioredis

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex._clock import SystemClock
from maniflex.middleware import db, idempotency, stores
from maniflex.testing import client
from tests.kit.http import data_of

TENANTS = ("red", "blue")


class Bill(Model, table="shared_bills"):
    tenant_id: str = field(filterable=True)
    number: int = 0


async def sign_in(ctx: Context, next: Next) -> None:
    """One account in every tenant and on every server."""
    ctx.auth = AuthInfo(user_id="ann")
    await next()


def server_with(forms: dict[str, Any]) -> Server:
    """A server whose cache, keys, limits and revocations are in these stores."""
    server = Server(background=False)
    server.register(Bill)
    server.pipeline.auth.register(sign_in)
    server.pipeline.auth.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-org")))
    server.pipeline.db.register(db.cache_query(forms["cache"], ttl=60), models=[Bill])
    server.pipeline.deserialize.register(
        idempotency.keys(store=forms["keys"]), models=[Bill], operations=["create"], at="after"
    )

    @server.action("POST", "/bill", middleware=[idempotency.keys(store=forms["keys"])])
    async def bill(ctx: Context) -> Bill:
        return await ctx.db(Bill).create(number=7)

    limit = db.rate_limit(2, 3600, key=lambda ctx: "all", backend=forms["limits"])

    @server.action("POST", "/limited", middleware=[limit])
    async def limited(ctx: Context) -> str:
        return "ok"

    return server


def in_redis(url: str, prefix: str) -> dict[str, Any]:
    return {
        "cache": stores.RedisStore(url, f"{prefix}:cache"),
        "keys": stores.RedisIdempotency(url, f"{prefix}:keys"),
        "limits": stores.RedisRateLimit(url, f"{prefix}:limits"),
    }


def in_sql() -> dict[str, Any]:
    return {
        "cache": stores.SqlStore(),
        "keys": stores.SqlIdempotency(),
        "limits": stores.SqlRateLimit(),
    }


@asynccontextmanager
async def one_prefix(redis_url: str) -> AsyncIterator[str]:
    prefix = f"test_{uuid4().hex}"
    yield prefix
    redis = aioredis.Redis.from_url(redis_url)
    async for name in redis.scan_iter(f"*{prefix}*"):
        await redis.delete(name)
    await redis.aclose()


async def answers_of(http: httpx.AsyncClient) -> dict[str, Any]:
    """What each tenant finds on a server, after it has created a bill in two ways under one key."""
    seen: dict[str, Any] = {}
    for tenant in TENANTS:
        headers = {"x-org": tenant, "Idempotency-Key": "one"}
        ways = [("/api/shared_bills", 201), ("/api/bill", 200)]
        made = [data_of(await http.post(path, json={}, headers=headers), status) for path, status in ways]
        again = [data_of(await http.post(path, json={}, headers=headers), status) for path, status in ways]
        assert made == again, tenant
        for _ in range(2):  # the second list is of the cache
            rows = data_of(await http.get("/api/shared_bills", headers={"x-org": tenant}))
            assert {row["id"] for row in rows} == {one["id"] for one in made}, tenant
        assert {row["tenant_id"] for row in rows} == {tenant}
        seen[tenant] = {row["id"] for row in rows}
    return seen


@pytest.mark.parametrize("form", ["redis", "one object", "sql"])
async def test_servers_and_tenants_are_answered_with_their_own(
    form: str, redis_url: str, tmp_path: Path
) -> None:
    """Caches, keys and limits: 0 answers of another server or tenant."""
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        one = in_redis(redis_url, prefix)
        clients = []
        for number in range(2):
            forms = (
                in_sql() if form == "sql" else one if form == "one object" else in_redis(redis_url, prefix)
            )
            address = f"sqlite:///{tmp_path}/{number}.db"
            clients.append(await stack.enter_async_context(client(server_with(forms), database=address)))

        seen = [await answers_of(http) for http in clients]
        ids = [found for by_tenant in seen for found in by_tenant.values()]
        assert len(set.union(*ids)) == sum(map(len, ids)) == 8

        for http in clients:
            statuses = [
                (await http.post("/api/limited", headers={"x-org": "red"})).status_code for _ in range(3)
            ]
            assert statuses == [200, 200, 429]


async def test_processes_of_one_database_share_what_they_store(redis_url: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/one.db"
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                client(server_with(in_redis(redis_url, prefix)), database=address)
            )
            for _ in range(2)
        ]
        headers = {"x-org": "red", "Idempotency-Key": "one"}
        made = [data_of(await http.post("/api/bill", headers=headers)) for http in clients]
        assert made[0] == made[1]
        statuses = [
            (await http.post("/api/limited", headers={"x-org": "red"})).status_code
            for http in (*clients, *clients)
        ]
        assert statuses == [200, 200, 429, 429]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_revocation_counts_for_its_server_unless_it_is_shared(
    shared: bool, redis_url: str, tmp_path: Path
) -> None:
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        revokers = []
        for number in range(2):
            revoker = stores.RedisRevoker(redis_url, prefix, shared=shared)
            server = Server(f"sqlite:///{tmp_path}/{number}.db", background=False)
            server.register(*revoker.tables)
            await stack.enter_async_context(server.lifespan(role="client"))
            revoker.attach(server._seal().runtime.adapter, SystemClock())
            revokers.append(revoker)
        first, second = revokers
        now = first._clock.now()
        await first.revoke_token("a token", now + timedelta(hours=1))
        await first.revoke_user("ann", now, now + timedelta(hours=1))
        assert await first.is_revoked("a token")
        assert await second.is_revoked("a token") is shared
        assert (await second.user_cutoff("ann") is not None) is shared
        for revoker in revokers:
            await revoker.close()
