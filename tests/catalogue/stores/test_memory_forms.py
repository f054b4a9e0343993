"""T2: a cache of the process is bounded."""

from __future__ import annotations

from datetime import timedelta

from maniflex.middleware import stores
from maniflex.testing import FakeClock


async def test_what_was_not_asked_for_the_longest_time_makes_room() -> None:
    store = stores.MemoryStore(max_entries=3)
    for key in ("a", "b", "c"):
        await store.set(key, key.encode(), 60)
    await store.get("a")
    await store.set("d", b"d", 60)
    assert [await store.get(key) for key in ("a", "b", "c", "d")] == [b"a", None, b"c", b"d"]


async def test_many_bytes_make_room_and_one_value_that_is_too_large_is_not_kept() -> None:
    store = stores.MemoryStore(max_bytes="10KB")
    for number in range(20):
        await store.set(f"{number}", b"x" * 2000, 60)
    kept = [number for number in range(20) if await store.get(f"{number}") is not None]
    assert kept == [16, 17, 18, 19]
    await store.set("19", b"x" * 20_000, 60)
    assert await store.get("19") is None
    assert await store.get("18") is not None


async def test_time_is_that_of_its_clock() -> None:
    clock = FakeClock()
    store = stores.MemoryStore(clock=clock)
    await store.set("key", b"1", 60)
    clock.advance(timedelta(seconds=59))
    assert await store.get("key") == b"1"
    clock.advance(timedelta(seconds=2))
    assert await store.get("key") is None


async def test_full_buckets_are_forgotten() -> None:
    from maniflex.middleware.stores import rate_limits

    clock, limits = FakeClock(), stores.MemoryRateLimit()
    for number in range(rate_limits._MOST_BUCKETS + 10):
        await limits.take(f"{number}", 5, 60, 1, clock.now())
    assert len(limits._full_at) == rate_limits._MOST_BUCKETS
    clock.advance(timedelta(minutes=2))
    await limits.take("new", 5, 60, 1, clock.now())
    assert len(limits._full_at) == 1


def test_wrong_sizes_are_told() -> None:
    assert stores.MemoryStore().mistakes == []
    assert "max_entries" in stores.MemoryStore(0).mistakes[0]
    assert "max_bytes" in stores.MemoryStore(max_bytes="lots").mistakes[0]
