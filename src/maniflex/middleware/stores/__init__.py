"""Where budgets, caches, idempotency keys and revocations are kept: in SQL, in Redis or in memory."""

from maniflex.middleware.stores.cache import MemoryStore, RedisStore, SqlStore
from maniflex.middleware.stores.idempotency import MemoryIdempotency, RedisIdempotency, SqlIdempotency
from maniflex.middleware.stores.port import (
    CacheStore,
    ClaimState,
    IdempotencyStore,
    KeyClaim,
    RateLimitBackend,
    Revocation,
    Revoker,
    StoreUnavailable,
    Taken,
)
from maniflex.middleware.stores.rate_limits import MemoryRateLimit, RedisRateLimit, SqlRateLimit
from maniflex.middleware.stores.revoker import MemoryRevoker, RedisRevoker, SqlRevoker

__all__ = [
    "CacheStore",
    "ClaimState",
    "IdempotencyStore",
    "KeyClaim",
    "MemoryIdempotency",
    "MemoryRateLimit",
    "MemoryRevoker",
    "MemoryStore",
    "RateLimitBackend",
    "RedisIdempotency",
    "RedisRateLimit",
    "RedisRevoker",
    "RedisStore",
    "Revocation",
    "Revoker",
    "SqlIdempotency",
    "SqlRateLimit",
    "SqlRevoker",
    "SqlStore",
    "StoreUnavailable",
    "Taken",
]
