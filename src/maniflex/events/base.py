"""What all buses of this package stand on: checked subscriptions, publishes under way, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from maniflex._fence import describe
from maniflex.errors import DeclarationError, Unavailable
from maniflex.events.consuming import DRAIN, Consumer, log
from maniflex.events.event import Event
from maniflex.events.port import (
    Disconnected,
    EventHandler,
    Handle,
    Pause,
    Start,
    SubscriptionPlan,
    read_subscription,
)


class BaseBus:
    """A bus; a broker's says how events are sent and how a subscription is served."""

    ordered = False
    patience = DRAIN  # how long `close` awaits handlers

    def __init__(self, on_disconnected: Disconnected | None = None) -> None:
        if on_disconnected is not None and not callable(on_disconnected):
            raise DeclarationError(f"on_disconnected={on_disconnected!r} is no function of (group, error)")
        self.on_disconnected = on_disconnected
        self._consumers: set[Consumer] = set()
        self._is_closed = False
        self._sending = 0
        self._sent = asyncio.Event()

    # -- what a broker says

    async def connect(self) -> None:
        """Reach the broker, and make what all subscriptions need; nothing where that is done."""
        raise NotImplementedError

    async def send(self, events: Sequence[Event]) -> None:
        """Return when the broker has taken responsibility for all of them."""
        raise NotImplementedError

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        """What serves such a subscription."""
        raise NotImplementedError

    async def remove(self, plan: SubscriptionPlan) -> None:
        """Remove what the broker keeps for such a subscription."""
        raise NotImplementedError

    async def hang_up(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    # -- what users call

    async def open(self) -> None:
        """Reach the broker; the first use does it too."""
        self._is_closed = False
        await self.connect()

    async def close(self) -> None:
        """Take nothing more, wait for handlers and publishes, and say what had to be left."""
        self._is_closed = True
        await asyncio.gather(*(consumer.stop(self.patience) for consumer in list(self._consumers)))
        if self._sending:
            self._sent.clear()
            try:
                async with asyncio.timeout(self.patience.total_seconds()):
                    await self._sent.wait()
            except TimeoutError:
                log.warning("%r is closed while %d publishes are under way", self, self._sending)
        await self.hang_up()

    async def publish(self, event: Event) -> None:
        """Return when the broker has taken responsibility; `Unavailable` or `Timeout` where it has not."""
        await self.publish_many((event,))

    async def publish_many(self, events: Sequence[Event]) -> None:
        """The same for several, in this order; after an error some of them may have been published."""
        if self._is_closed:
            raise Unavailable("the bus is closed")
        self._sending += 1
        try:
            await self.send(list(events))
        finally:
            self._sending -= 1
            if not self._sending:
                self._sent.set()

    async def send_letter(self, event: Event) -> None:
        """Publish a dead letter, also while the bus closes."""
        await self.send((event,))

    async def subscribe(
        self,
        *patterns: str,
        handler: EventHandler,
        group: str = "default",
        concurrency: int = 1,
        max_retry: int = 3,
        backoff: Pause | None = None,
        dead_letter: str | None = None,
        start: Start = "now",
    ) -> Handle:
        """Hand the events of these patterns to the handler; what is published from now on is among them."""
        plan = read_subscription(
            patterns,
            handler=handler,
            group=group,
            concurrency=concurrency,
            max_retry=max_retry,
            backoff=backoff,
            dead_letter=dead_letter,
            start=start,
        )
        if self._is_closed:
            raise Unavailable("the bus is closed")
        await self.connect()
        consumer = self.consumer(plan)
        consumer.on_stopped = lambda: self._consumers.discard(consumer)
        consumer.on_disconnected = self._tell_disconnected
        consumer.patience = self.patience
        await consumer.start()
        self._consumers.add(consumer)
        return consumer

    def _tell_disconnected(self, group: str, error: BaseException) -> Any:
        return None if self.on_disconnected is None else self.on_disconnected(group, error)

    async def forget(self, group: str, *patterns: str) -> None:
        """Remove what is kept for the subscription of the group to these patterns."""
        plan = read_subscription(patterns, handler=_nobody, group=group)
        await self.connect()
        await self.remove(plan)


async def _nobody(event: Event) -> None:
    """Stands where no handler is called."""


# What constructors of brokers share.


def seconds_of(owner: str, **durations: Any) -> list[float]:
    """Durations in seconds, each a timedelta or a number above zero; `DeclarationError` names the others."""
    seconds, problems = [], []
    for name, value in durations.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        length = value.total_seconds() if isinstance(value, timedelta) else value if is_number else 0
        if not 0 < length < float("inf"):
            problems.append(f"{owner}: {name}={value!r} is no timedelta and no number of seconds above zero")
        seconds.append(float(length))
    if problems:
        raise DeclarationError(*problems)
    return seconds


def check_count(owner: str, name: str, value: Any) -> None:
    """`DeclarationError` unless it is a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DeclarationError(f"{owner}: {name}={value!r} is no whole number from 1 on")


def check_scheme(owner: str, url: str, *schemes: str) -> None:
    """`DeclarationError` unless the URL has one of these schemes; it may hold a password, and is not told."""
    if not url.startswith(schemes):
        raise DeclarationError(f"{owner}: a URL begins with {' or '.join(schemes)}")


def hide_password(url: str) -> str:
    """The address without who signs in and what else it may say, for logs and `repr`."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.scheme or "?"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


class Secrets:
    """The credentials in the addresses of a bus, which no text of ours may show."""

    def __init__(self, *urls: str) -> None:
        words = set()
        for url in urls:
            login = urlsplit(url).netloc.rpartition("@")[0]
            user, _, password = login.partition(":")
            # A login without a password may be a token; a name beside a password is no secret.
            words |= {password, unquote(password)} if password else {user, unquote(user)}
        self._words = sorted((word for word in words if len(word) > 3), key=len, reverse=True)

    def clean(self, error: BaseException) -> str:
        """What an error says, without them."""
        text = describe(error)
        for word in self._words:
            text = text.replace(word, "***")
        return text
