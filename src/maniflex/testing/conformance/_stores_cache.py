"""What a `CacheStore` promises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex.testing.clock import FakeClock
from maniflex.testing.conformance._stores_case import MINUTE, SECOND, StoreCase

ODD_KEYS = ("", "a b", "ключ", "x" * 5000, "a:b", "a\x00b", "\ud800")
ODD_VALUES = (b"", b"\x00\xff\x00", b"12", b"null", bytes(range(256)) * 400)


class Caching(StoreCase):
    """Values and numbers under keys."""

    @pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: f"{len(value)} bytes")
    async def test_the_same_bytes_come_out(self, store: Any, twin: Any, value: bytes) -> None:
        await store.set("key", value, MINUTE)
        assert await twin.get("key") == value

    async def test_keys_of_any_kind_are_told_apart(self, store: Any) -> None:
        for place, key in enumerate(ODD_KEYS):
            await store.set(key, b"%d" % place, MINUTE)
        values = [await store.get(key) for key in ODD_KEYS]
        assert values == [b"%d" % place for place in range(len(ODD_KEYS))]

    async def test_an_unknown_key_is_a_miss(self, store: Any) -> None:
        assert await store.get("nothing") is None
        await store.delete("nothing", "nothing else")
        await store.delete()

    async def test_a_value_is_replaced(self, store: Any, twin: Any) -> None:
        await store.set("key", b"old", MINUTE)
        await twin.set("key", b"new", None)
        assert await store.get("key") == b"new"

    async def test_a_value_ends_with_its_time(self, store: Any, clock: FakeClock) -> None:
        await store.set("short", b"1", MINUTE)
        await store.set("long", b"2", 120)
        await store.set("kept", b"3", None)
        await self.pass_time(store, clock, MINUTE + SECOND)
        assert [await store.get(key) for key in ("short", "long", "kept")] == [None, b"2", b"3"]

    async def test_a_value_that_is_set_again_begins_anew(self, store: Any, clock: FakeClock) -> None:
        await store.set("key", b"1", MINUTE)
        await self.pass_time(store, clock, MINUTE / 2)
        await store.set("key", b"2", MINUTE)
        await self.pass_time(store, clock, MINUTE * 0.75)
        assert await store.get("key") == b"2"

    async def test_deleted_keys_are_gone_and_others_stay(self, store: Any, twin: Any) -> None:
        for key in ("a", "b", "c"):
            await store.set(key, b"1", MINUTE)
        await twin.delete("a", "c", "unknown")
        assert [await store.get(key) for key in ("a", "b", "c")] == [None, b"1", None]

    async def test_a_number_begins_at_nothing_and_is_readable(self, store: Any) -> None:
        assert await store.increment("count") == 1
        assert await store.increment("count", 5) == 6
        assert await store.increment("count", -10) == -4
        assert await store.get("count") == b"-4"

    async def test_a_number_keeps_the_end_it_got_first(self, store: Any, clock: FakeClock) -> None:
        await store.increment("count", 1, MINUTE)
        await self.pass_time(store, clock, MINUTE / 2)
        assert await store.increment("count", 1, MINUTE) == 2
        await self.pass_time(store, clock, MINUTE / 2 + SECOND)
        assert await store.get("count") is None
        assert await store.increment("count", 1, MINUTE) == 1

    async def test_a_value_that_is_no_number_takes_no_addition(self, store: Any) -> None:
        await store.set("key", b"words", MINUTE)
        with pytest.raises(ValueError, match="number"):
            await store.increment("key")
        assert await store.get("key") == b"words"

    async def test_an_ended_value_is_no_hindrance_to_a_number(self, store: Any, clock: FakeClock) -> None:
        await store.set("key", b"words", MINUTE)
        await self.pass_time(store, clock, MINUTE + SECOND)
        assert await store.increment("key", 3) == 3

    async def test_additions_at_once_all_count(self, store: Any, twin: Any) -> None:
        numbers = await asyncio.gather(*(one.increment("count") for _ in range(50) for one in (store, twin)))
        assert sorted(numbers) == list(range(1, 101))
