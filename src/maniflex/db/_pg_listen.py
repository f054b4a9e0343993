"""Hear what PostgreSQL notifies: one connection per adapter, outside the pool, for all who listen.

A lost connection is not an error but an outage: it is logged once, replaced with growing patience,
and everybody is woken when the next one listens, because something may have been missed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from maniflex._backoff import Backoff
from maniflex.db._pg_slot import notice_a_silent_server
from maniflex.db.port import Wake

if TYPE_CHECKING:
    from maniflex.db._pg_slot import Connection

RECONNECT = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=5))
ANSWER_WITHIN = 10.0
ASK_EVERY = 15.0  # a connection that only listens would not notice that its server fell silent
LONGEST_NAME = 63

log = logging.getLogger("maniflex.db")


class Listener:
    """Whom to wake for what; `settled` once the first attempt to listen has succeeded or failed."""

    __slots__ = ("channel", "name", "settled", "wake")

    def __init__(self, channel: str, wake: Wake) -> None:
        self.channel = channel
        self.name = ""  # on the server, where every schema has channels of its own
        self.wake = wake
        self.settled = asyncio.Event()


class Ear:
    """Keeps a connection that listens, for as long as somebody wants to hear."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        label: str,
        backoff: Backoff = RECONNECT,
        *,
        ask_every: float = ASK_EVERY,
        answer_within: float = ANSWER_WITHIN,
    ) -> None:
        self._connect = connect
        self._label = label
        self._backoff = backoff
        self._ask_every = ask_every
        self._answer_within = answer_within
        self._listeners: list[Listener] = []
        self._failures = 0
        self._changed = asyncio.Event()  # who listens, or whether the connection lives
        self._task: asyncio.Task[None] | None = None

    async def add(self, channel: str, wake: Wake) -> Listener:
        """Begin to listen; return when it is so, or when the database turned out to be away."""
        listener = Listener(channel, wake)
        self._listeners.append(listener)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening())
        try:
            await listener.settled.wait()
        except BaseException:
            await self.remove(listener)
            raise
        return listener

    async def remove(self, listener: Listener) -> None:
        with suppress(ValueError):  # `close` was faster
            self._listeners.remove(listener)
        self._changed.set()
        if not self._listeners:
            await self.close()

    async def close(self) -> None:
        task, self._task = self._task, None
        for listener in self._listeners:
            listener.settled.set()
        self._listeners.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _keep_listening(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._hear(connection)
                finally:
                    connection.terminate()
            except Exception as error:
                self._failures += 1
                if self._failures == 1:
                    log.warning("%s: no notifications until it can be reached again: %s", self._label, error)
            for listener in self._listeners:
                listener.settled.set()
            await asyncio.sleep(self._backoff(self._failures).total_seconds())

    async def _hear(self, connection: Connection) -> None:
        """Listen until the connection is lost, and raise then."""
        notice_a_silent_server(connection)
        connection.add_termination_listener(lambda _: self._changed.set())
        schema = await connection.fetchval("SELECT current_schema()", timeout=self._answer_within)
        woken: set[Listener] = set()
        names: set[str] = set()
        while not connection.is_closed():
            self._changed.clear()
            new = [listener for listener in self._listeners if listener not in woken]
            for listener in new:
                listener.name = f"{listener.channel}.{schema}"[:LONGEST_NAME]
            async with asyncio.timeout(self._answer_within):
                names = await self._attune(connection, names)
            self._failures = 0
            woken.update(new)
            self._wake(new)
            await self._until_changed(connection)
        raise ConnectionError("the connection was lost")

    async def _until_changed(self, connection: Connection) -> None:
        while not self._changed.is_set():
            try:
                async with asyncio.timeout(self._ask_every):
                    await self._changed.wait()
            except TimeoutError:
                await connection.fetchval("SELECT 1", timeout=self._answer_within)

    async def _attune(self, connection: Connection, names: set[str]) -> set[str]:
        """Listen to what is wanted now instead of `names`."""
        wanted = {listener.name for listener in self._listeners if listener.name}
        for name in wanted - names:
            await connection.add_listener(name, self._heard)
        for name in names - wanted:
            await connection.remove_listener(name, self._heard)
        return wanted

    def _heard(self, _: object, pid: int, name: str, payload: object) -> None:
        self._wake([listener for listener in self._listeners if listener.name == name])

    def _wake(self, listeners: Sequence[Listener]) -> None:
        for listener in listeners:
            listener.settled.set()
            try:
                listener.wake()
            except Exception:
                log.exception("%s: what a notification was to wake failed", self._label)
