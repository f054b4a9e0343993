"""Two servers with one Redis and one prefix, and two tenants with one account, share nothing they store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from redis import asyncio as aioredis

from maniflex import AuthInfo, Context, Server
from maniflex._clock import SystemClock
from maniflex.middleware import idempotency, stores
from maniflex.testing import client
from tests.catalogue.stores.bills import (
    Bill,
    Parts,
    answers_of,
    check_limits,
    check_revocations,
    forms_of,
    in_memory,
    in_redis,
    server_with,
    sign_in,
)
from tests.kit.http import data_of
from tests.kit.processes import run_program
from tests.kit.waiting import eventually


@asynccontextmanager
async def one_prefix(redis_url: str) -> AsyncIterator[str]:
    prefix = f"test_{uuid4().hex}"
    yield prefix
    redis = aioredis.Redis.from_url(redis_url)
    async for name in redis.scan_iter(f"*{prefix}*"):
        await redis.delete(name)
    await redis.aclose()


@asynccontextmanager
async def two_servers(
    kind: str, shares: str, redis_url: str, addresses: Sequence[str]
) -> AsyncIterator[list[tuple[Server, httpx.AsyncClient]]]:
    """Two servers that run in this process, which share a prefix, or the stores, or the entries too."""
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        parts = Parts(forms_of(kind, redis_url, prefix))
        pairs = []
        for address in addresses:
            if shares == "prefix":
                parts = Parts(forms_of(kind, redis_url, prefix))
            elif shares == "stores":
                parts = Parts(parts.forms)
            server = server_with(parts)
            pairs.append((server, await stack.enter_async_context(client(server, database=address))))
        yield pairs


def files_in(tmp_path: Path) -> list[str]:
    return [f"sqlite:///{tmp_path}/{number}.db" for number in range(2)]


KINDS = ("redis", "sql", "memory")
SHARES = ("prefix", "stores", "entries")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", SHARES)
async def test_servers_and_tenants_are_answered_with_their_own(
    kind: str, shares: str, redis_url: str, tmp_path: Path
) -> None:
    """Caches, keys, limits and revocations: 0 answers of another server or tenant."""
    async with two_servers(kind, shares, redis_url, files_in(tmp_path)) as pairs:
        clients = [http for _, http in pairs]
        seen = [await answers_of(http) for http in clients]
        ids = [found for by_tenant in seen for found in by_tenant.values()]
        assert len(set.union(*ids)) == sum(map(len, ids)) == 8

        for http in clients:
            await check_limits(http)
        await check_revocations(pairs)


NEIGHBOUR = """
import asyncio, json, sys

from maniflex.testing import client
from tests.catalogue.stores.bills import Parts, answers_of, check_limits, in_redis, server_with

