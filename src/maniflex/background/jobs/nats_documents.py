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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from maniflex._clock import Backoff, Clock
from maniflex._ids import new_id
from maniflex._logging import guard_logger
from maniflex.background.jobs.port import Job
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


# What a process knows of the jobs in NATS: which wait, in which order, and since when others are
# unchanged.
#
# Pure: `NatsQueue` puts in every version that it reads or writes. An index can be behind, which costs a
# refused write and nothing else: whether a job is ours, the server decides.


class StoredJob(msgspec.Struct, frozen=True):
    """A job as its message has it. A dead one stays until its letter is enqueued."""

    job: Job
    state: Literal["waiting", "running", "dead"]
    at: int  # milliseconds since 1970: not started earlier
    token: str = ""
    lease: float = 0.0
    letter: Job | None = None


class GroupLock(msgspec.Struct, frozen=True):
    """Whose turn it is in a group: the subject of a job and the token of its delivery."""

    subject: str
    token: str


@dataclass(frozen=True, slots=True)
class JobVersion:
    """A job at a sequence, and when this process first saw it so."""

    subject: str
    sequence: int
    stored: StoredJob
    seen_at: float

    @property
    def group_key(self) -> str | None:
        return self.stored.job.group_key


@dataclass(frozen=True, slots=True)
class LockVersion:
    """The lock of a group at a sequence, and when this process first saw it so."""

    subject: str
    sequence: int
    held: GroupLock
    seen_at: float


