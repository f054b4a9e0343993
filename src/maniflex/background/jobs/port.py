"""The seams of the job queue, between producers, workers, status rows and event buses.

A `Queue` takes jobs, a `Source` gives them to workers under a lease and hears what came of them.
Every answer names the token of its delivery; the source refuses (False) a job that another worker has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict, Unpack, runtime_checkable

from maniflex.background.jobs.job import Job, Result
from maniflex.background.leases import Held


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job that is ours until its lease ends; `job.attempt` counts this delivery."""

    job: Job
    token: str

    @property
    def held(self) -> Held:
        return Held(self.job.id, self.token)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A job whose worker died: ready again, or dead because its attempts are spent."""

    job: Job
    dead: bool
    letter: Job | None = None


class Queue(Protocol):
    """Takes jobs."""

    async def enqueue(self, job: Job) -> str:
        """Keep the job and return its id; `Conflict` when there is one of that id already."""

    async def enqueue_at(self, job: Job, when: datetime) -> str:
        """The same, to be started no earlier than `when`."""


@runtime_checkable
class Cancellable(Protocol):
    """A queue that can take a job back before it is started."""

    async def cancel(self, id: str) -> None:
        """Forget a job that waits; `Conflict` when it runs, `NotFound` when it is unknown.

        One that is over is unknown to a queue that keeps nothing of it.
        """


class Source(Protocol):
    """Gives jobs to workers.

    A source whose due times go by another clock than that of the worker has it as an attribute `clock`.
    """

    lease: timedelta  # how long a delivery is ours without being extended

    def sibling(self) -> Any:
        """One more way to the same jobs, for another thread's event loop; opened there."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def claim(self, types: Sequence[str], limit: int) -> list[Delivery]:
        """Up to `limit` due jobs of these types, at most one of each group; each counts as an attempt."""

    async def extend(self, held: Sequence[Held]) -> set[str]:
        """Begin the leases anew, never shorter; the ids of those that are no longer ours."""

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        """The job is done."""

    async def retry(self, delivery: Delivery, at: datetime, error: str) -> bool:
        """The attempt failed; there is another one at the given time."""

    async def bury(self, delivery: Delivery, error: str, letter: Job | None) -> bool:
        """The job is dead; its dead letter is enqueued in the same step."""

    async def release(self, delivery: Delivery) -> bool:
        """Give the job back as if it had never been delivered."""

    async def recover(self, types: Sequence[str], letter: str | None) -> list[Recovered]:
        """Take back the jobs of dead workers; a job that is dead now gets a letter of that type."""

    def listen(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call `wake` when there may be something to claim; a hint: a worker that listens also polls."""


class AttemptEnd(TypedDict, total=False):
    """What came of an attempt: its result, or its error."""

    result: Result | None
    error: str | None
    error_code: str | None


class StatusSink(Protocol):
    """Where clients see what became of a job."""

    async def put(self, job: Job, status: str, **end: Unpack[AttemptEnd]) -> None:
        """Note the status of an attempt; an older attempt changes nothing any more."""

    async def cancelled(self, id: str) -> None:
        """Note that a waiting job was cancelled."""

    async def forget(self, id: str) -> None:
        """There is no such job after all."""


class EventBus(Protocol):
    """Hears of finished jobs; `publish` may be plain or async."""

    def publish(self, type: str, payload: dict[str, Any], /) -> Any: ...
