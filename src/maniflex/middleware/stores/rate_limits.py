"""Token buckets: in the server's database, in Redis, or in this process.

A bucket is kept as the moment at which it will be full. Each token has a price in time, its share of the
window; taking one moves that moment on, and a bucket that would be full later than a whole window from now
is empty. So a bucket is one number, and a full one needs no row at all.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from maniflex._callables import explain_class
from maniflex.middleware.stores.form import MemoryForm, OwnKey, RateLimitRow, RedisForm, SqlForm
from maniflex.middleware.stores.port import (
    SECOND,
    Duration,
    Taken,
    hash_key,
    length_of,
    nanoseconds,
    seconds_of,
)

_ROUNDED = 600 * SECOND  # rows are swept up to ten minutes late, and their index changes as seldom
_MOST_BUCKETS = 100_000  # of one process


@explain_class
class SqlRateLimit(SqlForm):
    """Buckets in the table `rate_limit` of the server's database, shared by all its processes."""

    tables = (RateLimitRow,)
    statements = "rate_limit"

    async def take(self, key: str, limit: int, window: Duration, cost: int, now: datetime) -> Taken:
        length, moment = length_of(window), nanoseconds(now)
        price = length // limit * cost
        if cost > limit:
            return _never(window)
        latest = moment + length
        [[full_at, is_granted]] = await self._write(
            "take",
            id=hash_key(key),
            now=moment,
            price=price,
            full=moment + price,
            latest=latest,
            absurd=latest + length,
            kept=-(-latest // _ROUNDED) * _ROUNDED,
        )
        return _answer_of(bool(is_granted), full_at, moment, length, limit, cost)


@explain_class
class RedisRateLimit(RedisForm):
    """Buckets in Redis."""

    def __init__(
        self, client: Any = "redis://127.0.0.1:6379", prefix: str = "maniflex:limits", *, shared: bool = False
    ) -> None:
        super().__init__(client, prefix, shared=shared)

    async def take(self, key: str, limit: int, window: Duration, cost: int, now: datetime) -> Taken:
        if cost > limit:
            return _never(window)
        seconds, moment = seconds_of(window), nanoseconds(now) // 1000
        arguments = (limit, seconds * 1e6, cost, moment)
        is_granted, tokens, at = await self._run("take", f"bucket:{hash_key(key)}", *arguments)
        rest = float(tokens)
        if is_granted:
            return Taken(True, int(rest + 1e-6), 0.0)
        wait = (cost - rest) * seconds / limit + (int(at) - moment) / 1e6
        return Taken(False, int(rest + 1e-6), max(wait, 0.0))


@explain_class
class MemoryRateLimit(MemoryForm):
    """Buckets of this process alone; a restart fills them."""

    def __init__(self) -> None:
        super().__init__()
        self._full_at: dict[OwnKey, int] = {}

    async def take(self, key: str, limit: int, window: Duration, cost: int, now: datetime) -> Taken:
        if cost > limit:
            return _never(window)
        length, moment = length_of(window), nanoseconds(now)
        price = length // limit * cost
        bucket = self._key(key)
        full_at = self._full_at.get(bucket, moment)
        if full_at <= moment or full_at > moment + 2 * length:
            full_at = moment
        is_granted = full_at + price <= moment + length
        if is_granted:
            if len(self._full_at) >= _MOST_BUCKETS:
                self._forget_full(moment)
            full_at += price
            self._full_at[bucket] = full_at
        return _answer_of(is_granted, full_at, moment, length, limit, cost)

    def _forget_full(self, moment: int) -> None:
        """Drop the buckets that are full, or the oldest where none is."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > moment}
        for key in list(self._full_at)[: len(self._full_at) - _MOST_BUCKETS + 1]:
            del self._full_at[key]


def _answer_of(is_granted: bool, full_at: int, moment: int, length: int, limit: int, cost: int) -> Taken:
    token = length // limit
    rest = max(length - (full_at - moment), 0)
    wait = 0 if is_granted else max(full_at + token * cost - moment - length, 0)
    return Taken(is_granted, min(rest // token, limit), wait / SECOND)


def _never(window: Duration) -> Taken:
    """The answer to a request for more than a full bucket has."""
    return Taken(False, 0, seconds_of(window))
