"""At most one job of a group runs: the group's lock is a document that names the delivery whose turn it is.

A claim takes the lock, then the job, then looks whether the lock is still its own. A worker that finds a lock
that did not change for a lease and whose job does not run takes it over, then looks at the job once more.
So of two that are in each other's way at least one notices, however long either of them stood still.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import msgspec

from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex.background.jobs.nats_documents import Changed, Documents, subject_token
from maniflex.background.jobs.nats_index import GroupLock, JobIndex, JobVersion, LockVersion, StoredJob
from maniflex.errors import Timeout, Unavailable

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
        replaces, held = 0, GroupLock(entry.subject, token)
        while subject not in self._index.locks:
            try:
                sequence = await self._documents.write(subject, _encode(held), replaces=replaces)
            except Changed:
                version = await self._documents.read(subject)
                replaces = version.sequence
                if version.data:
                    self._note(subject, version.sequence, decode_lock(version.data))
            else:
                self._note(subject, sequence, held)
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
        stored = msgspec.json.decode(version.data, type=StoredJob)
        return stored.state == "running" and stored.token == held.token

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
