"""Jobs in NATS JetStream, for fleets that have NATS and want no database in between; needs `maniflex[nats]`.

Each job is one document (`nats_documents.py`), and every step of it is one write that the server refuses if
another worker was faster. A process follows the stream and keeps an index of what waits (`nats_index.py`). A
lease has run out when the document did not change for that long by the clock of a process that follows it, so
that clocks need not agree. A group has a document of its own (`nats_groups.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import msgspec

from maniflex._clock import Backoff, Clock, SystemClock
from maniflex._fence import Fence
from maniflex._ids import new_id
from maniflex._logging import guard_logger
from maniflex.background.clock import AskedClock, synchronise
from maniflex.background.jobs.inproc import ABANDONED
from maniflex.background.jobs.nats_documents import (
    Changed,
    Documents,
    DocumentVersion,
    GroupLocks,
    JobIndex,
    JobVersion,
    LockVersion,
    StoredJob,
    decode_lock,
    subject_token,
)
from maniflex.background.jobs.port import Delivery, Job, Recovered, Result, dead_letter, validate_job
from maniflex.background.leases import Held
from maniflex.db.current import detached_context
from maniflex.errors import Conflict, NotFound, Timeout, Unavailable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
LETTER_ROOM = 32_768  # bytes that a job must leave free in a message, for its error and who is told of it
FOREIGN_REMOVALS = 10  # leases until we delete what another process, gone by now, left of a removed document
_encode = msgspec.json.encode
log = guard_logger(logging.getLogger("maniflex.jobs"))


class NatsQueue:
    """A queue, and the source of its workers, in JetStream; all workers of a queue use the same lease."""

    def __init__(
        self,
        servers: str | list[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "maniflex.jobs",
        lease: timedelta = timedelta(seconds=30),
        replicas: int = 1,
        timeout: timedelta = timedelta(seconds=5),
        clock: Clock | None = None,
    ) -> None:
        self.lease = lease
        self.prefix = prefix
        self._servers = servers
        self._replicas = replicas
        self._timeout = timeout
        self._machine = clock or SystemClock()
        self._clock = self._machine  # for what is measured here; due times go by `clock`
        self._index = JobIndex()
        self._documents = Documents(servers, prefix, replicas=replicas, timeout=timeout.total_seconds())
        is_real = isinstance(self._machine, SystemClock)
        self.clock: Clock = AskedClock(self._machine, self._documents.ask_time) if is_real else self._machine
        self._unanswered: dict[str, str] = {}  # subject → token of a job whose take was not answered
        self._groups = GroupLocks(self._documents, self._index, self._clock, lambda: self.lease)
        self._following = asyncio.Lock()
        self._is_following = False

    # -- for producers

    async def enqueue(self, job: Job) -> str:
        """Keep the job; the id is free again when the job is over."""
        job = validate_job(job)
        await synchronise(self.clock)
        at = self._now() if job.not_before is None else _to_milliseconds(job.not_before)
        if not await self._create(StoredJob(job, "waiting", at), room=LETTER_ROOM):
            raise Conflict("there is a job of this id already")
        return job.id

    async def enqueue_at(self, job: Job, when: datetime) -> str:
        """Keep the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when))

    async def cancel(self, id: str) -> None:
        """Forget a job that waits."""
        while True:
            entry = await self._read(self._subject(id))
            if entry is None:
                raise NotFound("job not found")
            if entry.stored.state != "waiting":
                raise Conflict("the job is running and cannot be cancelled")
            if await self._remove(entry):
                return

    async def _create(self, stored: StoredJob, room: int = 0) -> bool:
        subject, replaces = self._subject(stored.job.id), 0
        while True:
            try:
                await self._write(subject, stored, replaces=replaces, room=room)
            except Changed:
                version = await self._documents.read(subject)
                if version.data:
                    return False
                replaces = version.sequence
            else:
                await self._documents.hint()
                return True

    # -- for workers

    def sibling(self) -> NatsQueue:
        return NatsQueue(
            self._servers,
            prefix=self.prefix,
            lease=self.lease,
            replicas=self._replicas,
            timeout=self._timeout,
            clock=self._machine,
        )

    async def open(self) -> None:
        """Answers once NATS does; makes the stream if it is not there."""
        await self._documents.open()

    async def close(self) -> None:
        self._is_following = False
        self._index.reset()
        await self._documents.close()

    async def claim(self, types: Sequence[str], limit: int) -> list[Delivery]:
        """Read the changes, and take the jobs that may start, one write for each."""
        await self._follow()
        await synchronise(self.clock)
        token, failures = new_id(), dict[str, BaseException]()
        deliveries = await self._find_taken(types)
        versions: list[JobVersion] = []
        try:
            for type in types:
                due = self._index.due(type, self._now())
                while entries := list(islice(due, max(limit - len(deliveries), 0))):
                    versions += entries
                    takes = await asyncio.gather(
                        *(self._take(entry, token) for entry in entries), return_exceptions=True
                    )
                    for entry, take in zip(entries, takes, strict=True):
                        if isinstance(take, BaseException):
                            failures[entry.subject] = take
                            self._unanswered[entry.subject] = token
                        elif take is not None:
                            deliveries.append(take)
        except BaseException:
            self._offer_again(versions)
            raise
        # A job that the server did not answer for is tried again by the next claim.
        self._offer_again([entry for entry in versions if entry.subject in failures])
        if failures and not deliveries:
            raise next(iter(failures.values()))
        return deliveries

    async def _find_taken(self, types: Sequence[str]) -> list[Delivery]:
        """The jobs of these types that were taken without an answer: they were not begun."""
        tokens, self._unanswered = self._unanswered, {}
        deliveries = []
        try:
            for subject, token in list(tokens.items()):
                entry = await self._read(subject)
                if entry is None or not _is_running(entry, token):
                    del tokens[subject]
                elif entry.stored.job.type in types:
                    deliveries.append(Delivery(entry.stored.job, token))
        except BaseException:
            self._unanswered |= tokens
            raise
        given_ids = {self._subject(one.job.id) for one in deliveries}
        self._unanswered |= {s: token for s, token in tokens.items() if s not in given_ids}
        return deliveries

    def _offer_again(self, entries: Sequence[JobVersion]) -> None:
        for entry in entries:
            self._index.offer(entry)

    async def _take(self, entry: JobVersion, token: str) -> Delivery | None:
        if not await self._groups.lock(entry, token):
            return None
        job = replace(entry.stored.job, attempt=entry.stored.job.attempt + 1)
        running = msgspec.structs.replace(
            entry.stored, job=job, state="running", token=token, lease=self.lease.total_seconds()
        )
        running_version = await self._replace(entry, running)
        if running_version is None:
            await self._groups.unlock(entry, token)
            return None
        if not await self._groups.has_lock(entry, token):  # we were so slow that it was taken over
            await self._replace(running_version, entry.stored)
            return None
        return Delivery(job, token)

    async def extend(self, held: Sequence[Held]) -> set[str]:
        """Write the documents anew."""
        renewals = await asyncio.gather(*(self._extend(one) for one in held))
        return {one.id for one, is_ours in zip(held, renewals, strict=True) if not is_ours}

    async def _extend(self, held: Held) -> bool:
        async for entry in self._versions(self._subject(held.id), held.lease):
            lease = max(entry.stored.lease, self.lease.total_seconds())
            if await self._replace(entry, msgspec.structs.replace(entry.stored, lease=lease)):
                return True
        return False

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        """The job is done and forgotten; what came of it is the status sink's to keep."""
        async for entry in self._deliveries(delivery):
            if await self._remove(entry):
                await self._groups.unlock(entry, entry.stored.token)
                return True
        return False

    async def retry(self, delivery: Delivery, at: datetime, error: str) -> bool:
        """Wait for another attempt; meanwhile the group goes on."""
        return await self._again(delivery, delivery.job.attempt, _to_milliseconds(at))

    async def release(self, delivery: Delivery) -> bool:
        """Be as if it had not been delivered."""
        return await self._again(delivery, delivery.job.attempt - 1, self._now())

    async def _again(self, delivery: Delivery, attempt: int, at: int) -> bool:
        async for entry in self._deliveries(delivery):
            if await self._wait_again(entry, attempt, at):
                return True
        return False

    async def _wait_again(self, entry: JobVersion, attempt: int, at: int) -> bool:
        job = replace(entry.stored.job, attempt=attempt)
        if await self._replace(entry, StoredJob(job, "waiting", at)) is None:
            return False
        await self._groups.unlock(entry, entry.stored.token)
        await self._documents.hint()
        return True

    async def bury(self, delivery: Delivery, error: str, letter: Job | None) -> bool:
        """The job is dead, and its document holds the letter until that is enqueued."""
        async for entry in self._deliveries(delivery):
            if await self._bury(entry, letter):
                return True
        return False

    async def _bury(self, entry: JobVersion, letter: Job | None) -> bool:
        letter = None if letter is None else validate_job(letter)
        job = replace(entry.stored.job, payload=None)  # the letter has it, and both may be too much
        document = msgspec.structs.replace(entry.stored, job=job, state="dead", letter=letter)
        dead = await self._replace(entry, document)
        if dead is None:
            return False
        await self._groups.unlock(entry, entry.stored.token)
        with suppress(Unavailable, Timeout):  # `recover` sends it then
            await self._send_letter(dead)
        return True

    async def _send_letter(self, entry: JobVersion) -> None:
        """Enqueue the letter of a dead job, whoever buried it, and forget the job."""
        if (letter := entry.stored.letter) is not None:
            await self._create(StoredJob(letter, "waiting", self._now()))
        await self._remove(entry)

    async def recover(self, types: Sequence[str], letter: str | None) -> list[Recovered]:
        """Take back jobs whose documents did not change for a whole lease; finish what was left half done."""
        await self._follow()
        moment = self._clock.monotonic()
        recoveries = []
        for entry in self._index.idle_jobs(types, moment):
            if not await self._is_newest(entry):
                continue
            if entry.stored.state == "dead":
                await self._send_letter(entry)
            elif (recovery := await self._recover(entry, letter)) is not None:
                recoveries.append(recovery)
        await self._groups.free_abandoned()
        for sequence in self._index.removals_to_delete(moment):
            await self._documents.erase(sequence)
        return recoveries

    async def _is_newest(self, entry: JobVersion) -> bool:
        """Whether the server has this version; the index may have missed what became of it."""
        version = await self._documents.read(entry.subject)
        if version.sequence == entry.sequence:
            return True
        if version.data:
            self._note(version)
        else:
            self._index.remove_job(entry.subject, max(version.sequence, entry.sequence))
        return False

    async def _recover(self, entry: JobVersion, letter: str | None) -> Recovered | None:
        """By the version that sat idle and no other: a worker that renewed it keeps its job."""
        job = entry.stored.job
        if job.attempt < job.max_retry:
            is_ours = await self._wait_again(entry, job.attempt, self._now())
            return Recovered(job, dead=False) if is_ours else None
        letter_job = dead_letter(job, ABANDONED, letter)
        return Recovered(job, True, letter_job) if await self._bury(entry, letter_job) else None

    @asynccontextmanager
    async def listen(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        listening = asyncio.create_task(
            self._listen(wake), name="maniflex-jobs-listen", context=detached_context()
        )
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait((listening,))

    async def _listen(self, wake: Callable[[], None]) -> None:
        failures, backoff, fence = 0, Backoff(cap=timedelta(seconds=5)), Fence()
        while True:
            try:
                await self._documents.subscribe_to_hints(wake)
                wake()
                await self._documents.until_over()  # the client subscribes again whenever it reconnects
            except BaseException as error:
                fence.absorb(error)
                failures += 1
                if failures == 1:
                    log.warning("jobs in NATS are polled for, nothing is heard: %s", error)
                await asyncio.sleep(backoff(failures).total_seconds())

    # -- documents

    async def _follow(self) -> None:
        """Bring the index up to date."""
        async with self._following:
            is_whole, versions = await self._documents.changes()
            if is_whole:
                self._index.reset()
                self._is_following = True
            for version in versions:
                self._note(version)

    def _note(self, version: DocumentVersion) -> None:
        moment = self._clock.monotonic()
        is_group = version.subject.startswith(f"{self.prefix}.group.")
        if not version.data:
            remove = self._index.remove_lock if is_group else self._index.remove_job
            remove(version.subject, version.sequence)
            delete_at = moment + self.lease.total_seconds() * FOREIGN_REMOVALS
            self._index.removals.setdefault(version.sequence, delete_at)
            return
        try:
            if is_group:
                lock = decode_lock(version.data)
                self._index.put_lock(LockVersion(version.subject, version.sequence, lock, moment))
            else:
                job = _decode(version.data)
                self._index.put_job(JobVersion(version.subject, version.sequence, job, moment))
        except msgspec.MsgspecError as error:  # the others are to be found nevertheless
            log.warning("%s in NATS cannot be read: %s", version.subject, error)

    async def _read(self, subject: str) -> JobVersion | None:
        version = await self._documents.read(subject)
        if not version.data:
            return None
        return JobVersion(subject, version.sequence, _decode(version.data), self._clock.monotonic())

    async def _deliveries(self, delivery: Delivery) -> AsyncIterator[JobVersion]:
        async for entry in self._versions(self._subject(delivery.job.id), delivery.token):
            yield entry

    async def _versions(self, subject: str, token: str) -> AsyncIterator[JobVersion]:
        """The document as we know it, then as it is, again and again while the delivery is ours."""
        entry = self._index.jobs.get(subject)
        if entry is None or not _is_running(entry, token):
            entry = await self._read(subject)
        while entry is not None and _is_running(entry, token):
            yield entry
            entry = await self._read(subject)

    async def _write(self, subject: str, stored: StoredJob, *, replaces: int, room: int = 0) -> JobVersion:
        sequence = await self._documents.write(subject, _encode(stored), replaces=replaces, room=room)
        entry = JobVersion(subject, sequence, stored, self._clock.monotonic())
        if self._is_following:  # a process that only enqueues has no use for an index
            self._index.put_job(entry)
        return entry

    async def _replace(self, entry: JobVersion, stored: StoredJob) -> JobVersion | None:
        """The new version; None when the old one is not the newest."""
        try:
            return await self._write(entry.subject, stored, replaces=entry.sequence)
        except Changed:
            return None

    async def _remove(self, entry: JobVersion) -> bool:
        try:
            sequence = await self._documents.write(entry.subject, b"", replaces=entry.sequence)
        except Changed:
            return False
        if self._is_following:
            self._index.remove_job(entry.subject, sequence)
            self._index.removals[sequence] = self._clock.monotonic() + self.lease.total_seconds()
        return True

    # -- small things

    def _subject(self, id: str) -> str:
        return f"{self.prefix}.job.{subject_token(id)}"

    def _now(self) -> int:
        return (self.clock.now() - _EPOCH) // _MILLISECOND


def _is_running(entry: JobVersion, token: str) -> bool:
    return entry.stored.state == "running" and entry.stored.token == token


def _to_milliseconds(moment: datetime) -> int:
    """Never earlier than meant."""
    return -((_EPOCH - moment) // _MILLISECOND)


def _decode(data: bytes) -> StoredJob:
    return msgspec.json.decode(data, type=StoredJob)
