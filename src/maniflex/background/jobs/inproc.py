"""Jobs in the memory of one process: for tests and single-process development.

Best effort: a job that has not run when the process ends is lost. Everything else is as the other
adapters have it, leases and groups included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from maniflex._clock import Clock, SystemClock
from maniflex._ids import new_id
from maniflex.background.jobs.port import Delivery, Job, Recovered, Result, dead_letter, validate_job
from maniflex.background.leases import Held
from maniflex.errors import Conflict, NotFound

ABANDONED = "lease_expired"


@dataclass(slots=True)
class _QueuedJob:
    job: Job
    at: datetime
    token: str = ""  # of the delivery that has it; none: it waits
    until: float | None = None  # by the monotonic clock: no correction of the time ends a lease


class InProcessQueue:
    """A queue, and the source of its workers, in memory."""

    def __init__(self, *, clock: Clock | None = None, lease: timedelta = timedelta(seconds=30)) -> None:
        self.lease = lease
        self._clock = clock or SystemClock()
        self._entries: dict[str, _QueuedJob] = {}
        self._ready: dict[str, deque[str]] = {}  # by type, in the order they became ready
        self._later: set[str] = set()
        # A key is here while a job of its group is ready or running; behind it wait the others.
        self._groups: dict[str, deque[str]] = {}
        self._wakes: list[Callable[[], None]] = []

    @property
    def size(self) -> int:
        """How many jobs wait or run."""
        return len(self._entries)

    # -- for producers

    async def enqueue(self, job: Job) -> str:
        """Keep the job until it has run or the process ends."""
        job = validate_job(job)
        if job.id in self._entries:
            raise Conflict("there is a job of this id already")
        now = self._clock.now()
        self._entries[job.id] = entry = _QueuedJob(job, job.not_before or now)
        self._place(entry, now)
        return job.id

    async def enqueue_at(self, job: Job, when: datetime) -> str:
        """Keep the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when))

    async def cancel(self, id: str) -> None:
        """Forget a job that waits."""
        entry = self._entries.get(id)
        if entry is None:
            raise NotFound("job not found")
        if entry.token:
            raise Conflict("the job is running and cannot be cancelled")
        del self._entries[id]
        ready = self._ready.get(entry.job.type, deque())
        if id in self._later:
            self._later.discard(id)
        elif id in ready:
            ready.remove(id)
            self._free(entry.job)
        else:
            self._groups[entry.job.group_key or ""].remove(id)

    # -- for workers

    def sibling(self) -> InProcessQueue:
        return self

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def claim(self, types: Sequence[str], limit: int) -> list[Delivery]:
        """Due jobs of these types."""
        now = self._clock.now()
        due = [id for id in self._later if self._entries[id].at <= now]
        for id in sorted(due, key=lambda id: (self._entries[id].at, id)):
            self._later.discard(id)
            self._place(self._entries[id], now)
        deliveries: list[Delivery] = []
        for type in types:
            ready = self._ready.get(type, deque())
            while ready and len(deliveries) < limit:
                deliveries.append(self._deliver(self._entries[ready.popleft()]))
        return deliveries

    def _deliver(self, entry: _QueuedJob) -> Delivery:
        entry.job = replace(entry.job, attempt=entry.job.attempt + 1)
        entry.token, entry.until = new_id(), self._lease_end()
        return Delivery(entry.job, entry.token)

    async def extend(self, held: Sequence[Held]) -> set[str]:
        """Begin the leases anew."""
        lost_ids = set()
        for id, token in held:
            entry = self._entries.get(id)
            if entry is None or entry.token != token or entry.until is None:
                lost_ids.add(id)
            else:
                entry.until = max(entry.until, self._lease_end())
        return lost_ids

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        """The job is done and forgotten."""
        return self._end(delivery) is not None

    async def retry(self, delivery: Delivery, at: datetime, error: str) -> bool:
        """Wait for another attempt; meanwhile the group goes on."""
        return self._again(delivery, at, delivery.job.attempt)

    async def release(self, delivery: Delivery) -> bool:
        """Be as if it had not been delivered."""
        return self._again(delivery, self._clock.now(), delivery.job.attempt - 1)

    async def bury(self, delivery: Delivery, error: str, letter: Job | None) -> bool:
        """The job is dead; only its letter is left of it."""
        if self._end(delivery) is None:
            return False
        if letter is not None:
            await self.enqueue(letter)
        return True

    async def recover(self, types: Sequence[str], letter: str | None) -> list[Recovered]:
        """Take back jobs whose lease was not extended in time."""
        now, moment = self._clock.now(), self._clock.monotonic()
        expired_entries = [
            entry
            for entry in self._entries.values()
            if entry.until is not None and entry.until < moment and entry.job.type in types
        ]
        recoveries = []
        for entry in expired_entries:
            delivery = Delivery(entry.job, entry.token)
            if entry.job.attempt < entry.job.max_retry:
                self._again(delivery, now, entry.job.attempt)
                recoveries.append(Recovered(entry.job, dead=False))
            else:
                letter_job = dead_letter(entry.job, ABANDONED, letter)
                await self.bury(delivery, ABANDONED, letter_job)
                recoveries.append(Recovered(entry.job, dead=True, letter=letter_job))
        return recoveries

    @asynccontextmanager
    async def listen(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        self._wakes.append(wake)
        wake()
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def _lease_end(self) -> float:
        return self._clock.monotonic() + self.lease.total_seconds()

    # -- places a job can be in

    def _place(self, entry: _QueuedJob, now: datetime) -> None:
        job = entry.job
        if entry.at > now:
            self._later.add(job.id)
        elif job.group_key is not None and job.group_key in self._groups:
            self._groups[job.group_key].append(job.id)
        else:
            if job.group_key is not None:
                self._groups[job.group_key] = deque()
            self._ready.setdefault(job.type, deque()).append(job.id)
            for wake in self._wakes:
                wake()

    def _free(self, job: Job) -> None:
        """The group's place at the front is free: the next takes it, or the group is forgotten."""
        if job.group_key is None:
            return
        waiting = self._groups.pop(job.group_key)
        if waiting:
            first = self._entries[waiting.popleft()]
            self._place(first, first.at)
            self._groups[job.group_key] = waiting

    def _end(self, delivery: Delivery) -> _QueuedJob | None:
        entry = self._entries.get(delivery.job.id)
        if entry is None or entry.token != delivery.token:
            return None
        del self._entries[delivery.job.id]
        self._free(delivery.job)
        return entry

    def _again(self, delivery: Delivery, at: datetime, attempt: int) -> bool:
        entry = self._end(delivery)
        if entry is None:
            return False
        entry.job, entry.at = replace(entry.job, attempt=attempt), at
        entry.token, entry.until = "", None
        self._entries[entry.job.id] = entry
        self._place(entry, self._clock.now())
        return True
