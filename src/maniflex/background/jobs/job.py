"""What a job is, what comes of it, and the form in which adapters keep it.

>>> Job("send_receipt", {"order_id": 7}, group_key="order:7")
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from maniflex._ids import new_id
from maniflex.background.json_text import clean, decode, encode
from maniflex.background.runs.handlers import check_type
from maniflex.errors import ValidationFailed

MAX_RETRY = 3
_TEXTS = ("id", "actor_id", "tenant_id", "trace_id", "group_key")
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of background work; `max_retry` is how often it is tried before it is dead."""

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


def dead_letter(job: Job, error: str, type: str | None) -> Job | None:
    """The job that tells of a dead one; None where none is wanted, or it is a dead letter itself."""
    if type is None or type == job.type:
        return None
    payload = {"job_id": job.id, "type": job.type, "payload": job.payload, "error": error}
    payload["attempt"] = job.attempt
    return validate_job(
        Job(type, payload, actor_id=job.actor_id, tenant_id=job.tenant_id, trace_id=job.trace_id)
    )
