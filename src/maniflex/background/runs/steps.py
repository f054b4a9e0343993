"""What a run remembers between attempts: the results of its steps and the signals it was sent.

Everything is written only while the run is ours (`LeaseLost` otherwise), so a worker that was given
up for dead cannot slip a result into what its successor does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex.background.jsons import decode, encode
from maniflex.background.lease import Held
from maniflex.background.runs.run import FAILED, UNDO_ATTEMPTS
from maniflex.background.runs.store import RunStore
from maniflex.db.current import current_tx, executor, transaction
from maniflex.db.port import Tx
from maniflex.errors import LeaseLost, RunCancelled


class Memory:
    """The memory of one run during one attempt."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._steps: dict[str, Any] | None = None
        self._compensated: set[str] = set()
        self._undoable: set[str] = set()
        # Of this attempt alone: how often each pause came, what can be taken back, which steps are under way.
        self.counts: dict[str, int] = {}
        self.undo: list[tuple[str, Callable[[Any], Any], Any]] = []
        self.under_way: set[str] = set()

    async def steps(self, run_id: str) -> dict[str, Any]:
        """Results by name; read once per attempt."""
        if self._steps is None:
            rows = await executor(self._store.adapter).write(self._store.bind("steps", id=run_id))
            self._steps = {row[0]: None if row[1] is None else decode(row[1]) for row in rows}
            self._compensated = {row[0] for row in rows if row[2]}
            self._undoable = {row[0] for row in rows if row[3]}
        return self._steps

    async def remember(
        self, held: Held, name: str, result: Any, tx: Tx | None = None, *, undoable: bool = False
    ) -> Any:
        """Keep a result; gives it back as it will be read."""
        text = encode(result, f"result of step {name!r}")
        if undoable:
            self._undoable.add(name)  # also when we do not live to hear that it is written
        ours = {"id": held.id, "lease": held.lease}
        values = {"step": new_id(), "name": name, "result": text, "undoable": undoable, **ours}
        await self._only_ours("remember", held, tx, **values)
        value = decode(text)
        self._keep(name, value, tx or current_tx(self._store.adapter))
        return value

    def _keep(self, name: str, value: Any, tx: Tx | None) -> None:
        steps = self._steps
        if steps is None:
            return
        if tx is None:
            steps[name] = value
        else:  # what is rolled back did not happen
            tx.after_commit(lambda: steps.update({name: value}))

    async def take_signal(self, run_id: str, name: str, tx: Tx) -> tuple[Any] | None:
        """The oldest signal of that name, taken; None when there is none."""
        rows = await tx.write(self._store.bind("take_signal", id=run_id, name=name))
        return (None if rows[0][0] is None else decode(rows[0][0]),) if rows else None

    @property
    def undoing(self) -> str | None:
        """Why the run failed for good, if it did and only goes back."""
        found = None if self._steps is None else self._steps.get(FAILED)
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
        await self._only_ours("compensated", held, None, id=held.id, lease=held.lease, name=name)
        self._compensated.add(name)

    async def _only_ours(self, statement: str, held: Held, tx: Tx | None, **values: Any) -> None:
        sql = self._store.bind(statement, now=self._clock.now(), **values)
        if await executor(self._store.adapter, tx).write(sql):
            return
        if await self._store.is_cancelled(held):
            raise RunCancelled(f"run {held.id} was cancelled")
        raise LeaseLost(f"run {held.id} was given to another worker")
