"""`Saga`: steps of this process, undone in reverse where one fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from maniflex import DeclarationError
from maniflex.ext.saga import Saga, UndoFailed

Log = list[str]


def step(name: str, *, fails: bool = False) -> tuple[str, object, object]:
    async def do(log: Log) -> None:
        log.append(f"+{name}")
        if fails:
            raise LookupError(name)

    def undo(log: Log) -> None:
        log.append(f"-{name}")

    return name, do, undo


def saga_of(*steps: tuple[str, object, object], **options: object) -> Saga:
    saga = Saga("test", **options)  # type: ignore[arg-type]  # of each test
    for name, do, undo in steps:
        saga.step(name, do, undo)  # type: ignore[arg-type]  # functions
    return saga


async def test_all_steps_are_done_in_order_and_the_state_comes_back() -> None:
    log: Log = []
    assert await saga_of(step("a"), step("b")).execute(log) is log
    assert log == ["+a", "+b"]


async def test_where_one_fails_those_before_are_undone_and_its_error_goes_on() -> None:
    log: Log = []
    with pytest.raises(LookupError):
        await saga_of(step("a"), step("b"), step("c", fails=True), step("d")).execute(log)
    assert log == ["+a", "+b", "+c", "-b", "-a"]


async def test_every_undo_is_tried_and_those_that_fail_are_told() -> None:
    log: Log = []

    def broken(log: Log) -> None:
        log.append("-b")
        raise OSError("away")

    name, do, _ = step("b")
    with pytest.raises(UndoFailed) as failure:
        await saga_of(step("a"), (name, do, broken), step("c", fails=True)).execute(log)
    assert log == ["+a", "+b", "+c", "-b", "-a"]
    assert [(step, type(error)) for step, error in failure.value.failures] == [("b", OSError)]
    assert isinstance(failure.value.cause, LookupError)
    assert failure.value.__cause__ is failure.value.cause


async def test_an_undo_is_tried_as_often_as_said_with_its_pauses() -> None:
    log: Log = []
    pauses: list[int] = []

    def undo(log: Log) -> None:
        log.append("-a")
        if log.count("-a") < 3:
            raise OSError("away")

    def pause(attempt: int) -> timedelta:
        pauses.append(attempt)
        return timedelta(0)

    name, do, _ = step("a")
    saga = saga_of((name, do, undo), step("b", fails=True), undo_attempts=3, undo_backoff=pause)
    with pytest.raises(LookupError):
        await saga.execute(log)
    assert (log.count("-a"), pauses) == (3, [1, 2])


async def test_a_saga_that_is_cancelled_is_undone() -> None:
    log: Log = []
    entered = asyncio.Event()

    async def wait(log: Log) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(saga_of(step("a"), ("wait", wait, None)).execute(log))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["+a", "-a"]


def test_mistakes_are_told() -> None:
    with pytest.raises(DeclarationError, match="undo_attempts"):
        Saga("x", undo_attempts=0)
    with pytest.raises(DeclarationError, match="two steps"):
        saga_of(step("a"), step("a"))
    with pytest.raises(DeclarationError, match="functions"):
        Saga("x").step("a", "no")  # type: ignore[arg-type]
