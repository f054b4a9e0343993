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

from maniflex._clock import Backoff
from maniflex.db.port import Wake
from maniflex.db.postgres.connection import notice_a_silent_server

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection

RECONNECT = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=5))
ANSWER_WITHIN = 10.0
ASK_EVERY = 15.0  # a connection that only listens would not notice that its server fell silent
LONGEST_NAME = 63

log = logging.getLogger("maniflex.db")


class Subscription:
    """Whom to wake for what; `settled` once the first attempt to listen has succeeded or failed."""

    __slots__ = ("channel", "name", "settled", "wake")

    def __init__(self, channel: str, wake: Wake) -> None:
        self.channel = channel
        self.name = ""  # on the server, where every schema has channels of its own
        self.wake = wake
        self.settled = asyncio.Event()


class Listener:
    """Keeps a connection that listens, for as long as there are subscriptions."""

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
        self._subscriptions: list[Subscription] = []
        self._failures = 0
        self._is_left = False
        self._changed = asyncio.Event()  # who listens, or whether the connection lives
        self._task: asyncio.Task[None] | None = None

    async def add(self, channel: str, wake: Wake) -> Subscription:
        """Begin to listen; return when it is so, or when the database turned out to be away."""
        subscription = Subscription(channel, wake)
        self._subscriptions.append(subscription)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening())
        try:
            await subscription.settled.wait()
        except BaseException:
            await self.remove(subscription)
            raise
        return subscription

    async def remove(self, subscription: Subscription) -> None:
        with suppress(ValueError):  # `close` was faster
            self._subscriptions.remove(subscription)
        self._changed.set()
        if not self._subscriptions:
            await self.close()

    def reconnect(self) -> None:
        """Leave the connection there is: its server hangs."""
        self._is_left = True
        self._changed.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        for subscription in self._subscriptions:
            subscription.settled.set()
        self._subscriptions.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _keep_listening(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._listen(connection)
                finally:
                    connection.terminate()
            except Exception as error:
                self._failures += 1
                if self._failures == 1:
                    log.warning("%s: no notifications until it can be reached again: %s", self._label, error)
            for subscription in self._subscriptions:
                subscription.settled.set()
            await asyncio.sleep(self._backoff(self._failures).total_seconds())

    async def _listen(self, connection: Connection) -> None:
        """Listen until the connection is lost, and raise then."""
        notice_a_silent_server(connection)
        self._is_left = False
        connection.add_termination_listener(lambda _: self._changed.set())
        schema = await connection.fetchval("SELECT current_schema()", timeout=self._answer_within)
        woken: set[Subscription] = set()
        names: set[str] = set()
        while not (connection.is_closed() or self._is_left):
            self._changed.clear()
            new = [subscription for subscription in self._subscriptions if subscription not in woken]
            for subscription in new:
                subscription.name = f"{subscription.channel}.{schema}"[:LONGEST_NAME]
            async with asyncio.timeout(self._answer_within):
                names = await self._update_channels(connection, names)
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

    async def _update_channels(self, connection: Connection, names: set[str]) -> set[str]:
        """Listen to the subscribed channels instead of `names`; returns their names."""
        subscribed_names = {subscription.name for subscription in self._subscriptions if subscription.name}
        for name in subscribed_names - names:
            await connection.add_listener(name, self._on_notification)
        for name in names - subscribed_names:
            await connection.remove_listener(name, self._on_notification)
        return subscribed_names

    def _on_notification(self, _: object, pid: int, name: str, payload: object) -> None:
        self._wake([subscription for subscription in self._subscriptions if subscription.name == name])

    def _wake(self, listeners: Sequence[Subscription]) -> None:
        for subscription in listeners:
            subscription.settled.set()
            try:
                subscription.wake()
            except Exception:
                log.exception("%s: what a notification was to wake failed", self._label)