class JobIndex:
    """Jobs and locks by subject."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.jobs: dict[str, JobVersion] = {}
        self.held: dict[str, JobVersion] = {}  # of the jobs: those that run, and those that are dead
        self.locks: dict[str, LockVersion] = {}
        self.removals: dict[int, float] = {}  # sequence of what a removed document left → when to delete it
        self._waiting: dict[str, list[tuple[int, int, str]]] = {}  # by type: when, sequence, subject
        self._behind: dict[str, list[JobVersion]] = {}  # by the subject of the lock they wait for

    # -- being told

    def put_job(self, entry: JobVersion) -> None:
        version = self.jobs.get(entry.subject)
        if version is not None and version.sequence >= entry.sequence:
            return
        self.jobs[entry.subject] = entry
        if entry.stored.state == "waiting":
            self.held.pop(entry.subject, None)
            self.offer(entry)
        else:
            self.held[entry.subject] = entry

    def offer(self, entry: JobVersion) -> None:
        """Let `due` give this waiting job, if it is still the newest version by then."""
        waiting = self._waiting.setdefault(entry.stored.job.type, [])
        heappush(waiting, (entry.stored.at, entry.sequence, entry.subject))

    def remove_job(self, subject: str, sequence: int) -> None:
        version = self.jobs.get(subject)
        if version is not None and version.sequence <= sequence:
            del self.jobs[subject]
            self.held.pop(subject, None)

    def put_lock(self, lock: LockVersion) -> None:
        version = self.locks.get(lock.subject)
        if version is None or version.sequence < lock.sequence:
            self.locks[lock.subject] = lock

    def remove_lock(self, subject: str, sequence: int) -> None:
        version = self.locks.get(subject)
        if version is not None and version.sequence <= sequence:
            del self.locks[subject]
        if subject not in self.locks:
            for entry in self._behind.pop(subject, []):
                self.offer(entry)

    def wait_behind(self, lock_subject: str, entry: JobVersion) -> None:
        """Set a job aside until its group is free."""
        self._behind.setdefault(lock_subject, []).append(entry)

    # -- being asked

    def due(self, type: str, now: int) -> Iterator[JobVersion]:
        """The jobs of a type that may start, earliest first; what is given is not given again."""
        waiting = self._waiting.get(type, [])
        while waiting and waiting[0][0] <= now:
            _, sequence, subject = heappop(waiting)
            entry = self.jobs.get(subject)
            if entry is not None and entry.sequence == sequence:
                yield entry

    def idle_jobs(self, types: Sequence[str], moment: float) -> list[JobVersion]:
        """Running and dead jobs that did not change for a whole lease."""
        return [
            entry
            for entry in self.held.values()
            if entry.stored.job.type in types and entry.seen_at + entry.stored.lease < moment
        ]

    def idle_locks(self, moment: float, lease: float) -> list[LockVersion]:
        return [lock for lock in self.locks.values() if lock.seen_at + lease < moment]

    def removals_to_delete(self, moment: float) -> list[int]:
        sequences = [sequence for sequence, delete_at in self.removals.items() if delete_at < moment]
        for sequence in sequences:
            del self.removals[sequence]
        return sequences


# At most one job of a group runs: the group's lock is a document that names the delivery whose turn it
# is.
#
# A claim takes the lock, then the job, then looks whether the lock is still its own. A worker that finds
# a lock that did not change for a lease and whose job does not run takes it over, then looks at the job
# once more. So of two that are in each other's way at least one notices, however long either of them
# stood still.


_encode = msgspec.json.encode


class GroupLocks:
    """Takes and frees the locks of groups; a job without a group needs none."""

    def __init__(
        self, documents: Documents, index: JobIndex, clock: Clock, lease: Callable[[], timedelta]
    ) -> None:
        self._documents = documents
        self._index = index
        self._clock = clock
        self._lease = lease

    async def lock(self, entry: JobVersion, token: str) -> bool:
        """Whether it is this job's turn; if not, the index offers it again when the group is free."""
        if (subject := self._subject(entry)) is None:
            return True
        replaces, group_lock = 0, GroupLock(entry.subject, token)
        while subject not in self._index.locks:
            try:
                sequence = await self._documents.write(subject, _encode(group_lock), replaces=replaces)
            except Changed:
                version = await self._documents.read(subject)
                replaces = version.sequence
                if version.data:
                    self._note(subject, version.sequence, decode_lock(version.data))
            else:
                self._note(subject, sequence, group_lock)
                return True
        self._index.wait_behind(subject, entry)
        return False

    async def has_lock(self, entry: JobVersion, token: str) -> bool:
        """Whether the server says so, too."""
        if (subject := self._subject(entry)) is None:
            return True
        version = await self._documents.read(subject)
        return bool(version.data) and decode_lock(version.data).token == token

    async def unlock(self, entry: JobVersion, token: str) -> None:
        """Let the next of the group go on, if the lock is that delivery's.

        The delivery is settled by now, so this does not fail: `free_abandoned` does it a lease later.
        """
        if (subject := self._subject(entry)) is None:
            return
        with suppress(Unavailable, Timeout):
            version = await self._documents.read(subject)
            if version.data and decode_lock(version.data).token == token:
                await self._free(subject, version.sequence)

    async def free_abandoned(self) -> None:
        """Free the locks whose deliveries ended without doing so."""
        for lock in self._index.idle_locks(self._clock.monotonic(), self._lease().total_seconds()):
            if await self._is_running(lock.held):
                self._index.locks[lock.subject] = replace(lock, seen_at=self._clock.monotonic())
                continue
            try:
                sequence = await self._take_over(lock)
                if await self._is_running(lock.held):
                    await self._documents.write(lock.subject, _encode(lock.held), replaces=sequence)
                else:
                    await self._free(lock.subject, sequence)
            except Changed:
                await self._read_anew(lock)

    async def _read_anew(self, lock: LockVersion) -> None:
        """The index may have missed what became of the lock."""
        version = await self._documents.read(lock.subject)
        if version.data:
            self._note(lock.subject, version.sequence, decode_lock(version.data))
        else:
            self._index.remove_lock(lock.subject, max(version.sequence, lock.sequence))

    async def _take_over(self, lock: LockVersion) -> int:
        return await self._documents.write(
            lock.subject, _encode(GroupLock("", new_id())), replaces=lock.sequence
        )

    async def _is_running(self, held: GroupLock) -> bool:
        if not held.subject:
            return False
        version = await self._documents.read(held.subject)
        if not version.data:
            return False
        job = msgspec.json.decode(version.data, type=StoredJob)
        return job.state == "running" and job.token == held.token

    async def _free(self, subject: str, sequence: int) -> None:
        try:
            removal = await self._documents.write(subject, b"", replaces=sequence)
        except Changed:
            return
        self._index.remove_lock(subject, removal)
        self._index.removals[removal] = self._clock.monotonic() + self._lease().total_seconds()
        await self._documents.hint()

    def _note(self, subject: str, sequence: int, held: GroupLock) -> None:
        self._index.put_lock(LockVersion(subject, sequence, held, self._clock.monotonic()))

    def _subject(self, entry: JobVersion) -> str | None:
        key = entry.stored.job.group_key
        return None if key is None else f"{self._documents.prefix}.group.{subject_token(key)}"


def decode_lock(data: bytes) -> GroupLock:
    """The lock of such a document."""
    return msgspec.json.decode(data, type=GroupLock)
