"""Writes that no transaction rolls back: they are judged before they are done, or only tried.

A backend keeps what it was told to keep. Whoever would let a database write and then look at the row, or
write and roll back to see what would come of it, says so here first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from maniflex.db.port import Row

JudgeRow = Callable[[Row], Awaitable[None]]

_is_trial: ContextVar[bool] = ContextVar("maniflex_trial", default=False)
_judge: ContextVar[JudgeRow | None] = ContextVar("maniflex_judge", default=None)


@contextmanager
def trial() -> Iterator[None]:
    """Everything written inside is rolled back, so what cannot be rolled back is checked and not written."""
    token = _is_trial.set(True)
    try:
        yield
    finally:
        _is_trial.reset(token)


def is_trial() -> bool:
    """Whether what is written now will be rolled back."""
    return _is_trial.get()


@contextmanager
def judged_first(judge: JudgeRow) -> Iterator[None]:
    """A row that cannot be rolled back is shown to `judge` as it becomes, before it is written."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


async def judge_outcome(row: Row) -> None:
    """Show the row to whoever wants to see it before it is written."""
    judge = _judge.get()
    if judge is not None:
        await judge(row)
