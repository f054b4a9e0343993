"""Events in a JetStream stream, a durable pull consumer for each subscription; needs `maniflex[nats]`.

The subject is `{prefix}.{type}`, the headers are the attributes (`ce-…`), the payload the data. A consumer
takes what its broad filter lets through and matches again: servers before 2.10 ignore a list of filters. A
failed attempt goes back to the server with a delay, so the server's count of deliveries is the count of
attempts; a message in hand is said to be in progress every few seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from maniflex._clock import Backoff
from maniflex.db.current import detached_context
from maniflex.errors import DeclarationError, Timeout, Unavailable, ValidationFailed
from maniflex.events import cloudevents
from maniflex.events.base import BaseBus, Secrets, hide_password, seconds_of
from maniflex.events.consuming import Consumer, TakenMessage, log
from maniflex.events.event import Event
from maniflex.events.port import Disconnected, SubscriptionPlan

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.js import api
    from nats.js import errors as stream_errors
except ImportError as missing:
    raise DeclarationError("NatsBus needs the nats-py package: pip install 'maniflex[nats]'") from missing

AT_ONCE = 500  # messages on their way to the server
WAIT = 0.2  # seconds that a take waits for messages
LOOK_EVERY = 2.0  # seconds without messages until a consumer looks whether the server still has it
PROGRESS = 10.0  # seconds
PAUSES_FOR_STREAM = Backoff(base=timedelta(milliseconds=50), cap=timedelta(seconds=1))
_NAMES = {
    "stream": re.compile(r"[A-Za-z0-9_-]+"),
    "prefix": re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"),
}
_NO_STORE = 10049  # what a server says that removes the directory of another stream just then
_STREAM_ATTEMPTS = 5


class NatsBus(BaseBus):
    """Events in a stream, on one connection; `options` are further arguments of `nats.connect`."""

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str = "maniflex",
        prefix: str = "maniflex",
        create: bool = True,
        ack_wait: timedelta | float = timedelta(seconds=30),
        max_age: timedelta | float = timedelta(days=7),
        timeout: timedelta | float = timedelta(seconds=5),
        on_disconnected: Disconnected | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(on_disconnected)
        durations = {"ack_wait": ack_wait, "max_age": max_age, "timeout": timeout}
        self.ack_wait, self._max_age, self.timeout = seconds_of("NatsBus", **durations)
        for name, value in (("stream", stream), ("prefix", prefix)):
            if not _NAMES[name].fullmatch(value):
                raise DeclarationError(
                    f"NatsBus: {name}={value!r} has other characters than letters, digits, _ and -"
                )
        self.stream = stream
        self.prefix = prefix
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._secrets = Secrets(*self._servers)
        self._create = create
        self._options = dict(options or {})
        self._client: Any = None
        self._stream_api: Any = None
        self._dialling = asyncio.Lock()

    def __repr__(self) -> str:
        places = ", ".join(map(hide_password, self._servers))
        return f"NatsBus({places!r}, stream={self.stream!r}, prefix={self.prefix!r})"

    # -- for BaseBus

    async def connect(self) -> None:
        await self.jetstream()

    async def hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.close()

    async def send(self, events: Sequence[Event]) -> None:
        messages = [cloudevents.binary(event, cloudevents.NATS) for event in events]
        stream = await self.jetstream()
        for event, (headers, body) in zip(events, messages, strict=True):
            headers["Nats-Msg-Id"] = event.id
            self._check_size(headers, body)
        for start in range(0, len(events), AT_ONCE):
            async with self.translating():
                acks = []
                for place in range(start, min(start + AT_ONCE, len(events))):
                    headers, body = messages[place]
                    subject = f"{self.prefix}.{events[place].type}"
                    acks.append(await stream.publish_async(subject, body, headers=headers))
                for place, ack in enumerate(await asyncio.gather(*acks), start):
                    if ack.duplicate:
                        await self._publish_unless_stored(stream, events[place], messages[place], ack.seq)

    async def _publish_unless_stored(
        self, stream: Any, event: Event, message: tuple[dict[str, str], bytes], sequence: int
    ) -> None:
        """Of two strangers that use one id, the server takes the second for a repetition of the first."""
        with suppress(stream_errors.NotFoundError):
            original = await stream.get_msg(self.stream, sequence)
            if (original.headers or {}).get("ce-source") == cloudevents.percent_encode(event.source):
                return
        headers, body = message
        unique_id = f"{cloudevents.percent_encode(event.source)}#{event.id}"
        await stream.publish(
            f"{self.prefix}.{event.type}", body, headers={**headers, "Nats-Msg-Id": unique_id}
        )

    def _check_size(self, headers: Mapping[str, str], body: bytes) -> None:
        """The server counts the header too, and ends the connection for it."""
        size = len(body) + 12 + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self._client.max_payload:
            message = (
                f"is larger than the messages that this NATS server takes ({self._client.max_payload} bytes)"
            )
            raise ValidationFailed(f"the event {message}", [{"field": "data", "message": message}])

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        return _NatsConsumer(plan, self)

    async def remove(self, plan: SubscriptionPlan) -> None:
        stream = await self.jetstream()
        async with self.translating():
            with suppress(stream_errors.NotFoundError):
                await stream.delete_consumer(self.stream, plan.id)

    # -- the connection

    @property
    def client(self) -> Any:
        return self._client

    async def jetstream(self) -> Any:
        """JetStream on a connection that is open; one that was lost is made again."""
        if self._client is None or self._client.is_closed:
            async with self._dialling:
                if self._client is None or self._client.is_closed:
                    async with self.translating():
                        await self._dial()
        return self._stream_api

    async def _dial(self) -> None:
        client = Client()
        try:
            # The loops of the subscriptions connect again, and say so; a publish meanwhile fails at once.
            await client.connect(
                self._servers,
                allow_reconnect=False,
                connect_timeout=max(1, int(self.timeout)),
                ping_interval=5,
                max_outstanding_pings=2,
                error_cb=_ignore,
                **self._options,
            )
            api_of_stream = client.jetstream(timeout=self.timeout)
            await self._check_stream(api_of_stream)
        except BaseException:
            with suppress(Exception):
                await client.close()
            raise
        self._client, self._stream_api = client, api_of_stream

    async def _check_stream(self, stream: Any) -> None:
        subject_to_cover = f"{self.prefix}.>"
        try:
            info = await stream.stream_info(self.stream)
        except stream_errors.NotFoundError:
            if not self._create:
                raise DeclarationError(
                    f"NatsBus: there is no stream {self.stream!r}, and create=False"
                ) from None
            await self._add_stream(stream, subject_to_cover)
            return
        subjects = info.config.subjects or []
        if not any(covers_subject(subject, subject_to_cover) for subject in subjects):
            raise DeclarationError(
                f"NatsBus: the stream {self.stream!r} takes {', '.join(subjects) or 'nothing'},"
                f" which does not cover {subject_to_cover}; use another stream= or prefix="
            )

    async def _add_stream(self, stream: Any, subject: str) -> None:
        config = api.StreamConfig(
            name=self.stream, subjects=[subject], max_age=self._max_age, storage=api.StorageType.FILE
        )
        for attempt in range(1, _STREAM_ATTEMPTS + 1):
            try:
                await stream.add_stream(config)
                return
            except stream_errors.APIError as error:
                if error.err_code != _NO_STORE or attempt == _STREAM_ATTEMPTS:
                    raise
            await asyncio.sleep(PAUSES_FOR_STREAM(attempt).total_seconds())

    @asynccontextmanager
    async def translating(self) -> AsyncIterator[None]:
        """A block that asks NATS, no longer than the timeout; what fails is `Unavailable` or `Timeout`."""
        try:
            async with asyncio.timeout(self.timeout):
                yield
        except (TimeoutError, nats_errors.TimeoutError):
            raise Timeout("NATS took too long") from None
        except (nats_errors.Error, OSError) as error:
            raise Unavailable(f"NATS cannot be used right now: {self._secrets.clean(error)}") from None


async def _ignore(error: Exception) -> None:
    """The calls that fail tell of it."""


def covers_subject(subject: str, subject_to_cover: str) -> bool:
    """Whether everything below `subject_to_cover` (which ends in `>`) is taken by a subject of a stream."""
    have, want = subject.split("."), subject_to_cover.split(".")
    for place, token in enumerate(have):
        if token == ">":
            return True
        if place >= len(want) or want[place] == ">" or token not in ("*", want[place]):
            return False
    return False


def filter_of(prefix: str, patterns: Sequence[str]) -> str:
    """One subject that lets through all that the patterns match, and perhaps more.

    >>> filter_of("shop", ["order.*"]), filter_of("shop", ["order.made"]), filter_of("shop", ["a.*", "*.b"])
    ('shop.order.>', 'shop.order.made', 'shop.>')
    """
    if len(patterns) == 1 and "*" not in patterns[0]:
        return f"{prefix}.{patterns[0]}"
    common: list[str] | None = None
    for pattern in patterns:
        tokens = pattern.split(".")
        star_places = [place for place, token in enumerate(tokens) if "*" in token]
        fixed_tokens = tokens[: star_places[0]] if star_places else tokens[:-1]
        if common is None:
            common = fixed_tokens
        else:
            same = [have == want for have, want in zip(common, fixed_tokens, strict=False)]
            common = common[: same.index(False) if False in same else len(same)]
    return ".".join([prefix, *(common or []), ">"])


class _NatsConsumer(Consumer):
    def __init__(self, plan: SubscriptionPlan, bus: NatsBus) -> None:
        super().__init__(plan, bus.send_letter)
        self._bus = bus
        self._line: Any = None  # the connection that `_pull` is of
        self._pull: Any = None
        self._sequence = 0  # of the stream, of the last message that was seen
        self._heard_at = 0.0
        self._progress: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        stream = await self._bus.jetstream()
        async with self._bus.translating():
            await self._make_consumer(stream)

    async def start(self) -> None:
        await super().start()
        self._progress = asyncio.create_task(
            self._tell_progress(), name="maniflex-events-progress", context=detached_context()
        )

    async def _make_consumer(self, stream: Any, **begin: Any) -> None:
        """Make it where it is not there; what the server has of it, and where it stands, stays."""
        try:
            info = await stream.consumer_info(self._bus.stream, self.plan.id)
            config = info.config
            if config.ack_wait != self._bus.ack_wait:
                config.ack_wait = self._bus.ack_wait
                await stream.add_consumer(self._bus.stream, config)
        except stream_errors.NotFoundError:
            is_all = self.plan.start == "beginning"
            policy = api.DeliverPolicy.ALL if is_all else api.DeliverPolicy.NEW
            config = api.ConsumerConfig(
                **{
                    "durable_name": self.plan.id,
                    "deliver_policy": policy,
                    "ack_policy": api.AckPolicy.EXPLICIT,
                    "ack_wait": self._bus.ack_wait,
                    "max_deliver": -1,
                    "max_ack_pending": 20_000,  # what waits for its next attempt counts too
                    "filter_subject": filter_of(self._bus.prefix, self.plan.patterns),
                    **begin,
                }
            )
            info = await stream.add_consumer(self._bus.stream, config)
        self._sequence = max(self._sequence, info.delivered.stream_seq or 0)

    async def _bind(self) -> None:
        stream = await self._bus.jetstream()
        if self._line is not self._bus.client:
            async with self._bus.translating():
                await self._look(stream)
                self._pull = await stream.pull_subscribe_bind(durable=self.plan.id, stream=self._bus.stream)
            self._line = self._bus.client

    async def _look(self, stream: Any) -> None:
        """Make the consumer again where the server has lost it, from where it stood."""
        with suppress(stream_errors.NotFoundError):
            await stream.consumer_info(self._bus.stream, self.plan.id)
            return
        await self._bus._check_stream(stream)
        last = (await stream.stream_info(self._bus.stream)).state.last_seq
        begin: dict[str, Any] = {"deliver_policy": api.DeliverPolicy.ALL}  # it is another stream by now
        if last >= self._sequence:
            begin = {
                "deliver_policy": api.DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": self._sequence + 1,
            }
        else:
            self._sequence = 0
        await self._make_consumer(stream, **begin)
        log.error("group %s: NATS had lost it; it reads on behind %d", self.plan.group, self._sequence)

    async def take(self, room: int) -> Sequence[TakenMessage]:
        await self._bind()
        now = asyncio.get_running_loop().time()
        try:
            messages = await self._pull.fetch(room, timeout=WAIT)
        except nats_errors.TimeoutError:
            messages = []
        except (nats_errors.Error, OSError) as error:
            self._line = None
            async with self._bus.translating():
                raise error
        if self._bus.client is None or self._bus.client.is_closed:
            self._line = None
            raise Unavailable("the connection to NATS is lost")
        if messages:
            self._heard_at = now
        elif now - self._heard_at > LOOK_EVERY:
            self._heard_at = now
            async with self._bus.translating():
                await self._look(await self._bus.jetstream())
        deliveries = [_NatsMessage(self._bus, message) for message in messages]
        self._sequence = max([self._sequence, *(message.sequence for message in deliveries)])
        return deliveries

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(min(PROGRESS, self._bus.ack_wait / 3))
            with suppress(Exception):  # the connection is made again by those who take
                for message in list(self._hands.values()):
                    assert isinstance(message, _NatsMessage)
                    await message.tell(b"+WPI")

    async def finish(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
        if self._pull is not None:
            await self._pull.unsubscribe()


class _NatsMessage(TakenMessage):
    def __init__(self, bus: NatsBus, message: Any) -> None:
        self._bus = bus
        self._message = message
        place = message.metadata
        self.sequence = place.sequence.stream
        self.label = str(self.sequence)
        self.identity = (place.timestamp, self.sequence)
        self.begun = place.num_delivered - 1
        self.is_repeated = self.begun > 0

    def read(self) -> Event:
        return cloudevents.read(self._message.headers or {}, self._message.data, cloudevents.NATS)

    @property
    def raw(self) -> bytes:
        return bytes(self._message.data)

    async def acknowledge(self) -> None:
        await self._confirm(b"+ACK")

    async def bury(self) -> None:
        await self._confirm(b"+TERM")

    async def _confirm(self, word: bytes) -> None:
        # By the connection there is now, which need not be the one that brought the message.
        await self._bus.jetstream()
        async with self._bus.translating():
            await self._bus.client.request(self._message.reply, word, timeout=self._bus.timeout)

    async def retry_later(self, pause: timedelta) -> bool:
        await self.tell(b'-NAK {"delay": %d}' % int(pause.total_seconds() * 1e9))
        return True

    async def hand_back(self, *, is_begun: bool) -> None:
        await self.tell(b"-NAK")

    async def tell(self, word: bytes) -> None:
        async with self._bus.translating():
            await self._bus.client.publish(self._message.reply, word)
            await self._bus.client.flush()
