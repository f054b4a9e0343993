"""A cache that may fail: a miss, said once a minute."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from maniflex.middleware.stores.form import place_of
from maniflex.middleware.stores.port import CacheStore

T = TypeVar("T")
WITHIN = 3.0  # seconds for a call
_LOG_EVERY = 60.0
_REST = 1.0  # after a failure, in which nothing is asked


class CarefulStore:
    """Calls of a store that raise nothing; what could not be made invalid is remembered and tried again."""

    def __init__(self, store: CacheStore, name: str) -> None:
        self.store = store
        self._name = name
        self._unsaid: set[tuple[int, str]] = set()  # by the server that they are of
        self._logged_at = self._failed_at = -math.inf
        self._log = logging.getLogger("maniflex")

    async def get(self, key: str) -> bytes | None:
        return await self._attempt(self.store.get(key), None) if self._is_awake() else None

    async def set(self, key: str, value: bytes, ttl: float) -> bool:
        async def call() -> bool:
            await self.store.set(key, value, ttl)
            return True

        return await self._attempt(call(), False) if self._is_awake() else False

    async def delete(self, keys: Iterable[str]) -> bool:
        async def call() -> bool:
            await self.store.delete(*keys)
            return True

        return await self._attempt(call(), False)

    async def generation(self, key: str, ttl: float) -> str | None:
        """The current generation, a new one if there is none; None when the store fails."""
        if self._unsaid and (place_of(self.store), key) in self._unsaid and not await self.invalidate((key,)):
            return None
        generation = await self.get(key)
        if generation is not None:
            return generation.decode("latin-1")
        new = secrets.token_hex(8)
        return new if await self.set(key, new.encode(), ttl) else None

    async def invalidate(self, keys: Iterable[str]) -> bool:
        """End the generations, so that nothing which was stored under them is found again."""
        names, place = set(keys), place_of(self.store)
        unsaid = {(place, name) for name in names}
        self._unsaid |= unsaid
        if not await self.delete(sorted(names)):
            return False
        self._unsaid -= unsaid
        return True

    def _is_awake(self) -> bool:
        return time.monotonic() - self._failed_at >= _REST

    async def _attempt(self, call: Awaitable[T], otherwise: T) -> T:
        try:
            async with asyncio.timeout(WITHIN):
                return await call
        except Exception as error:
            now = time.monotonic()
            self._failed_at = now
            if now - self._logged_at >= _LOG_EVERY:
                self._logged_at = now
                self._log.warning("%s: the store failed, so nothing is cached: %s", self._name, error)
            return otherwise
