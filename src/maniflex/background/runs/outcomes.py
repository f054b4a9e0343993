"""What one attempt at a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned; `result` is JSON text."""

    result: str | None


NO_RESULT = Done(None)


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; `final` when no retry can mend it."""

    code: str
    message: str
    trace: str | None = None
    final: bool = False
    delay: timedelta | None = None
    taken_back: Sequence[str] = ()  # the steps that were, the last one first


@dataclass(frozen=True, slots=True)
class Paused:
    """The handler left the worker on purpose."""

    until: datetime
    waiting_for: str | None
    spent: bool = False  # not on purpose: the way back could not be begun, or it is not known whether it was


@dataclass(frozen=True, slots=True)
class Released:
    """The worker had to stop first; the attempt does not count, unless it was on its way back."""

    spent: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """Cancelled or given to another worker: there is nothing of ours to write."""


Outcome: TypeAlias = Done | Failed | Paused | Released | Dropped
