"""Handlers for a bus that is used without the feed: one that logs, and one that passes over what was handled.

A broker hands an event on again after a crash or a lost acknowledgement. `dedupe(handler, store)` calls the
handler once for each event: by `MemoryDedupe` within this process, or by `server.inbox`, where the event is
remembered in the transaction that the handler writes in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol

from maniflex._callables import label_of
from maniflex._logging import escape_breaks
from maniflex.errors import DeclarationError
from maniflex.events.base import check_count, seconds_of
from maniflex.events.consuming import call_handler
from maniflex.events.event import Event


def log_handler(logger: logging.Logger | None = None) -> Callable[[Event], Coroutine[Any, Any, None]]:
    """A handler that writes a line for each event: its type, id, subject and tenant, never its data."""
    target = logger or logging.getLogger("maniflex.events")

    async def log_event(event: Event) -> None:
        about = {"event_id": event.id, "subject": event.subject, "tenant_id": event.tenant_id}
        texts = {name: value for name, value in about.items() if value is not None}
        parts = [event.type, *(f"{name}={escape_breaks(value)}" for name, value in texts.items())]
        target.info("event %s", " ".join(parts), extra={"event_type": event.type, **texts})

    return log_event


class DedupeStore(Protocol):
    """Remembers which events a consumer has handled; `server.inbox` is one."""

    def claim(self, message_id: str, consumer: str) -> AbstractAsyncContextManager[bool]:
        """A block that handles the event if this gives True; an exception out of it forgets the claim."""


class MemoryDedupe:
    """Remembers up to `size` events for `ttl`, in this process; the oldest go first."""

    def __init__(self, size: int = 10_000, ttl: timedelta | float = timedelta(hours=24)) -> None:
        check_count("MemoryDedupe", "size", size)
        [self._ttl] = seconds_of("MemoryDedupe", ttl=ttl)
        self._size = size
        self._handled: OrderedDict[tuple[str, str], float] = OrderedDict()  # when each is forgotten
        self._claims: dict[tuple[str, str], asyncio.Future[None]] = {}

    @asynccontextmanager
    async def claim(self, message_id: str, consumer: str) -> AsyncIterator[bool]:
        """True for the first one; a second one at the same time waits for what becomes of the first."""
        key = (consumer, message_id)
        while (other := self._claims.get(key)) is not None:
            await asyncio.shield(other)
        if self._is_remembered(key):
            yield False
            return
        claim = self._claims[key] = asyncio.get_running_loop().create_future()
        try:
            yield True
            self._remember(key)
        finally:
            del self._claims[key]
            claim.set_result(None)

    def _is_remembered(self, key: tuple[str, str]) -> bool:
        return self._handled.get(key, 0.0) > time.monotonic()

    def _remember(self, key: tuple[str, str]) -> None:
        self._handled[key] = time.monotonic() + self._ttl
        self._handled.move_to_end(key)
        while len(self._handled) > self._size:
            self._handled.popitem(last=False)


def dedupe(
    handler: Any, store: Any, *, consumer: str | None = None
) -> Callable[[Event], Coroutine[Any, Any, None]]:
    """A handler that calls `handler` once for each (`source`, `id`); one that failed is called again.

    The store is a `DedupeStore`. `consumer` is whom it remembers the event for: without one, the function
    by its name.
    """
    problems = []
    if not callable(handler):
        problems.append(f"dedupe: {handler!r} is no function of an event")
    if not callable(getattr(store, "claim", None)):
        problems.append(f"dedupe: {store!r} is no store such as MemoryDedupe() or server.inbox")
    if problems:
        raise DeclarationError(*problems)
    name = consumer or label_of(handler)

    async def handle_once(event: Event) -> None:
        async with store.claim(f"{event.source} {event.id}", name) as is_first:
            if is_first:
                await call_handler(handler, event)

    return handle_once


__all__ = ["DedupeStore", "MemoryDedupe", "dedupe", "log_handler"]
