"""The seams of the job queue, between producers, workers, status rows and event buses.

A `Queue` takes jobs, a `Source` gives them to workers under a lease and hears what came of them.
Every answer names the token of its delivery; the source refuses (False) a job that another worker has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol, TypedDict, Unpack, runtime_checkable

import msgspec

from maniflex._ids import new_id
from maniflex._json import clean, decode, encode
from maniflex.background.leases import Held
from maniflex.background.runs.handlers import check_type
from maniflex.encryption.envelope import from_text
from maniflex.encryption.port import context_of
from maniflex.encryption.sealed_json import WorkSealing
from maniflex.errors import DecryptionError, ValidationFailed


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


# What a job is, what comes of it, and the form in which adapters keep it.


MAX_RETRY = 3
PAYLOAD = "job.payload"  # what the payloads of encrypted jobs are bound to
_TEXTS = ("id", "actor_id", "tenant_id", "trace_id", "group_key")
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of background work; `max_retry` is how often it is tried before it is dead.

    >>> Job("send_receipt", {"order_id": 7}, group_key="order:7")
    """

    type: str
    payload: Any = None
    actor_id: str | None = None
    tenant_id: str | None = None
    trace_id: str | None = None
    max_retry: int = MAX_RETRY
    not_before: datetime | None = None
    group_key: str | None = None  # at most one job of a key runs at a time
    id: str = ""  # given by the queue, unless you have one
    attempt: int = 0  # which try this is; for handlers
    encrypted: bool | str | None = None  # in a queue: the id of the key that its payload is sealed under


@dataclass(frozen=True, slots=True)
class Result:
    """What a handler leaves behind: where to fetch a large output, or a small one itself."""

    url: str | None = None
    output: Any = None

    @classmethod
    def of(cls, value: Any) -> Result:
        """What a handler returned; anything but a `Result` is its output."""
        return value if isinstance(value, Result) else cls(output=value)

    def stored(self) -> dict[str, Any] | None:
        """The result as the database keeps it; None when it has neither a URL nor an output."""
        if self.url is None and self.output is None:
            return None
        return {"url": self.url, "output": self.output}


def validate_job(job: Job) -> Job:
    """The job as a queue takes it: with an id, and with the payload its handler will read."""
    check_type(job.type)
    retry: Any = job.max_retry
    if not isinstance(retry, int) or isinstance(retry, bool) or not 1 <= retry < 2**31:
        _refuse("max_retry", "must be a whole number of at least 1")
    if job.not_before is not None and job.not_before.tzinfo is None:
        _refuse("not_before", "must have a time zone")
    texts: dict[str, Any] = {name: _text(name, getattr(job, name)) for name in _TEXTS}
    texts["id"] = texts["id"] or new_id()
    return replace(job, payload=decode(encode(_payload(job), "payload")), **texts)


def _payload(job: Job) -> Any:
    return {} if job.payload is None else job.payload


def _text(name: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > _LONGEST or clean(value, _LONGEST) != value:
        _refuse(name, f"must be a text of at most {_LONGEST} characters, without NUL and lone surrogates")
    return value


def _refuse(field: str, message: str) -> NoReturn:
    raise ValidationFailed(f"{field} {message}", [{"field": field, "message": message}])


def dump(job: Job) -> str:
    """A checked job as JSON text."""
    return msgspec.json.encode(job).decode()


def load(text: str | bytes) -> Job:
    """The job of such a text."""
    job = msgspec.json.decode(text, type=Job)
    if job.not_before is not None:
        job = replace(job, not_before=job.not_before.astimezone(UTC))
    return job


async def sealed_job(sealing: WorkSealing, job: Job, key_id: str | bool | None) -> Job:
    """A checked job as a queue keeps it: its payload sealed, if it has a key id."""
    if not isinstance(key_id, str):
        return job
    envelope_text = await sealing.keep_text(
        encode(job.payload, "payload", to_seal=True), key_id, PAYLOAD, job.id
    )
    return replace(job, payload=envelope_text, encrypted=key_id)


async def opened_job(sealing: WorkSealing, job: Job, *, is_letter: bool = False) -> Job:
    """A job as its handler gets it; it raises where the payload does not open."""
    if job.encrypted is not None:
        return replace(job, payload=await _open_payload(sealing, job.payload, job.id))
    if is_letter and isinstance(job.payload, dict) and job.payload.get("sealed") is True:
        letter = {name: value for name, value in job.payload.items() if name != "sealed"}
        content = await _open_payload(sealing, letter.get("payload"), str(letter.get("job_id")))
        return replace(job, payload=letter | {"payload": content})
    return job


async def _open_payload(sealing: WorkSealing, sealed: Any, job_id: str) -> Any:
    if not isinstance(sealed, str):
        raise DecryptionError("it is no envelope")
    return decode(await sealing.keys.open(from_text(sealed), context_of(PAYLOAD, job_id)))


def dead_letter(job: Job, error: str, type: str | None) -> Job | None:
    """The job that tells of a dead one; None where none is wanted, or it is a dead letter itself."""
    if type is None or type == job.type:
        return None
    payload = {"job_id": job.id, "type": job.type, "payload": job.payload, "error": error}
    payload["attempt"] = job.attempt
    if job.encrypted is not None:
        payload["sealed"] = True  # the payload in it is, as it was in the queue
    return validate_job(
        Job(type, payload, actor_id=job.actor_id, tenant_id=job.tenant_id, trace_id=job.trace_id)
    )
