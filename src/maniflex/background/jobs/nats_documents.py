"""Documents in a JetStream stream: one message for each subject, changed only from the version one has read.

The stream keeps the last message of a subject. Every write names the sequence of the message that it
replaces, and the server refuses it (`Changed`) when there is a newer one: that is the only lock there is.
A removed document leaves an empty message, so that all who follow the stream learn of it, and that message is
deleted later.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec

from maniflex._backoff import Backoff
from maniflex._logging import guard_logger
from maniflex.errors import DeclarationError, RequestError, Timeout, Unavailable, ValidationFailed

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.js import api
    from nats.js import errors as stream_errors
except ImportError as missing:
    raise ImportError("jobs in NATS need the nats-py package: pip install 'maniflex[nats]'") from missing

_WRONG_LAST_SEQUENCE = 10071
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BATCH = 500
_NO_STORE = 10049
_STREAM_ATTEMPTS = 5
_STREAM_PAUSES = Backoff(base=timedelta(milliseconds=50), cap=timedelta(seconds=1))
_HEADER_ROOM = 256  # bytes of a message that its header may take
T = TypeVar("T")
log = guard_logger(logging.getLogger("maniflex.jobs"))


class Changed(Exception):
    """Someone else has written the document meanwhile."""


class DocumentVersion(NamedTuple):
    """What a subject held at a sequence; without data it was removed."""

    subject: str
    sequence: int
    data: bytes


class Documents:
    """The documents below a prefix, on a connection of their own."""

    def __init__(self, servers: str | list[str], prefix: str, *, replicas: int, timeout: float) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise DeclarationError(
                f"prefix={prefix!r}: only letters, digits, dots, hyphens and underscores, as in 'shop.jobs'"
            )
        self.prefix = prefix
        self._servers = servers
        self._stream = prefix.replace(".", "_")
        self._replicas = replicas
        self._timeout = timeout
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._over = asyncio.Event()  # the client of the connection has closed it for good
        self._client_error: Exception | None = None  # the last one that the client told of
        self._follower: Any = None
        self._followed = 0  # messages that our consumer was given

    async def open(self) -> None:
        """Connect and make the stream if it is not there."""
        async with self._connecting:
            if not self._has_client():
                self._connection, self._follower = None, None
                self._connection = await self._translate_errors(self._connect())

    def _has_client(self) -> bool:
        # A client closes itself for good when the server says why it ends the connection.
        return self._connection is not None and not self._connection.is_closed

    async def _connect(self) -> Any:
        connection, self._over, self._client_error = Client(), asyncio.Event(), None
        try:
            # Told to reconnect for ever, the client also tries for ever to connect at first.
            async with asyncio.timeout(self._timeout):
                await self._dial(connection)
            await self._make_stream(connection.jetstream(timeout=self._timeout))
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError) and self._client_error is not None:
                raise Unavailable("the job queue cannot be reached right now") from self._client_error
            raise
        return connection

    async def _dial(self, connection: Any) -> None:
        over = self._over

        async def on_close() -> None:
            over.set()

        await connection.connect(
            self._servers,
            connect_timeout=5,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            ping_interval=10,
            allow_reconnect=True,
            error_cb=self._note_client_error,
            reconnected_cb=self._forget_follower,
            closed_cb=on_close,
        )

    async def _note_client_error(self, error: Exception) -> None:
        """The client reports each failed attempt to reconnect; the calls that fail meanwhile say it too."""
        self._client_error = error

    async def _make_stream(self, jetstream: Any) -> None:
        subjects = [f"{self.prefix}.job.*", f"{self.prefix}.group.*"]
        try:
            info = await jetstream.stream_info(self._stream)
        except stream_errors.NotFoundError:
            await self._add_stream(jetstream, subjects)
            return
        if info.config.subjects != subjects or info.config.max_msgs_per_subject != 1:
            raise DeclarationError(
                f"the NATS stream {self._stream} is not one of a job queue; use another prefix="
            )
        if _drops_messages(info.config):
            text = "the NATS stream %s drops jobs by its limits; let it discard new ones, and none by age"
            log.warning(text, self._stream)

    async def _add_stream(self, jetstream: Any, subjects: list[str]) -> None:
        config = api.StreamConfig(
            name=self._stream,
            subjects=subjects,
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,  # a stream that got a limit refuses jobs when it is full
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
        )
        for attempt in count(1):
            try:
                await jetstream.add_stream(config)
                return
            except stream_errors.APIError as error:
                text = "the NATS server could not make the stream %s: %s"
                log.warning(text, self._stream, error.description)
                # Shortly after the last stream of an account was deleted, the server removes the directory
                # of its streams, perhaps from under the stream that it is making: the next attempt succeeds.
                if error.err_code != _NO_STORE or attempt == _STREAM_ATTEMPTS:
                    raise Unavailable("the job queue cannot be made right now") from error
            await asyncio.sleep(_STREAM_PAUSES(attempt).total_seconds())

    async def close(self) -> None:
        connection, self._connection, self._follower = self._connection, None, None
        if connection is not None:
            await connection.close()

    # -- one document

    async def write(self, subject: str, data: bytes, *, replaces: int, room: int = 0) -> int:
        """Replace the version of that sequence (0: there is none), and return the new one; or `Changed`.

        `room` bytes must be left for what later versions have more.
        """
        await self._check_size(data, room)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(replaces)}
        try:
            receipt = await self._ask(lambda stream: stream.publish(subject, data, headers=headers))
        except stream_errors.APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise Changed from None
            raise Unavailable("the job queue does not take jobs right now") from error
        return int(receipt.seq)

    async def _check_size(self, data: bytes, room: int) -> None:
        """Refuse what is too large; the server counts the header too, and ends the connection for it."""
        if not self._has_client():
            await self.open()
        most: int = self._connection.max_payload
        if len(data) > most - _HEADER_ROOM - min(room, most // 4):
            message = "is larger than the messages that this NATS server takes"
            raise ValidationFailed(f"payload {message}", [{"field": "payload", "message": message}])

    async def read(self, subject: str) -> DocumentVersion:
        """The newest version; sequence 0 and no data where there never was one."""
        try:
            message = await self._ask(lambda stream: stream.get_last_msg(self._stream, subject))
        except stream_errors.NotFoundError:
            return DocumentVersion(subject, 0, b"")
        return DocumentVersion(subject, message.seq, message.data or b"")

    async def erase(self, sequence: int) -> None:
        """Delete the message that a removed document left, unless there is a newer one."""
        try:
            await self._ask(lambda stream: stream.delete_msg(self._stream, sequence))
        except stream_errors.APIError:
            return

    async def ask_time(self) -> datetime:
        """The time of the server, which comes with what it says of the stream."""

        async def ask(_: Any) -> bytes:
            subject = f"$JS.API.STREAM.INFO.{self._stream}"
            message = await self._connection.request(subject, b"", timeout=self._timeout)
            return bytes(message.data)

        text = msgspec.json.decode(await self._ask(ask)).get("ts")
        # A server before 2.9 does not say it.
        return datetime.now(UTC) if text is None else datetime.fromisoformat(text)

    # -- all documents

    async def changes(self) -> tuple[bool, list[DocumentVersion]]:
        """The versions since the last call; True: these are all there are, forget what you have."""
        try:
            return await self._changes()
        except BaseException:  # some may be lost by now
            await self._forget_follower()
            raise

    async def _changes(self) -> tuple[bool, list[DocumentVersion]]:
        is_whole = self._follower is None
        if is_whole:
            self._follower, self._followed = await self._ask(self._follow), 0
        follower = self._follower
        try:
            info = await self._ask(lambda _: follower.consumer_info())
        except stream_errors.NotFoundError:
            await self._forget_follower()
            return await self._changes()
        if info.delivered.consumer_seq != self._followed:  # messages were lost on their way
            await self._forget_follower()
            return await self._changes()
        versions: list[DocumentVersion] = []
        while len(versions) < info.num_pending:
            batch = await self._fetch(follower, min(info.num_pending - len(versions), _BATCH))
            if not batch:
                break
            versions += batch
            self._followed += len(batch)
        return is_whole, versions

    async def _fetch(self, follower: Any, size: int) -> list[DocumentVersion]:
        try:
            messages = await self._translate_errors(follower.fetch(max(size, 2), timeout=self._timeout))
        except Timeout:  # what was pending has been deleted since
            return []
        return [
            DocumentVersion(message.subject, message.metadata.sequence.stream, message.data)
            for message in messages
        ]

    async def _follow(self, stream: Any) -> Any:
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE,
            deliver_policy=api.DeliverPolicy.ALL,
            inactive_threshold=300,
            mem_storage=True,
        )
        return await stream.pull_subscribe(f"{self.prefix}.>", stream=self._stream, config=config)

    async def _forget_follower(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None and self._has_client():
            with suppress(nats_errors.Error, OSError):
                await follower.unsubscribe()

    # -- hints

    async def hint(self) -> None:
        """Tell the listening workers that there is something to claim; without it they find it later."""
        if self._connection is not None:
            with suppress(RequestError):
                await self._translate_errors(self._connection.publish(f"{self.prefix}.wake", b""))

    async def subscribe_to_hints(self, wake: Callable[[], None]) -> Any:
        async def on_hint(message: Any) -> None:
            wake()

        await self.open()
        return await self._translate_errors(self._connection.subscribe(f"{self.prefix}.wake", cb=on_hint))

    async def until_over(self) -> None:
        """Wait until the client has closed its connection for good."""
        await self._over.wait()

    # -- errors

    async def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        if not self._has_client():
            await self.open()
        return await self._translate_errors(question(self._connection.jetstream(timeout=self._timeout)))

    async def _translate_errors(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (nats_errors.TimeoutError, TimeoutError) as error:
            if self._connection is not None and self._connection.is_connected:
                raise Timeout("the job queue took too long") from error
            raise Unavailable("the job queue cannot be reached right now") from error
        except (stream_errors.ServiceUnavailableError, stream_errors.NoStreamResponseError) as error:
            raise Unavailable("the job queue cannot be reached right now") from error
        except stream_errors.APIError:
            raise
        except (nats_errors.Error, OSError) as error:
            raise Unavailable("the job queue cannot be reached right now") from error


def subject_token(name: str) -> str:
    """One part of a subject, for a name that may have any characters."""
    return name if _PLAIN_NAME.fullmatch(name) else f"={sha256(name.encode()).hexdigest()}"


def _drops_messages(config: Any) -> bool:
    limits = (config.max_msgs, config.max_bytes)
    has_limit = any(limit is not None and limit > 0 for limit in limits)
    return bool(config.max_age) or (has_limit and config.discard == api.DiscardPolicy.OLD)
