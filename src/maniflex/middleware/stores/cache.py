"""Bytes under keys, for a while: in the server's database, in Redis, or in this process."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from maniflex._callables import explain_class
from maniflex._clock import Clock
from maniflex.middleware.stores.form import CacheEntryRow, MemoryForm, OwnKey, RedisForm, SqlForm
from maniflex.middleware.stores.port import (
    Duration,
    StoreUnavailable,
    hash_key,
    length_of,
    nanoseconds,
    seconds_of,
)
from maniflex.model.field import size_in_bytes
from maniflex.sql.statement import statement_of

_ENTRY = 200  # bytes an entry takes besides its key and its value
_NO_NUMBER = "the value is not a number, so nothing can be added to it"


@explain_class
class SqlStore(SqlForm):
    """A cache in the table `cache_entry` of the server's database."""

    tables = (CacheEntryRow,)
    statements = "cache"

    async def get(self, key: str) -> bytes | None:
        row = await self._read("get", id=hash_key(key), now=self._now())
        if row is None:
            return None
        return b"%d" % row[1] if row[0] is None else bytes(row[0])

    async def set(self, key: str, value: bytes, ttl: Duration | None) -> None:
        await self._write("set", id=hash_key(key), value=value, until=self._end(ttl))

    async def delete(self, *keys: str) -> None:
        if not keys:
            return
        names = {f"key_{place}": hash_key(key) for place, key in enumerate(keys)}
        places = ", ".join(f":{name}" for name in names)
        adapter = self.adapter
        statement = statement_of(f"DELETE FROM cache_entry WHERE id IN ({places})", adapter.dialect)
        await self._write_sql(adapter, statement.bind(**names))

    async def increment(self, key: str, by: int = 1, ttl: Duration | None = None) -> int:
        rows = await self._write("increment", id=hash_key(key), by=by, until=self._end(ttl), now=self._now())
        if not rows:
            raise ValueError(_NO_NUMBER)
        return int(rows[0][0])

    def _end(self, ttl: Duration | None) -> int | None:
        return None if ttl is None else self._now() + length_of(ttl)


@explain_class
class RedisStore(RedisForm):
    """A cache in Redis; keys stand there as they are, below the prefix."""

    def __init__(
        self, client: Any = "redis://127.0.0.1:6379", prefix: str = "maniflex:cache", *, shared: bool = False
    ) -> None:
        super().__init__(client, prefix, shared=shared)

    async def get(self, key: str) -> bytes | None:
        value: bytes | None = await self._await((await self._ready()).get(self._name(key)))
        return value

    async def set(self, key: str, value: bytes, ttl: Duration | None) -> None:
        await self._await((await self._ready()).set(self._name(key), value, px=_milliseconds(ttl)))

    async def delete(self, *keys: str) -> None:
        if keys:
            await self._await((await self._ready()).delete(*map(self._name, keys)))

    async def increment(self, key: str, by: int = 1, ttl: Duration | None = None) -> int:
        try:
            return int(await self._run("increment", key, by, _milliseconds(ttl) or 0))
        except StoreUnavailable as error:
            if "not an integer" in str(error):
                raise ValueError(_NO_NUMBER) from None
            raise


def _milliseconds(ttl: Duration | None) -> int | None:
    return None if ttl is None else max(round(seconds_of(ttl) * 1000), 1)


@explain_class
class MemoryStore(MemoryForm):
    """A cache of this process; what was not asked for the longest time makes room."""

    def __init__(
        self, max_entries: int = 10_000, max_bytes: int | str = "64MB", *, clock: Clock | None = None
    ) -> None:
        super().__init__(clock=clock)
        self.mistakes = []
        if type(max_entries) is not int or max_entries < 1:
            self.mistakes.append(f"stores.MemoryStore: max_entries={max_entries!r} has room for nothing")
        size = size_in_bytes(max_bytes)
        if size is None:
            self.mistakes.append(f"stores.MemoryStore: max_bytes={max_bytes!r} is not a size such as 64MB")
        self._most_entries, self._most_bytes = max_entries, size or 0
        self._entries: OrderedDict[OwnKey, tuple[bytes | int, int | None]] = OrderedDict()
        self._bytes = 0

    async def get(self, key: str) -> bytes | None:
        value = self._live_value(self._key(key))
        return b"%d" % value if isinstance(value, int) else value

    async def set(self, key: str, value: bytes, ttl: Duration | None) -> None:
        self._keep(self._key(key), bytes(value), self._end(ttl))

    async def delete(self, *keys: str) -> None:
        for key in keys:
            self._drop(self._key(key))

    async def increment(self, key: str, by: int = 1, ttl: Duration | None = None) -> int:
        own_key = self._key(key)
        value = self._live_value(own_key)
        if isinstance(value, bytes):
            raise ValueError(_NO_NUMBER)
        end = self._end(ttl) if value is None else self._entries[own_key][1]
        number = (value or 0) + by
        self._keep(own_key, number, end)
        return number

    def forget_answers(self) -> None:
        """Drop everything: what was erased may be in it."""
        self._entries.clear()
        self._bytes = 0

    def _live_value(self, key: OwnKey) -> bytes | int | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, end = entry
        if end is not None and end <= nanoseconds(self._clock.now()):
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def _keep(self, key: OwnKey, value: bytes | int, end: int | None) -> None:
        self._drop(key)
        size = _size(key, value)
        if size > self._most_bytes:
            return
        while self._entries and (
            self._bytes + size > self._most_bytes or len(self._entries) >= self._most_entries
        ):
            self._drop(next(iter(self._entries)))
        self._entries[key] = value, end
        self._bytes += size

    def _drop(self, key: OwnKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry[0])

    def _end(self, ttl: Duration | None) -> int | None:
        return None if ttl is None else nanoseconds(self._clock.now()) + length_of(ttl)


def _size(key: OwnKey, value: bytes | int) -> int:
    return _ENTRY + len(key[1]) + (len(value) if isinstance(value, bytes) else 8)
