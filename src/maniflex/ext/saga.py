"""Steps in this process that are undone together: calls of other services, which no transaction takes back.

A `Saga` is not crash-safe: what it has done so far is in memory alone, so a process that dies in the middle
undoes nothing. For steps that must be undone whatever happens, declare a durable one: `server.saga(...)`, or
`compensate=` in the steps of a run.

    booking = Saga("booking").step("hotel", book_hotel, cancel_hotel).step("flight", book_flight)
    await booking.execute(trip)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Self

from maniflex._callables import explain_arguments, is_async
from maniflex.errors import DeclarationError, ManiflexError

__all__ = ["Saga", "UndoFailed"]

log = logging.getLogger("maniflex.saga")
Do = Callable[[Any], Any]  # of the state; plain or async
Backoff = timedelta | float | Callable[[int], timedelta | float]


class UndoFailed(ManiflexError):
    """Steps of a saga could not be undone: `failures` has each step and its error, `cause` what began it."""

    def __init__(
        self, saga: str, cause: BaseException, failures: Sequence[tuple[str, BaseException]]
    ) -> None:
        self.saga = saga
        self.cause = cause
        self.failures = tuple(failures)
        steps = ", ".join(f"{step} ({error!r})" for step, error in self.failures)
        super().__init__(f"saga {saga!r} failed ({cause!r}), and was not undone: {steps}")


class _SagaStep(NamedTuple):
    name: str
    do: Do
    undo: Do | None


class Saga:
    """Steps one after another; where one fails, those before it are undone, the last one first.

    Not crash-safe: it lives and dies with this process.
    """

    @explain_arguments("Saga")
    def __init__(self, name: str, *, undo_attempts: int = 1, undo_backoff: Backoff | None = None) -> None:
        if type(undo_attempts) is not int or undo_attempts < 1:
            raise DeclarationError(f"Saga {name!r}: undo_attempts={undo_attempts!r} is no number from 1 on")
        pause: Any = undo_backoff
        if pause is not None and not callable(pause) and _seconds(pause) < 0:
            raise DeclarationError(f"Saga {name!r}: undo_backoff={undo_backoff!r} is no time")
        self.name = name
        self._undo_attempts = undo_attempts
        self._undo_backoff = undo_backoff
        self._steps: tuple[_SagaStep, ...] = ()

    def step(self, name: str, do: Do, undo: Do | None = None) -> Self:
        """Add a step: `do(state)`, and what takes it back."""
        functions: tuple[Any, ...] = (do,) if undo is None else (do, undo)
        if not all(map(callable, functions)):
            raise DeclarationError(
                f"Saga {self.name!r}: step {name!r}: do and undo are functions of the state"
            )
        if any(step.name == name for step in self._steps):
            raise DeclarationError(f"Saga {self.name!r}: there are two steps called {name!r}")
        self._steps = (*self._steps, _SagaStep(name, do, undo))
        return self

    async def execute(self, state: Any = None) -> Any:
        """Do all steps, and give back the state; the error of a step once those before it are undone.

        `UndoFailed` where that did not work; every undo is tried all the same. A saga that is cancelled is
        undone, too.
        """
        steps_done: list[_SagaStep] = []
        for step in self._steps:
            try:
                await _call(step.do, state)
            except BaseException as error:
                failures = await self._undo(steps_done, state)
                if failures:
                    raise UndoFailed(self.name, error, failures) from error
                raise
            steps_done.append(step)
        return state

    async def _undo(self, done: Sequence[_SagaStep], state: Any) -> list[tuple[str, BaseException]]:
        """Undo these steps, the last one first; the steps for which that failed."""
        outcomes = [(step.name, await self._undo_one(step, state)) for step in reversed(done)]
        return [(name, error) for name, error in outcomes if error is not None]

    async def _undo_one(self, step: _SagaStep, state: Any) -> Exception | None:
        """Undo a step, as often as that is tried; why it failed at last."""
        undo = step.undo
        if undo is None:
            return None
        for attempt in range(1, self._undo_attempts + 1):
            try:
                await _call(undo, state)
            except Exception as error:
                log.warning("saga %s: step %s was not undone (%d): %r", self.name, step.name, attempt, error)
                if attempt == self._undo_attempts:
                    return error
                await asyncio.sleep(self._pause(attempt))
            else:
                return None
        return None

    def _pause(self, attempt: int) -> float:
        """Seconds until the next attempt to undo a step."""
        backoff = self._undo_backoff
        if backoff is None:
            return 0.0
        return _seconds(backoff(attempt) if callable(backoff) else backoff)


def _seconds(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


async def _call(fn: Do, state: Any) -> None:
    """Call a plain function on a thread, so that it keeps nobody waiting, and any other one here."""
    outcome = fn(state) if is_async(fn) else await asyncio.to_thread(fn, state)
    if inspect.isawaitable(outcome):
        await outcome
