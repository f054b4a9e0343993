"""Who is asking right now, found by context: durable work notes it down without being told."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Caller(NamedTuple):
    """The identity behind the current request, as far as it is known."""

    actor_id: str | None = None
    tenant_id: str | None = None
    trace_id: str | None = None


class Asking(Protocol):
    """A request that is being answered; who it is from may turn out on the way."""

    def caller(self) -> Caller: ...


asking: ContextVar[Asking | None] = ContextVar("maniflex_asking", default=None)
_NOBODY = Caller()


def caller() -> Caller:
    """The caller of the current request; an empty one outside a request."""
    request = asking.get()
    return _NOBODY if request is None else request.caller()


def keep_answer_secret() -> None:
    """Let no store keep the answer of the current request, which shows a secret once."""
    keep = getattr(asking.get(), "keep_answer_secret", None)
    if keep is not None:  # a run has no answer
        keep()
