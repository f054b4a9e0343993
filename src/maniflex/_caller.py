"""Who is asking right now, found by context: durable work and the write seam note it without being told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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

    def database(self) -> object | None:
        """The database of the server that answers, which tells servers of one process apart."""


asking: ContextVar[Asking | None] = ContextVar("maniflex_asking", default=None)
# The database of the server that a service, a hook or a task of its own belongs to.
_serving: ContextVar[object | None] = ContextVar("maniflex_serving", default=None)
NOBODY = Caller()


def current_database() -> object | None:
    """The database of the server that the code which runs now is of; None where that is not known."""
    request = asking.get()
    database = None if request is None else request.database()
    return _serving.get() if database is None else database


@contextmanager
def serve_from(database: object | None) -> Iterator[None]:
    """A block of a server's own code, and of no request: what begins in it is of that server."""
    serving_before, asking_before = _serving.set(database), asking.set(None)
    try:
        yield
    finally:
        asking.reset(asking_before)
        _serving.reset(serving_before)


def forget_request() -> None:
    """Let this context be of no request any more, and still of its server."""
    _serving.set(current_database())
    asking.set(None)


_NO_FIELDS: Mapping[str, Any] = {}


def current_log_fields() -> Mapping[str, Any]:
    """What a log line written now is about: the ids of the current request or run."""
    fields = getattr(asking.get(), "_log_fields", None)
    return _NO_FIELDS if fields is None else fields()


def caller() -> Caller:
    """The caller of the current request; an empty one outside a request."""
    request = asking.get()
    return NOBODY if request is None else request.caller()


class _Speaker:
    """The person in whose name a block of code acts, inside a request or outside."""

    def __init__(
        self, who: Caller | None, outer: Asking | None, database: Callable[[], object | None] | None
    ) -> None:
        self._who = who  # None: who is asking already
        self._outer = outer
        self._database = database  # None: the one of who is asking

    def caller(self) -> Caller:
        if self._who is not None:
            return self._who
        return NOBODY if self._outer is None else self._outer.caller()

    def database(self) -> object | None:
        if self._database is not None:
            return self._database()
        return None if self._outer is None else self._outer.database()

    def keep_answer_secret(self) -> None:
        _keep_secret(self._outer)

    def _log_fields(self) -> Mapping[str, Any]:
        fields = getattr(self._outer, "_log_fields", None)
        return _NO_FIELDS if fields is None else fields()


@contextmanager
def speak_as(who: Caller | None, database: Callable[[], object | None] | None = None) -> Iterator[None]:
    """A block that acts in the name of `who`, and not of who is asking; on the server of that database."""
    before = asking.set(_Speaker(who, asking.get(), database))
    try:
        yield
    finally:
        asking.reset(before)


def act_on(database: object | None) -> AbstractContextManager[None]:
    """A block that acts on the server of that database, whichever server has called it."""
    return speak_as(None, lambda: database)


def keep_answer_secret() -> None:
    """Let no store keep the answer of the current request, which shows a secret once."""
    _keep_secret(asking.get())


def _keep_secret(request: Asking | None) -> None:
    keep = getattr(request, "keep_answer_secret", None)
    if keep is not None:  # a run has no answer
        keep()
