"""T3: the SQL, Redis and memory forms of every store keep the promises of their port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from maniflex.middleware import stores
from maniflex.testing import FakeClock
from maniflex.testing.conformance import (
    CacheStoreConformance,
    IdempotencyConformance,
    RateLimitConformance,
    RevokerConformance,
)
from tests.catalogue.stores.places import age, forget, in_sql


class InMemory:
    is_shared = False
    form: ClassVar[Any]

    @pytest.fixture
    async def store(self, clock: FakeClock, sqlite_url: str) -> Any:
        store = self.form()
        async with in_sql(sqlite_url, clock) as server:
            store.attach(server._seal().runtime.adapter, clock)
        return store


class InSql:
    form: ClassVar[Any]

    @pytest.fixture
    async def store(self, clock: FakeClock, database_url: str) -> AsyncIterator[Any]:
        store = self.form()
        async with in_sql(database_url, clock, store):
            yield store

    @pytest.fixture
    async def twin(self, store: Any, clock: FakeClock, database_url: str) -> AsyncIterator[Any]:
        twin = self.form()
        async with in_sql(database_url, clock, twin):
            yield twin


class InRedis:
    form: ClassVar[Any]

    @pytest.fixture
    async def store(self, clock: FakeClock, redis_url: str) -> AsyncIterator[Any]:
        store = self.form(redis_url, f"test_{uuid4().hex}")
        assert store.mistakes == []
        if hasattr(store, "_default_clock"):
            store._default_clock = clock
        yield store
        await forget(store)

    @pytest.fixture
    async def twin(self, store: Any, clock: FakeClock, redis_url: str) -> AsyncIterator[Any]:
        twin = self.form(redis_url, store.prefix)
        if hasattr(twin, "_default_clock"):
            twin._default_clock = clock
        yield twin
        await twin.close()


class TestMemoryStore(InMemory, CacheStoreConformance):
    form = stores.MemoryStore


class TestSqlStore(InSql, CacheStoreConformance):
    form = stores.SqlStore


class TestRedisStore(InRedis, CacheStoreConformance):
    form = stores.RedisStore

    async def pass_time(self, store: Any, clock: FakeClock, delta: timedelta) -> None:
        await age(store, delta)


class TestMemoryRateLimit(InMemory, RateLimitConformance):
    form = stores.MemoryRateLimit


class TestSqlRateLimit(InSql, RateLimitConformance):
    form = stores.SqlRateLimit


class TestRedisRateLimit(InRedis, RateLimitConformance):
    form = stores.RedisRateLimit


class TestMemoryIdempotency(InMemory, IdempotencyConformance):
    form = stores.MemoryIdempotency


class TestSqlIdempotency(InSql, IdempotencyConformance):
    form = stores.SqlIdempotency


class TestRedisIdempotency(InRedis, IdempotencyConformance):
    form = stores.RedisIdempotency


class TestMemoryRevoker(InMemory, RevokerConformance):
    form = stores.MemoryRevoker


class TestSqlRevoker(InSql, RevokerConformance):
    form = stores.SqlRevoker


class TestRedisRevoker(InRedis, RevokerConformance):
    form = stores.RedisRevoker
