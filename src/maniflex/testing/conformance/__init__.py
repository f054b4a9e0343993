"""The suites every adapter, backend, bus, queue of jobs, store, storage of files and key provider passes.

Subclass one in a test module and give it what it asks for; needs pytest with pytest-asyncio in auto mode.

    class TestMyAdapter(AdapterConformance):
        @pytest.fixture
        async def adapter(self) -> AsyncIterator[Adapter]:
            mine = MyAdapter(...)
            await mine.open()
            yield mine
            await mine.close()
"""

from __future__ import annotations

import pytest

# Before the parts are imported, so that their failures show the values that differed.
for _part in (
    "_backends",
    "_background",
    "_buses",
    "_case",
    "_constraints",
    "_job_workers",
    "_jobs",
    "_keys",
    "_statements",
    "_storage",
    "_stores_cache",
    "_stores_case",
    "_stores_idempotency",
    "_stores_limits",
    "_stores_revoker",
    "_streams",
    "_transactions",
):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from maniflex.testing.conformance._backends import Backends  # noqa: E402
from maniflex.testing.conformance._background import Batches, Listening, Siblings  # noqa: E402
from maniflex.testing.conformance._buses import (  # noqa: E402
    Delivering,
    Ending,
    FailingHandlers,
    Losing,
)
from maniflex.testing.conformance._case import sql  # noqa: E402
from maniflex.testing.conformance._job_workers import Failing, Working  # noqa: E402
from maniflex.testing.conformance._jobs import Grouping, Leasing, Producing  # noqa: E402
from maniflex.testing.conformance._keys import Digesting, Sealing  # noqa: E402
from maniflex.testing.conformance._statements import Constraints, Statements, Streams  # noqa: E402
from maniflex.testing.conformance._storage import FailingStores, Keeping, Reading, Refusing  # noqa: E402
from maniflex.testing.conformance._stores import Caching, Claiming, Limiting, Revoking  # noqa: E402
from maniflex.testing.conformance._transactions import Concurrency, Transactions  # noqa: E402


class AdapterConformance(
    Statements, Streams, Constraints, Transactions, Concurrency, Batches, Siblings, Listening
):
    """What an `Adapter` promises; override the `adapter` fixture with one open on an empty database."""


class JobQueueConformance(Producing, Leasing, Grouping, Working, Failing):
    """What a queue of jobs promises; override `queue`, `reopened` and, where need be, `pass_time`."""


class CacheStoreConformance(Caching):
    """What a `CacheStore` promises; override `store`, `twin` and, where need be, `pass_time`."""


class RateLimitConformance(Limiting):
    """What a `RateLimitBackend` promises; override `store` and `twin`."""


class IdempotencyConformance(Claiming):
    """What an `IdempotencyStore` promises; override `store` and `twin`."""


class RevokerConformance(Revoking):
    """What a `Revoker` promises; override `store` and `twin`."""


class StorageConformance(Keeping, Reading, FailingStores, Refusing):
    """What a `Storage` of files promises; override the `storage` fixture with an empty one."""


class KeyProviderConformance(Sealing, Digesting):
    """What a `KeyProvider` promises; override `provider`, and `key_id` and `other_key_id` where need be."""


class BusConformance(Delivering, FailingHandlers, Ending, Losing):
    """What a `Bus` promises; override `bus` and `twin`, and with a broker `recipe`, `put_raw` and `away`."""


class BackendConformance(Backends):
    """What a `Backend` promises; override `backend`, `values` and `field`."""


__all__ = [
    "AdapterConformance",
    "BackendConformance",
    "BusConformance",
    "CacheStoreConformance",
    "IdempotencyConformance",
    "JobQueueConformance",
    "KeyProviderConformance",
    "RateLimitConformance",
    "RevokerConformance",
    "StorageConformance",
    "sql",
]