async def main(redis_url, prefix, address):
    server = server_with(Parts(in_redis(redis_url, prefix)))
    async with client(server, database=address) as http:
        seen = await answers_of(http)
        await check_limits(http)
        await server.tokens.end_all("ann")
        print(json.dumps({tenant: sorted(ids) for tenant, ids in seen.items()}), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_with_one_prefix_are_answered_with_their_own(
    redis_url: str, tmp_path: Path
) -> None:
    own, other = files_in(tmp_path)
    async with one_prefix(redis_url) as prefix:
        server = server_with(Parts(in_redis(redis_url, prefix)))
        async with client(server, database=own) as http:
            token = (await server.tokens.issue(AuthInfo(user_id="ann"))).access_token  # type: ignore[attr-defined]
            seen = await answers_of(http)
            with run_program(NEIGHBOUR, redis_url, prefix, other) as neighbour:
                theirs = json.loads(await asyncio.to_thread(neighbour.hear))
            ids = [*seen.values(), *map(set, theirs.values())]
            assert len(set.union(*ids)) == sum(map(len, ids)) == 8
            assert await answers_of(http) == seen
            await check_limits(http)
            headers = {"authorization": f"Bearer {token}"}
            assert (await http.get("/api/me", headers=headers)).status_code == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_code_outside_all_requests_must_say_for_which_server_it_calls_a_shared_store(
    kind: str, redis_url: str, tmp_path: Path
) -> None:
    async with two_servers(kind, "stores", redis_url, files_in(tmp_path)) as [(one, _), (other, _)]:
        cache = one.forms["cache"]  # type: ignore[attr-defined]
        for call in (cache.get("k"), cache.set("k", b"v", 60), cache.increment("n"), cache.delete("k")):
            with pytest.raises(stores.StoreUnavailable, match=r"several servers share it.*acting_as"):
                await call
        with one.acting_as("ann"):
            await cache.set("k", b"of one", 60)
        async with other.scoped(auth=AuthInfo(user_id="ann")):
            assert await cache.get("k") is None
            await cache.set("k", b"of the other", 60)
        with other.acting_as("ann"), one.acting_as("ann"):
            assert await cache.get("k") == b"of one"

        found: dict[str, Any] = {}
        for name, server in (("one", one), ("other", other)):

            async def read(name: str = name) -> None:
                found[name] = await cache.get("k")

            server.go(read)
        await eventually(lambda: len(found) == 2, "both tasks have read")
        assert found == {"one": b"of one", "other": b"of the other"}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_only_server_that_is_left_needs_no_name(kind: str, redis_url: str, tmp_path: Path) -> None:
    async with one_prefix(redis_url) as prefix:
        forms = forms_of(kind, redis_url, prefix)
        first, second = (server_with(Parts(forms)) for _ in range(2))
        addresses = files_in(tmp_path)
        async with client(first, database=addresses[0]):
            async with client(second, database=addresses[1]):
                with second.acting_as("ann"):
                    await forms["cache"].set("k", b"of the second", 60)
            assert await forms["cache"].get("k") is None
            await forms["cache"].set("k", b"of the first", 60)
            assert await forms["cache"].get("k") == b"of the first"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", SHARES)
async def test_a_write_by_code_of_the_other_server_makes_the_right_cache_invalid(
    kind: str, shares: str, redis_url: str, tmp_path: Path
) -> None:
    """Inside a request of one server, in a transaction of the other, and outside all requests."""
    async with two_servers(kind, shares, redis_url, files_in(tmp_path)) as [(one, http), (other, other_http)]:

        async def count(of: httpx.AsyncClient) -> int:
            return len(data_of(await of.get("/api/shared_bills", headers={"x-org": "red"})))

        assert [await count(of) for of in (http, other_http, http, other_http)] == [0, 0, 0, 0]
        await one.db(Bill).create(tenant_id="red")
        assert [await count(of) for of in (http, other_http)] == [1, 0]
        with one.acting_as("ann"):
            async with other.transaction():
                await other.db(Bill).create(tenant_id="red")
        assert [await count(of) for of in (http, other_http)] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_calls_the_store_of_its_server(kind: str, redis_url: str, tmp_path: Path) -> None:
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        forms = forms_of(kind, redis_url, prefix)
        servers = []
        for address in files_in(tmp_path):
            server = server_with(Parts(forms))

            @server.work.handler("count")
            async def count(run: Any) -> int:
                number: int = await forms["cache"].increment("runs")
                return number

            await stack.enter_async_context(client(server, database=address, background=True))
            servers.append(server)
        results = []
        for server in (servers[0], servers[0], servers[1]):
            run = await server.work.submit("count", {})
            results.append((await server.work.wait(run.id, timeout=30)).result)
        assert results == [1, 2, 1]


async def test_a_key_is_renewed_and_given_back_on_its_own_server(redis_url: str, tmp_path: Path) -> None:
    """Both happen outside the request that holds it."""
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        store = stores.RedisIdempotency(redis_url, prefix)
        entered, may_go = asyncio.Event(), asyncio.Event()
        clients = []
        for address in files_in(tmp_path):
            server = Server(background=False)

            @server.action("POST", "/slow", middleware=[sign_in, idempotency.keys(store=store, lease=1)])
            async def slow(ctx: Context) -> str:
                entered.set()
                await may_go.wait()
                return "done"

            clients.append(await stack.enter_async_context(client(server, database=address)))
        redis = aioredis.Redis.from_url(redis_url)
        asked = asyncio.create_task(clients[0].post("/api/slow", headers={"Idempotency-Key": "one"}))
        await entered.wait()
        [name] = [name async for name in redis.scan_iter(f"{prefix}:*")]
        before = int(await redis.hget(name, "until") or 0)

        async def is_renewed() -> bool:
            return int(await redis.hget(name, "until") or 0) > before

        await eventually(is_renewed, "the claim of the first server is renewed", 10)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked

        async def is_free() -> bool:
            return not await redis.exists(name)

        await eventually(is_free, "the key is given back")
        await redis.aclose()


async def test_a_server_that_stops_leaves_the_other_its_connections(redis_url: str, tmp_path: Path) -> None:
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        forms = in_redis(redis_url, prefix)
        addresses = files_in(tmp_path)
        await stack.enter_async_context(client(server_with(Parts(forms)), database=addresses[0]))
        async with client(server_with(Parts(forms)), database=addresses[1]) as http:
            data_of(await http.get("/api/shared_bills", headers={"x-org": "red"}))
            connection = forms["cache"]._redis()
        assert forms["cache"]._redis() is connection


async def test_a_memory_store_counts_for_all_servers_of_one_database(tmp_path: Path, redis_url: str) -> None:
    """A revocation on one is one on the other, and a write on one makes the cache of both invalid."""
    address = f"sqlite:///{tmp_path}/one.db"
    async with two_servers("memory", "stores", redis_url, [address, address]) as [(one, http), (_, other)]:
        for of in (http, other):
            assert data_of(await of.get("/api/shared_bills", headers={"x-org": "red"})) == []
        await one.db(Bill).create(tenant_id="red")
        for of in (http, other):
            assert len(data_of(await of.get("/api/shared_bills", headers={"x-org": "red"}))) == 1
        token = (await one.tokens.issue(AuthInfo(user_id="ann"))).access_token  # type: ignore[attr-defined]
        headers = {"authorization": f"Bearer {token}"}
        assert (await other.get("/api/me", headers=headers)).status_code == 200
        await one.tokens.end_all("ann")  # type: ignore[attr-defined]
        assert (await other.get("/api/me", headers=headers)).status_code == 401


async def test_what_was_revoked_before_the_server_was_there_stays_revoked(tmp_path: Path) -> None:
    revoker = stores.MemoryRevoker()
    now = SystemClock().now()
    await revoker.revoke_user("ann", now + timedelta(hours=1), now + timedelta(hours=2))
    server = server_with(Parts({**in_memory(), "revoked": revoker}))
    async with client(server, database=f"sqlite:///{tmp_path}/one.db") as http:
        token = (await server.tokens.issue(AuthInfo(user_id="ann"))).access_token  # type: ignore[attr-defined]
        headers = {"authorization": f"Bearer {token}"}
        assert (await http.get("/api/me", headers=headers)).status_code == 401


async def test_processes_of_one_database_share_what_they_store(redis_url: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/one.db"
    async with one_prefix(redis_url) as prefix, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                client(server_with(Parts(in_redis(redis_url, prefix))), database=address)
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
