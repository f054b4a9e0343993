"""Events by a topic exchange of RabbitMQ, a quorum queue for each subscription; needs `maniflex[rabbitmq]`.

The routing key is the type, the attributes are application properties (`cloudEvents_…`), the body the data. A
publish is good when the broker has confirmed it. Connections that break are made again here, with everything
on them: the client's own robust connections are not used, because they hide that, and forget consumers.
Retries happen while the message is unacknowledged. RabbitMQ keeps no log: who subscribes gets what comes from
then on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from maniflex._fence import Fence
from maniflex.errors import DeclarationError, Timeout, Unavailable
from maniflex.events import cloudevents
from maniflex.events.base import BaseBus, Secrets, check_count, check_scheme, hide_password, seconds_of
from maniflex.events.consuming import (
    FINISHING_ENDS_WITHIN,
    MOST_REMEMBERED,
    SPARE_DELIVERIES,
    Consumer,
    Gone,
    TakenMessage,
)
from maniflex.events.event import Event
from maniflex.events.port import Disconnected, SubscriptionPlan

try:
    import aio_pika
    from aiormq.exceptions import AMQPError, ChannelPreconditionFailed
    from yarl import URL
except ImportError as missing:
    raise DeclarationError(
        "RabbitBus needs the aio-pika package: pip install 'maniflex[rabbitmq]'"
    ) from missing

AT_ONCE = 200  # publishes on their way to the broker
WAIT = 0.4  # seconds that a take waits for messages
LOOK_EVERY = 2.0  # seconds without messages until a consumer looks whether its queue is there
HEARTBEAT = 10  # seconds; a connection that falls silent is given up after two of them
UNHEARD_FOR = 3.0 * HEARTBEAT  # seconds in which a break of a connection is noticed
DELIVERY_LIMIT = 20  # returns of a message after which the broker drops it
LONGEST_RETRIES = timedelta(minutes=25)  # the broker takes a message away that is unacknowledged for 30
_ARGUMENTS = {"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT}


class RabbitBus(BaseBus):
    """Events by an exchange; one connection publishes, another one consumes."""

    def __init__(
        self,
        url: str = "amqp://guest:guest@127.0.0.1:5672/",
        *,
        exchange: str = "maniflex.events",
        confirm_timeout: timedelta | float = timedelta(seconds=5),
        prefetch: int | None = None,
        on_disconnected: Disconnected | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(on_disconnected)
        check_scheme("RabbitBus", url, "amqp://", "amqps://")
        [self.timeout] = seconds_of("RabbitBus", confirm_timeout=confirm_timeout)
        if prefetch is not None:
            check_count("RabbitBus", "prefetch", prefetch)
        self.exchange = exchange
        self.prefetch = prefetch
        self._url = url
        self._ssl_context = ssl_context
        self._secrets = Secrets(url)
        self._publishing = _Line(self)
        self.consuming = _Line(self)

    def __repr__(self) -> str:
        return f"RabbitBus({hide_password(self._url)!r}, exchange={self.exchange!r})"

    def queue_of(self, plan: SubscriptionPlan) -> str:
        """The name of the queue of a subscription: `maniflex.billing-1f2e3d4c`."""
        return f"{self.exchange.removesuffix('.events')}.{plan.id}"

    # -- for BaseBus

    async def connect(self) -> None:
        await self._publishing.exchange()

    async def hang_up(self) -> None:
        await asyncio.gather(self._publishing.close(), self.consuming.close())

    async def send(self, events: Sequence[Event]) -> None:
        messages = [message_of(event) for event in events]
        exchange = await self._publishing.exchange()
        for start in range(0, len(events), AT_ONCE):
            batch = zip(events[start : start + AT_ONCE], messages[start : start + AT_ONCE], strict=True)
            try:
                async with self.translating():
                    await _all(
                        exchange.publish(message, event.type, mandatory=False) for event, message in batch
                    )
            except Timeout:
                await self._publishing.close()  # or a late confirmation would be taken for another's
                raise

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        check_pauses(plan)
        return _RabbitConsumer(plan, self)

    async def remove(self, plan: SubscriptionPlan) -> None:
        connection = await self.consuming.connection()
        async with self.translating(), connection.channel() as channel:
            await channel.queue_delete(self.queue_of(plan))

    # -- for its lines and consumers

    async def dial(self) -> Any:
        """A connection; publishing and consuming have the same address, credentials and TLS."""
        url = URL(self._url)
        if "heartbeat" not in url.query:
            url = url.update_query(heartbeat=HEARTBEAT)
        async with self.translating():
            return await aio_pika.connect(url, ssl_context=self._ssl_context, timeout=self.timeout)

    async def declare(self, channel: Any) -> Any:
        """The exchange, made where it is not there."""
        try:
            return await channel.declare_exchange(self.exchange, aio_pika.ExchangeType.TOPIC, durable=True)
        except ChannelPreconditionFailed:
            raise DeclarationError(
                f"RabbitBus: the exchange {self.exchange!r} is there already and is no durable topic"
                " exchange; use another exchange="
            ) from None

    @asynccontextmanager
    async def translating(self) -> AsyncIterator[None]:
        """A block that asks RabbitMQ, no longer than the timeout; failures are `Unavailable` or `Timeout`."""
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self.timeout):
                yield
        except TimeoutError:
            raise Timeout("RabbitMQ took too long") from None
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            # The client cancels those who wait when a connection breaks.
            raise Unavailable("the connection to RabbitMQ broke") from None
        except (AMQPError, OSError, RuntimeError) as error:
            raise Unavailable(f"RabbitMQ cannot be used right now: {self._secrets.clean(error)}") from None


async def _all(calls: Any) -> None:
    """Wait for all of them, and raise the first failure."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def message_of(event: Event) -> Any:
    """The event as a persistent message."""
    headers, body = cloudevents.binary(event, cloudevents.AMQP)
    content_type = headers.pop("content-type")
    return aio_pika.Message(
        body,
        headers=dict(headers),
        content_type=content_type,
        message_id=event.id,
        type=event.type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


def check_pauses(plan: SubscriptionPlan) -> None:
    """Refuse retries that would outlast what the broker waits for an acknowledgement."""
    whole = timedelta()
    for attempt in range(1, plan.max_retry + 1):
        fence = Fence()
        try:
            whole += plan.pause(attempt)
        except BaseException as error:  # told when it is needed
            fence.absorb(error)
            return
        if whole > LONGEST_RETRIES:
            raise DeclarationError(
                f"subscribe: the pauses between {plan.max_retry + 1} attempts are together longer than"
                f" {LONGEST_RETRIES}, and RabbitMQ takes a message away that is not acknowledged for half an"
                " hour; use fewer or shorter ones, or a group of the feed"
            )


def binding_of(pattern: str) -> str:
    """A pattern as a binding, which may let too much through: `#` is any number of words.

    >>> binding_of("order.*"), binding_of("*.created"), binding_of("ord*.made"), binding_of("*")
    ('order.#', '#.created', '#.made', '#')
    """
    words: list[str] = []
    for word in pattern.split("."):
        word = "#" if "*" in word else word
        if word != "#" or words[-1:] != ["#"]:
            words.append(word)
    return ".".join(words)


class _Line:
    """One connection, made again when it is needed."""

    def __init__(self, bus: RabbitBus) -> None:
        self._bus = bus
        self._connection: Any = None
        self._exchange: Any = None
        self._channel: Any = None
        self._making = asyncio.Lock()

    async def connection(self) -> Any:
        async with self._making:
            return await self._open()

    async def _open(self) -> Any:
        if self._connection is None or self._connection.is_closed or not self._connection.connected.is_set():
            await self._drop()
            self._connection = await self._bus.dial()
        return self._connection

    async def exchange(self) -> Any:
        """The exchange, on a channel that confirms publishes."""
        async with self._making:
            connection = await self._open()
            if self._channel is None or self._channel.is_closed:
                async with self._bus.translating():
                    channel = await connection.channel(publisher_confirms=True)
                    self._exchange = await self._bus.declare(channel)
                self._channel = channel
            return self._exchange

    async def close(self) -> None:
        async with self._making:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(1):
                    await connection.close()


class _RabbitConsumer(Consumer):
    def __init__(self, plan: SubscriptionPlan, bus: RabbitBus) -> None:
        super().__init__(plan, bus.send_letter)
        self._bus = bus
        self._channel: Any = None
        self._queue: Any = None
        self._tag: Any = None
        self._incoming: asyncio.Queue[_RabbitMessage | None] = asyncio.Queue()
        self._is_lost = True
        self._looked_at = 0.0
        # Messages that were with us when our own connection broke: that was no attempt.
        self._excused: OrderedDict[Hashable, int] = OrderedDict()
        self._said: deque[tuple[float, Hashable]] = deque()  # acknowledged just now

    async def prepare(self) -> None:
        connection = await self._bus.consuming.connection()
        try:
            await self._declare_and_consume(connection)
        except BaseException:
            await self._close_channel()
            raise
        self._looked_at = asyncio.get_running_loop().time()

    async def _declare_and_consume(self, connection: Any) -> None:
        async with self._bus.translating():
            channel = self._channel = await connection.channel(publisher_confirms=False)
            await channel.set_qos(max(self.plan.concurrency, self._bus.prefetch or 0))
            exchange = await self._bus.declare(channel)
            name = self._bus.queue_of(self.plan)
            try:
                self._queue = await channel.declare_queue(name, durable=True, arguments=_ARGUMENTS)
            except ChannelPreconditionFailed as error:
                raise DeclarationError(
                    f"RabbitBus: the queue {name!r} is there already with other arguments"
                    f" ({self._bus._secrets.clean(error)}); delete it, or use another group"
                ) from None
            for key in dict.fromkeys(map(binding_of, self.plan.patterns)):
                await self._queue.bind(exchange, key)
            incoming: asyncio.Queue[_RabbitMessage | None] = asyncio.Queue()
            self._incoming = incoming
            self._is_lost = False
            channel.close_callbacks.add(partial(self._note_loss, channel))
            self._tag = await self._queue.consume(partial(self._receive, incoming))

    async def _receive(self, incoming: asyncio.Queue[_RabbitMessage | None], message: Any) -> None:
        incoming.put_nowait(_RabbitMessage(self, message))

    def _note_loss(self, channel: Any, *about: Any) -> None:
        if channel is not self._channel or self._is_lost:
            return
        self._is_lost = True
        messages = [message for message in _drain(self._incoming) if message is not None]
        for message in [*messages, *self._hands.values()]:
            self._excused[message.identity] = self._excused.get(message.identity, 0) + 1
        while len(self._excused) > MOST_REMEMBERED:
            self._excused.popitem(last=False)
        for _, identity in self._said:
            self.remember(identity)
        self._said.clear()
        self._incoming.put_nowait(None)  # wakes the take

    def excuse(self, identity: Hashable, count: int) -> int:
        """How many attempts a message has behind it that the broker has returned so often."""
        return max(count - self._excused.get(identity, 0), 0)

    @property
    def channel(self) -> Any:
        """The channel that messages come by; None while there is none."""
        return None if self._is_lost else self._channel

    def note_acknowledged(self, identity: Hashable) -> None:
        """It was said, and may not have been heard if the connection breaks now."""
        now = asyncio.get_running_loop().time()
        self._said.append((now, identity))
        while self._said[0][0] < now - UNHEARD_FOR:
            self._said.popleft()

    async def take(self, room: int) -> Sequence[TakenMessage]:
        if self._is_lost:
            await self.prepare()
        messages: list[TakenMessage] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT):
                first = await self._incoming.get()
                if first is not None:
                    messages.append(first)
        while len(messages) < room and not self._incoming.empty():
            another = self._incoming.get_nowait()
            if another is not None:
                messages.append(another)
        if self._stopping.is_set():
            return messages
        if self._is_lost:
            raise Unavailable("the connection to RabbitMQ is lost")
        if not messages:
            await self._look()
        return messages

    async def _look(self) -> None:
        """Whether the queue is there and we are its consumer: nobody tells of a queue that is deleted."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        try:
            async with self._bus.translating():
                name = self._bus.queue_of(self.plan)
                queue = await self._channel.declare_queue(name, passive=True)
            if not queue.declaration_result.consumer_count:
                raise Unavailable("RabbitMQ has deleted the queue")
        except (Unavailable, Timeout):
            # A call that was given up has closed the channel, and nobody tells of that either.
            self._note_loss(self._channel)
            await self._close_channel()
            raise

    async def stop_taking(self) -> None:
        self._incoming.put_nowait(None)
        if not self._is_lost:
            await self._queue.cancel(self._tag)
        for message in _drain(self._incoming):
            if message is not None:
                await message.hand_back(is_begun=False)
        self._incoming.put_nowait(None)

    async def finish(self) -> None:
        await self._close_channel()

    async def _close_channel(self) -> None:
        self._is_lost = True
        if self._channel is not None:
            with suppress(Exception):
                async with asyncio.timeout(FINISHING_ENDS_WITHIN):
                    await self._channel.close()


def _drain(queue: asyncio.Queue[_RabbitMessage | None]) -> list[_RabbitMessage | None]:
    messages = []
    while not queue.empty():
        messages.append(queue.get_nowait())
    return messages


class _RabbitMessage(TakenMessage):
    def __init__(self, consumer: _RabbitConsumer, message: Any) -> None:
        self._consumer = consumer
        self._message = message
        self._channel = consumer.channel
        headers = message.headers
        count = headers.get("x-delivery-count")
        returns = count if isinstance(count, int) else 0
        self.label = str(message.message_id or message.delivery_tag)
        # RabbitMQ has no name for a message, so this is the event's; a second copy of it is no repetition.
        place = (headers.get("cloudEvents_source"), headers.get("cloudEvents_id"))
        self.identity = place if all(place) else (self.label, message.body)
        self.is_repeated = bool(message.redelivered)
        self.begun = consumer.excuse(self.identity, returns)
        if returns >= DELIVERY_LIMIT:
            self.begun = max(
                self.begun, consumer.plan.max_retry + 1 + SPARE_DELIVERIES
            )  # the next is its end

    def read(self) -> Event:
        texts = {name: value for name, value in self._message.headers.items() if isinstance(value, str)}
        texts["content-type"] = self._message.content_type or ""
        return cloudevents.read(texts, self._message.body, cloudevents.AMQP)

    @property
    def raw(self) -> bytes:
        return bytes(self._message.body)

    async def acknowledge(self) -> None:
        if self._channel is not self._consumer.channel:
            raise Gone
        try:
            await self._message.ack()
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise Gone from None  # the broker has it back, and delivers it again
        self._consumer.note_acknowledged(self.identity)

    async def hand_back(self, *, is_begun: bool) -> None:
        await self._message.nack(requeue=True)
