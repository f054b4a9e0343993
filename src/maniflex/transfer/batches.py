"""Many changes, few transactions: which of them are stored together, each exactly once.

A batch is one transaction with the note how far the work has come, so a process that is killed leaves either
both or neither. When one change of a batch is refused, nothing of the batch is stored, and each of its
changes gets a transaction of its own: what a refused request wrote before it was refused is never kept.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from maniflex.db.current import trial


class RowResult(StrEnum):
    """What became of a row or a record."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What became of one row or record."""

    line: int
    result: RowResult
    problems: Sequence[tuple[str, str]] = ()
    record_id: str = ""
    fields: Sequence[str] = ()
    is_asked: bool = True  # a request was made, which may have left something in the open transaction


T = TypeVar("T")
BATCH = 200
_LONGEST = 0.5  # seconds that one transaction may keep other writers waiting
Block = Callable[[], AbstractAsyncContextManager[Any]]
Prepare = Callable[[Sequence[T]], Awaitable[None]]
Act = Callable[[T], Awaitable[RowOutcome]]
Settle = Callable[[Sequence[RowOutcome]], Awaitable[None]]


class _RollBack(Exception):
    """Ends a transaction that is not to be kept."""


async def store_batch(
    items: Sequence[T],
    *,
    block: Block,
    prepare: Prepare[T],
    act: Act[T],
    settle: Settle,
    is_rolled_back: bool = True,
) -> list[RowOutcome]:
    """Do these, or the first of them when they take long; `settle` notes what came of them.

    What a transaction does not roll back is done one by one, because none of it could be done again.
    """
    outcomes = None
    if is_rolled_back:
        outcomes = await _together(items, block=block, prepare=prepare, act=act, settle=settle)
    if outcomes is not None:
        return outcomes
    return [await _alone(item, block=block, prepare=prepare, act=act, settle=settle) for item in items]


async def _together(
    items: Sequence[T], *, block: Block, prepare: Prepare[T], act: Act[T], settle: Settle
) -> list[RowOutcome] | None:
    outcomes: list[RowOutcome] = []
    start = time.monotonic()
    try:
        async with block():
            await prepare(items)
            for item in items:
                outcome = await act(item)
                if outcome.result is RowResult.REFUSED and outcome.is_asked:
                    raise _RollBack
                outcomes.append(outcome)
                if time.monotonic() - start > _LONGEST:
                    break
            await settle(outcomes)
    except _RollBack:
        return None
    return outcomes


async def _alone(item: T, *, block: Block, prepare: Prepare[T], act: Act[T], settle: Settle) -> RowOutcome:
    outcome: RowOutcome | None = None
    try:
        async with block():
            await prepare([item])
            outcome = await act(item)
            if outcome.result is RowResult.REFUSED:
                raise _RollBack
            await settle([outcome])
    except _RollBack:
        assert outcome is not None
        async with block():
            await settle([outcome])
    return outcome


async def try_batch(
    items: Sequence[T], *, block: Block, prepare: Prepare[T], act: Act[T]
) -> list[RowOutcome]:
    """What would come of these; nothing is stored."""
    await prepare(items)
    outcomes: list[RowOutcome] = []
    for item in items:
        try:
            async with block():
                with trial():
                    outcomes.append(await act(item))
                raise _RollBack
        except _RollBack:
            pass
    return outcomes
