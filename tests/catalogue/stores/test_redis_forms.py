"""T5: what the Redis forms promise beyond their ports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis import asyncio as aioredis

from maniflex.middleware import stores
from maniflex.testing import FakeClock
from tests.catalogue.stores.places import forget
from tests.catalogue.stores.test_sql_forms import calls

FORMS = (stores.RedisStore, stores.RedisRateLimit, stores.RedisIdempotency, stores.RedisRevoker)


async def test_all_names_are_below_the_prefix_and_end(redis_url: str) -> None:
    prefix, clock = f"test_{uuid4().hex}", FakeClock()
    forms: list[Any] = [form(redis_url, prefix) for form in FORMS]
    redis = forms[0]._redis()
    forms[3]._default_clock = clock
    for call in calls(clock, *forms):
        await call()
    names = {name async for name in redis.scan_iter(f"*{prefix}*")}
    assert len(names) == 5
    assert all(name.startswith((f"{prefix}:".encode(), b"{%s}:" % prefix.encode())) for name in names)
    assert [name for name in names if await redis.pttl(name) < 0] == []
    for form in forms:
        await forget(form)


async def test_nobody_at_the_address_is_an_outage() -> None:
    clock = FakeClock()
    forms = [one("redis://127.0.0.1:1") for one in FORMS]
    for call in calls(clock, *forms):
        with pytest.raises(stores.StoreUnavailable):
            await call()
    for one in forms:
        await one.close()


async def test_a_connection_that_was_lost_is_made_again(redis_url: str) -> None:
    store = stores.RedisStore(redis_url, f"test_{uuid4().hex}")
    await store.set("key", b"1", 60)
    other = aioredis.Redis.from_url(redis_url)
    mine = await store._redis().client_id()
    await other.client_kill_filter(_id=str(mine))
    assert await store.get("key") == b"1"
    await other.aclose()
    await forget(store)


async def test_a_client_of_the_applications_own_is_used_and_not_closed(redis_url: str) -> None:
    redis = aioredis.Redis.from_url(redis_url)
    store = stores.RedisStore(redis, f"test_{uuid4().hex}")
    await store.set("key", b"1", timedelta(seconds=60))
    await store.close()
    assert await redis.get(f"{store.prefix}:key") == b"1"
    await forget(store)
    await redis.aclose()


def test_wrong_arguments_are_told() -> None:
    def mistakes(*arguments: Any) -> str:
        return " ".join(stores.RedisStore(*arguments).mistakes)

    assert mistakes("redis://host", "shop:cache") == ""
    assert "plain names" in mistakes("redis://host", "")
    assert "plain names" in mistakes("redis://host", "a b")
    assert "plain names" in mistakes("redis://host", "{a}")
    assert "written redis://host" in mistakes("memcached://host")
    assert "neither an address nor a client" in mistakes(object())
    decoding = aioredis.Redis.from_url("redis://host", decode_responses=True)
    assert "decode_responses" in mistakes(decoding)
