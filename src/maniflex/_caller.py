"""Who is asking right now, found by context: durable work and the write seam note it without being told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple, Protocol


class Source(StrEnum):
    """What made a change: where its code was called from, or which rule took the row along."""

    REQUEST = "request"
    ACTION = "action"
    RUN = "run"
    CODE = "code"
    PROVISION = "provision"
    CASCADE = "cascade"
    SET_NULL = "set_null"
    SWEEP = "sweep"
    RETENTION = "retention"
    ERASURE = "erasure"


class Caller(NamedTuple):
    """The identity behind the current request, as far as it is known, and why it acts."""

    actor_id: str | None = None
    tenant_id: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    source: Source = Source.CODE
    reason: str | None = None
    traceparent: str | None = None


class Asking(Protocol):
    """A request that is being answered; who it is from may turn out on the way."""

    def caller(self) -> Caller: ...


asking: ContextVar[Asking | None] = ContextVar("maniflex_asking", default=None)
_NOBODY = Caller()


_NO_FIELDS: Mapping[str, Any] = {}


def current_log_fields() -> Mapping[str, Any]:
    """What a log line written now is about: the ids of the current request or run."""
    fields = getattr(asking.get(), "_log_fields", None)
    return _NO_FIELDS if fields is None else fields()


def caller() -> Caller:
    """The caller of the current request; an empty one outside a request."""
    request = asking.get()
    return _NOBODY if request is None else request.caller()


class _Speaker:
    """The person in whose name a block of code acts, inside a request or outside."""

    def __init__(self, who: Caller, outer: Asking | None) -> None:
        self._who = who
        self._outer = outer

    def caller(self) -> Caller:
        return self._who

    def keep_answer_secret(self) -> None:
        _keep_secret(self._outer)

    def _log_fields(self) -> Mapping[str, Any]:
        fields = getattr(self._outer, "_log_fields", None)
        return _NO_FIELDS if fields is None else fields()


@contextmanager
def speak_as(who: Caller) -> Iterator[None]:
    """A block that acts in the name of `who`, and not of who is asking."""
    before = asking.set(_Speaker(who, asking.get()))
    try:
        yield
    finally:
        asking.reset(before)


def keep_answer_secret() -> None:
    """Let no store keep the answer of the current request, which shows a secret once."""
    _keep_secret(asking.get())


def _keep_secret(request: Asking | None) -> None:
    keep = getattr(request, "keep_answer_secret", None)
    if keep is not None:  # a run has no answer
        keep()
