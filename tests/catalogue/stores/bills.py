"""A server with its cache, keys, limits and revocations in given stores, and what its tenants find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.middleware import auth, db, idempotency, stores
from tests.kit.http import data_of

TENANTS = ("red", "blue")


class Bill(Model, table="shared_bills"):
    tenant_id: str = field(filterable=True)
    number: int = 0


async def sign_in(ctx: Context, next: Next) -> None:
    """One account in every tenant and on every server."""
    ctx.auth = AuthInfo(user_id="ann")
    await next()


class Parts:
    """Stores, and entries that keep their things in them."""

    def __init__(self, forms: dict[str, Any]) -> None:
        self.forms = forms
        self.cache = db.cache_query(forms["cache"], ttl=60)
        self.keys = idempotency.keys(store=forms["keys"])
        self.action_keys = idempotency.keys(store=forms["keys"])
        self.limit = db.rate_limit(2, 3600, key=lambda ctx: "all", backend=forms["limits"])


def server_with(parts: Parts) -> Server:
    """A server whose cache, keys, limits and revocations are in these stores."""
    server = Server(background=False)
    server.register(Bill)
    server.pipeline.auth.register(sign_in, models=[Bill])
    server.pipeline.auth.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-org")), models=[Bill])
    server.pipeline.db.register(parts.cache, models=[Bill])
    server.pipeline.deserialize.register(parts.keys, models=[Bill], operations=["create"], at="after")

    async def in_tenant(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ann", tenant_id=ctx.header("x-org") or "")
        await next()

    @server.action("POST", "/bill", middleware=[in_tenant, parts.action_keys])
    async def bill(ctx: Context) -> Bill:
        return await ctx.db(Bill).create(number=7, tenant_id=ctx.header("x-org"))

    @server.action("POST", "/limited", middleware=[parts.limit])
    async def limited(ctx: Context) -> str:
        return "ok"

    tokens = auth.Tokens("s" * 32, issuer="shop", revoker=parts.forms["revoked"])
    tokens.mount(server, login=None)

    @server.action("GET", "/me", middleware=[tokens.bearer(), auth.require_auth()])
    async def me(ctx: Context) -> str:
        return ctx.require_auth().tenant_id

    server.tokens, server.forms = tokens, parts.forms  # type: ignore[attr-defined]  # for the tests
    return server


def in_redis(url: str, prefix: str) -> dict[str, Any]:
    return {
        "cache": stores.RedisStore(url, f"{prefix}:cache"),
        "keys": stores.RedisIdempotency(url, f"{prefix}:keys"),
        "limits": stores.RedisRateLimit(url, f"{prefix}:limits"),
        "revoked": stores.RedisRevoker(url, f"{prefix}:revoked"),
    }


def in_sql() -> dict[str, Any]:
    return {
        "cache": stores.SqlStore(),
        "keys": stores.SqlIdempotency(),
        "limits": stores.SqlRateLimit(),
        "revoked": stores.SqlRevoker(),
    }


def in_memory() -> dict[str, Any]:
    return {
        "cache": stores.MemoryStore(),
        "keys": stores.MemoryIdempotency(),
        "limits": stores.MemoryRateLimit(),
        "revoked": stores.MemoryRevoker(),
    }


def forms_of(kind: str, redis_url: str, prefix: str) -> dict[str, Any]:
    if kind == "redis":
        return in_redis(redis_url, prefix)
    return in_sql() if kind == "sql" else in_memory()


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


async def check_limits(http: httpx.AsyncClient) -> None:
    """Two requests pass, whatever another server has had."""
    statuses = [(await http.post("/api/limited", headers={"x-org": "red"})).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


async def check_revocations(pairs: Sequence[tuple[Server, httpx.AsyncClient]]) -> None:
    """What is revoked by code outside all requests counts on the server of the tokens, for its tenant."""
    headers = []
    for server, _ in pairs:
        for tenant in TENANTS:
            pair = await server.tokens.issue(AuthInfo(user_id="ann", tenant_id=tenant))  # type: ignore[attr-defined]
            headers.append({"authorization": f"Bearer {pair.access_token}"})

    async def statuses() -> list[int]:
        asked = zip((http for _, http in pairs for _ in TENANTS), headers, strict=True)
        return [(await http.get("/api/me", headers=own)).status_code for http, own in asked]

    assert await statuses() == [200] * 4
    await pairs[0][0].tokens.end_all(AuthInfo(user_id="ann", tenant_id="red"))  # type: ignore[attr-defined]
    assert await statuses() == [401, 200, 200, 200]
    await pairs[1][0].tokens.end_all("ann")  # type: ignore[attr-defined]
    assert await statuses() == [401, 200, 401, 401]
