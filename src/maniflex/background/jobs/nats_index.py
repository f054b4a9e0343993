"""What a process knows of the jobs in NATS: which wait, in which order, and since when others are unchanged.

Pure: `NatsQueue` puts in every version that it reads or writes. An index can be behind, which costs a refused
write and nothing else: whether a job is ours, the server decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import msgspec

from maniflex.background.jobs.job import Job


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
