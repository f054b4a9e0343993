"""Writes that no transaction rolls back: they are judged before they are done, or only tried.

A backend keeps what it was told to keep. Whoever would let a database write and then look at the row, or
write and roll back to see what would come of it, says so here first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from maniflex.db.port import Row
from maniflex.model.meta import ModelMeta

JudgeRow = Callable[[Row], Awaitable[None]]


class _Judgement(NamedTuple):
    meta: ModelMeta
    record_id: str
    judge: JudgeRow


_is_trial: ContextVar[bool] = ContextVar("maniflex_trial", default=False)
_judgement: ContextVar[_Judgement | None] = ContextVar("maniflex_judgement", default=None)


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
def judged_first(meta: ModelMeta, record_id: str, judge: JudgeRow) -> Iterator[None]:
    """This record, which cannot be rolled back, is shown to `judge` as it becomes, before it is written."""
    token = _judgement.set(_Judgement(meta, record_id, judge))
    try:
        yield
    finally:
        _judgement.reset(token)


async def judge_outcome(meta: ModelMeta, record_id: str, row: Row) -> None:
    """Show the row to the judge of this record, if it has one, before it is written."""
    judgement = _judgement.get()
    if judgement is not None and judgement.meta is meta and judgement.record_id == record_id:
        _judgement.set(None)  # what hooks write to the record afterwards is code's, which no policy judges
        await judgement.judge(row)


def forget_unrolled() -> None:
    """Leave trials and judgements behind, in work that outlives its request."""
    if _is_trial.get() or _judgement.get() is not None:
        _is_trial.set(False)
        _judgement.set(None)
