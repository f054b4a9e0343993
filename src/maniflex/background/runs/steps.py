"""What a run remembers between attempts: the results of its steps and the signals it was sent.

Everything is written only while the run is ours (`LeaseLost` otherwise), so a worker that was given
up for dead cannot slip a result into what its successor does. As long as the run may be ours, what
could not be written for the moment is tried again: else what was done would be done twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from maniflex._backoff import Backoff
from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex._logging import guarded
from maniflex.background.jsons import Unreadable, decode, decode_stored, encode
from maniflex.background.lease import Held
from maniflex.background.runs.open_steps import OpenSteps
from maniflex.background.runs.run import FAILED, UNDO_ATTEMPTS
from maniflex.background.runs.store import RunStore, passes
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Row, Tx
from maniflex.errors import LeaseLost, RequestError, RunCancelled
from maniflex.sql.statement import Sql

_PAUSE = Backoff(base=timedelta(milliseconds=50), cap=timedelta(seconds=2))

log = guarded(logging.getLogger("maniflex.work"))


class Memory:
    """The memory of one run during one attempt."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._steps: dict[str, Any] | None = None
        self._compensated: set[str] = set()
        self._undoable: set[str] = set()
        self._doubted: set[str] = set()  # of the undoable ones: written in a transaction that may not commit
        # Of this attempt alone: how often each pause came, what can be taken back, which steps are under way.
        self.counts: dict[str, int] = {}
        self.undo: list[tuple[str, Callable[[Any], Any], Any]] = []
        self.open_steps = OpenSteps()

    async def steps(self, run_id: str) -> dict[str, Any]:
        """Results by name; read once per attempt."""
        return await self._read(run_id) if self._steps is None else self._steps

    async def settle_doubts(self, run_id: str) -> None:
        """See which steps were committed, where nobody heard of it."""
        if self._steps is None or self._doubted:
            await self._read(run_id)

    async def _read(self, run_id: str) -> dict[str, Any]:
        rows = await self._ask(self._store.bind("steps", id=run_id), None)
        self._steps = {row[0]: decode_stored(row[1]) for row in rows}
        self._compensated = {row[0] for row in rows if row[2]}
        self._undoable = {row[0] for row in rows if row[3]}
        self._doubted.clear()
        return self._steps

    async def remember(
        self,
        held: Held,
        name: str,
        result: Any,
        tx: Tx | None = None,
        *,
        undoable: bool = False,
        step: str | None = None,
    ) -> Any:
        """Keep a result; gives it back as it will be read. With a `step` id, twice is the same as once."""
        text = encode(result, f"result of step {name!r}")
        if undoable:  # also when we do not live to hear that it is written
            (self._doubted if self._within(tx) else self._undoable).add(name)
        ours = {"id": held.id, "lease": held.lease}
        values = {"step": step or new_id(), "name": name, "result": text, "undoable": undoable, **ours}
        await self._only_ours("remember", held, tx, **values)
        value = decode(text)
        self.once_written(partial(self._note, name, value, undoable), tx)
        return value

    def once_written(self, call: Callable[[], None], tx: Tx | None) -> None:
        """Call it now, or when the transaction commits: what is rolled back did not happen."""
        on = self._within(tx)
        if on is None:
            call()
        else:
            on.after_commit(call)

    def _note(self, name: str, value: Any, undoable: bool) -> None:
        if self._steps is not None:
            self._steps[name] = value
        if undoable:
            self._undoable.add(name)
            self._doubted.discard(name)

    async def take_signal(self, run_id: str, name: str, tx: Tx) -> tuple[Any] | None:
        """The oldest signal of that name, taken; None when there is none."""
        rows = await tx.write(self._store.bind("take_signal", id=run_id, name=name))
        return (decode_stored(rows[0][0]),) if rows else None

    @property
    def undoing(self) -> str | None:
        """Why the run failed for good, if it did and only goes back."""
        found = None if self._steps is None else self._steps.get(FAILED)
        if isinstance(found, Unreadable):
            return "why it failed cannot be read"
        return None if found is None else str(found["reason"])

    @property
    def owed(self) -> set[str]:
        """Finished steps that are still to be taken back."""
        return self._undoable - self._compensated

    def is_compensated(self, name: str) -> bool:
        return name in self._compensated

    async def begin_undo(self, held: Held, reason: str, max_attempts: int) -> None:
        """Write down that the run only goes back from here, and give that attempts of its own."""
        failed = {"reason": reason, "max_attempts": max_attempts}  # those that a retry has again
        async with transaction(self._store.adapter) as tx:
            await self._only_ours("allow", held, tx, id=held.id, lease=held.lease, more=UNDO_ATTEMPTS)
            await self.remember(held, FAILED, failed, tx)

    async def mark_compensated(self, held: Held, name: str) -> None:
        """Write down that a step is taken back; one that is not stored needs no more than that."""
        ours = {"id": held.id, "lease": held.lease}
        sql = self._store.bind("compensated", now=self._clock.now(), name=name, **ours)
        if not await self._ask(sql, None) and not await self._store.owns(held):
            await self._refuse(held)
        self._compensated.add(name)

    async def _only_ours(self, statement: str, held: Held, tx: Tx | None, **values: Any) -> None:
        sql = self._store.bind(statement, now=self._clock.now(), **values)
        if not await self._ask(sql, tx):
            await self._refuse(held)

    async def _refuse(self, held: Held) -> NoReturn:
        if await self._store.is_cancelled(held):
            raise RunCancelled(f"run {held.id} was cancelled")
        raise LeaseLost(f"run {held.id} was given to another worker")

    @property
    def in_transaction(self) -> bool:
        """Whether what is remembered now belongs to the handler's open transaction."""
        return self._within(None) is not None

    def _within(self, tx: Tx | None) -> Tx | None:
        return tx or current_tx(self._store.adapter)

    def _ask(self, sql: Sql, tx: Tx | None) -> Awaitable[list[Row]]:
        """Ask until the database answers; an open transaction is lost with the first failure."""
        on = self._within(tx)
        return self._ask_again(sql) if on is None else on.write(sql)

    async def _ask_again(self, sql: Sql) -> list[Row]:
        failures = 0
        while True:
            try:
                return await self._store.adapter.write(sql)
            except RequestError as error:
                if not passes(error):
                    raise
                failures += 1
                if failures == 1:
                    log.warning("what a run remembers cannot be reached yet: %s", error, exc_info=error)
                await asyncio.sleep(_PAUSE(failures).total_seconds())
