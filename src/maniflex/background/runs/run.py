"""`Run`, what a handler is given: the payload, and durable steps, pauses and signals.

A handler that pauses leaves the worker and is called again later from its first line; steps it has
finished are not repeated but give what they gave before. So the order of steps has to be the
same every time, and what happens between them must not matter.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, NoReturn, overload

from typing_extensions import TypeVar

from maniflex._callables import is_async
from maniflex._caller import Caller, Source
from maniflex._json import Unreadable, Unstored, is_text, is_unreadable, not_stored
from maniflex._threads import on_thread
from maniflex.background.declaring import as_duration
from maniflex.background.leases import Held
from maniflex.background.parameters import instant
from maniflex.background.runs import rows as checks
from maniflex.background.runs.engine import CHILD, RunEngine
from maniflex.background.runs.model import Status
from maniflex.background.runs.outcomes import FOREVER, RetryIn, Suspend, Undone, pause_after
from maniflex.background.runs.rows import ClaimedRun
from maniflex.background.runs.step_memory import FAILED, OURS, UNDO_ATTEMPTS, OpenSteps, StepMemory
from maniflex.db.current import current_tx, transaction
from maniflex.errors import DeclarationError, Fatal, LeaseLost, NotFound, RunCancelled, RunFailed

T = TypeVar("T")
P = TypeVar("P", default=Any)
LOOK_AGAIN = timedelta(seconds=30)  # a missed hint about a sub-run delays its parent as long as it
LOOK_RARELY = timedelta(hours=1)  # has waited already, within these two

log = logging.getLogger("maniflex.work")


class Run(Generic[P]):
    """One attempt at a durable run; `Run[Receipt]` tells a type checker what its payload is."""

    __slots__ = (
        "_engine",
        "_held",
        "_key_id",
        "_remembers",
        "actor_id",
        "attempt",
        "cancelled",
        "group_key",
        "handed_back",
        "id",
        "max_attempts",
        "over",
        "parent_id",
        "payload",
        "tenant_id",
        "trace_id",
        "traceparent",
        "type",
    )

    def __init__(self, claimed: ClaimedRun, payload: P, engine: RunEngine) -> None:
        self.id = claimed.id
        self.type = claimed.type
        self.payload = payload
        self.attempt = claimed.attempt
        self.max_attempts = claimed.max_attempts
        self.actor_id = claimed.actor_id
        self.tenant_id = claimed.tenant_id
        self.trace_id = claimed.trace_id
        self.traceparent = claimed.traceparent  # of the span that submitted it, or of its own
        self.parent_id = claimed.parent_id
        self.group_key = claimed.group_key
        self.cancelled = False
        self.handed_back = False  # the worker stops and cannot wait for us
        self.over = False  # the handler returned or raised: what it left behind begins nothing any more
        self._held: Held = claimed.held
        self._key_id = claimed.key_id
        self._remembers: StepMemory | None = None
        self._engine = engine

    @property
    def _memory(self) -> StepMemory:
        """Made when it is needed: most runs have no steps, and thousands a second should cost little."""
        if self._remembers is None:
            self._remembers = StepMemory(
                self._engine.store, self._engine.clock, self._engine.sealing, self._key_id
            )
        return self._remembers

    @property
    def is_encrypted(self) -> bool:
        """Whether what it leaves is stored encrypted."""
        return self._key_id is not None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records say which run they are about."""
        return logging.LoggerAdapter(log, self._log_fields())

    def _log_fields(self) -> dict[str, Any]:
        """What log lines say of this run."""
        return {
            "run_id": self.id,
            "run_type": self.type,
            "attempt": self.attempt,
            "trace_id": self.trace_id or "",
            "traceparent": self.traceparent or "",
            "user_id": self.actor_id or "",
            "tenant_id": self.tenant_id or "",
        }

    def caller(self) -> Caller:
        """On whose behalf the run was submitted."""
        return Caller(
            self.actor_id,
            self.tenant_id,
            self.trace_id,
            request_id=f"run:{self.id}",
            source=Source.RUN,
            traceparent=self.traceparent,
        )

    def database(self) -> object:
        """The database of the server that works on it, which tells servers of one process apart."""
        return self._engine.store.adapter

    def scope(self) -> AbstractContextManager[object]:
        """A block in which scope rules bind `server.db` by the caller of the run."""
        return self._engine.bind_caller(self.caller())

    def __repr__(self) -> str:
        return f"<Run {self.type} {self.id} attempt {self.attempt}>"

    # -- steps

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        compensate: Callable[[Any], Any] | None = None,
        transactional: bool = False,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        compensate: Callable[[Any], Any] | None = None,
        transactional: bool = False,
        **kwargs: Any,
    ) -> T: ...
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        compensate: Callable[[Any], Any] | None = None,
        transactional: bool = False,
        **kwargs: Any,
    ) -> Any:
        """What `fn(*args)` returns, remembered: a retry is given it without calling `fn` again.

        `compensate(result)` is called when the run fails for good, those of later steps first. A
        `transactional` step runs inside the transaction that remembers it, so that what it writes
        to this database happens exactly once.
        """
        if not name or not is_text(name):
            raise DeclarationError("a step has a name, a text without NUL and lone surrogates")
        row_name = stored_name(name)
        with self._memory.open_steps.open(name):
            is_done, result = await self._recall_step(row_name)
            if not is_done:
                keep = self._memory.keeper(self._held, name, row_name, compensate)
                return await self._perform(name, partial(fn, *args, **kwargs), keep, transactional)
        if compensate is not None:
            self._memory.undo.append((name, compensate, result))
        return result

    async def _perform(self, name: str, call: partial[Any], keep: Any, transactional: bool) -> Any:
        steps = self._memory.open_steps
        if transactional:
            async with transaction(self._engine.store.adapter) as tx:
                return await keep(await steps.perform(name, call, None), tx)
        if self._memory.in_transaction:  # what it wrote is undone with the handler's transaction
            return await keep(await steps.perform(name, call, None))
        return await steps.perform(name, call, keep)

    async def _recall_step(self, name: str) -> tuple[bool, Any]:
        self._check()
        if self.over and self.undoing is None:
            raise LeaseLost("this attempt is over; it begins no step any more")
        steps = await self._memory.steps(self.id)
        if name in steps:
            result = steps[name]
            if isinstance(result, Unstored):
                raise not_stored(f"result of step {name!r}", "could not be stored")
            if isinstance(result, Unreadable):  # done again, it would be done twice
                raise Fatal(f"what step {name!r} returned cannot be read: {result.reason}")
            return True, result
        if self.undoing is not None:
            raise Undone(self.undoing)
        return False, None

    # -- pauses

    async def sleep(self, duration: timedelta | float, name: str | None = None) -> None:
        """Leave the worker and go on after `duration`; survives restarts."""
        self._may_pause()
        step = self._step_name("sleep", name)
        is_done, until = await self._recall_step(step)
        if not is_done:
            wake = self._engine.clock.now() + as_duration(duration, "a sleep")
            until = await self._memory.remember(self._held, step, wake.isoformat())
        if instant(until) > self._engine.clock.now():
            raise Suspend(instant(until))

    async def wait_for(self, name: str, timeout: timedelta | float | None = None) -> Any:
        """The payload of the next signal called `name`; `TimeoutError` when none comes in time."""
        self._may_pause()
        checks.signal_name(name)
        step = self._step_name("signal", name)
        is_done, outcome = await self._recall_step(step)
        if not is_done:
            outcome = await self._receive(step, name, timeout)
        if outcome["timed_out"]:
            raise TimeoutError(f"no signal {name!r} came in time")
        return outcome["payload"]

    async def _receive(self, step: str, name: str, timeout: timedelta | float | None) -> dict[str, Any]:
        until = FOREVER
        if timeout is not None:
            deadline = self._engine.clock.now() + as_duration(timeout, "a timeout")
            ends = step.replace("signal", "deadline", 1)
            has_deadline, deadline_text = await self._recall_step(ends)
            if not has_deadline:
                deadline_text = await self._memory.remember(self._held, ends, deadline.isoformat())
            until = instant(deadline_text)
        async with transaction(self._engine.store.adapter) as tx:
            signal = await self._memory.take_signal(self.id, name, tx)
            if signal is not None and isinstance(signal[0], Unreadable):
                raise Fatal(f"the signal {name!r} cannot be read: {signal[0].reason}")
            if signal is None and until > self._engine.clock.now():
                raise Suspend(until, name)
            outcome = {"timed_out": signal is None, "payload": None if signal is None else signal[0]}
            await self._memory.remember(self._held, step, outcome, tx)
        return outcome

    async def signal(self, id: str, name: str, payload: Any = None) -> None:
        """Tell another run something it waits for, once however often we are retried."""
        checks.signal_name(name)
        step = self._step_name("signalled", name)
        is_done, _ = await self._recall_step(step)
        if not is_done:
            async with transaction(self._engine.store.adapter) as tx:
                await self._engine.signal(id, name, payload, tx=tx)
                await self._memory.remember(self._held, step, id, tx)

    # -- sub-runs

    async def submit(self, type: str, payload: Any = None, *, name: str | None = None, **options: Any) -> str:
        """Submit a run of our own, once however often we are retried; returns its id."""
        return await self._submit(self._step_name("run", name), type, payload, **options)

    async def _submit(self, step: str, type: str, payload: Any, **options: Any) -> str:
        is_done, child_id = await self._recall_step(step)
        if not is_done:
            ours = {"actor_id": self.actor_id, "tenant_id": self.tenant_id, "trace_id": self.trace_id}
            async with transaction(self._engine.store.adapter) as tx:
                child_options: Any = {**ours, **options, "parent_id": self.id, "tx": tx}
                child = await self._engine.submit(type, payload, **child_options)
                child_id = await self._memory.remember(self._held, step, child.id, tx)
        return str(child_id)

    async def call(self, type: str, payload: Any = None, *, name: str | None = None, **options: Any) -> Any:
        """Submit a run and leave the worker until it is done; its result, or `RunFailed`."""
        self._may_pause()
        step = self._step_name("call", name)
        is_done, outcome = await self._recall_step(step)
        if not is_done:
            child_id = await self._submit(step.replace("call", "child", 1), type, payload, **options)
            outcome = await self._outcome(child_id)
            await self._memory.remember(self._held, step, outcome)
        if outcome["status"] != Status.SUCCEEDED:
            raise RunFailed(outcome["id"], outcome["status"], outcome["error"])
        return outcome["result"]

    async def _outcome(self, child_id: str) -> dict[str, Any]:
        """What came of a run of ours; as long as nothing did, we leave the worker."""
        try:
            async with transaction(self._engine.store.adapter) as tx:  # a replica may not know it yet
                child = await self._engine.get(child_id, tx=tx)
        except NotFound:
            return {"id": child_id, "status": "deleted", "result": None, "error": None}
        if not child.finished:
            now = self._engine.clock.now()
            pause = min(max(LOOK_AGAIN, now - child.created_at), LOOK_RARELY)
            raise Suspend(now + pause, f"{CHILD}{child_id}")
        if is_unreadable(child.result):
            why = "its result cannot be read"
            return {"id": child_id, "status": "unreadable", "result": None, "error": why}
        return {
            "id": child_id,
            "status": child.status,
            "result": child.result,
            "error": child.last_error,
        }

    # -- being told and telling

    async def heartbeat(self) -> None:
        """Ask whether the run is still ours: `RunCancelled` or `LeaseLost` when it is not."""
        if not await self._engine.store.owns(self._held):
            self.cancelled = True
            if not await self._engine.store.is_cancelled(self._held):
                raise LeaseLost(f"run {self.id} was given to another worker")
        self._check()

    def retry_in(self, delay: timedelta | float, reason: str = "the handler asked for a retry") -> NoReturn:
        """End this attempt as failed and try again after `delay`, while attempts are left."""
        raise RetryIn(as_duration(delay, "a delay"), reason)

    def _check(self) -> None:
        if self.cancelled:
            raise RunCancelled(f"run {self.id} was cancelled")

    def _may_pause(self) -> None:
        if current_tx(self._engine.store.adapter) is not None:  # what it remembers would be rolled back
            raise DeclarationError("a run cannot pause inside a transaction")

    def _step_name(self, kind: str, name: str | None) -> str:
        """What a pause is remembered as: its kind, which of its name it is in this run, and the name."""
        checks.text("name", name)
        label = f"{kind}:{name or ''}"
        self._memory.counts[label] = count = self._memory.counts.get(label, 0) + 1
        return f"{OURS}{kind}:{count}:{name or ''}"

    # -- going back

    @property
    def undoing(self) -> str | None:
        """Why the run failed for good; from then on it only takes back its steps."""
        return None if self._remembers is None else self._remembers.undoing

    @property
    def unreached(self) -> set[str]:
        """Steps that are to be taken back and that this attempt did not come to."""
        return self._memory.owed - {stored_name(name) for name, _, _ in self._memory.undo}

    @property
    def reachable(self) -> set[str]:
        """Of those, the ones that another attempt may come to."""
        return self.unreached - self._memory.lost

    @property
    def unstored(self) -> Mapping[str, str]:
        """Steps to be taken back with results that only this attempt has, and why these are not stored."""
        return {} if self._remembers is None else self._remembers.unstored

    @property
    def taken_back(self) -> list[str]:
        """The steps of this attempt that were taken back, in the order that happened."""
        memory = self._memory
        return [name for name, _, _ in reversed(memory.undo) if memory.is_compensated(stored_name(name))]

    async def recall(self) -> None:
        """Read the stored steps."""
        await self._memory.steps(self.id)

    def later(self) -> datetime:
        """When to ask a database again that was away."""
        return self._engine.clock.now() + LOOK_AGAIN

    async def turn_back(self, reason: str) -> bool:
        """Begin to go back, if there is anything to take back; not when we did before."""
        await self._memory.settle_doubts(self.id)
        if self.undoing is not None or not (self._memory.undo or self._memory.owed):
            return False
        more = self._attempts_to_undo()
        await self._memory.begin_undo(self._held, reason, self.max_attempts, more)
        self.max_attempts = self.attempt + more
        return True

    def _attempts_to_undo(self) -> int:
        """How many attempts there are to take steps back, behind this one."""
        handler = self._engine.handlers.get(self.type)
        if handler is None or handler.undo_attempts is None:
            return UNDO_ATTEMPTS
        # This attempt is the first of them, unless it did not get to all that there is to take back.
        return handler.undo_attempts if self.reachable else handler.undo_attempts - 1

    def undo_pause(self) -> timedelta | None:
        """How long to wait behind an attempt that did not take all steps back; None: as behind any other."""
        handler = self._engine.handlers.get(self.type)
        if handler is None or handler.undo_backoff is None:
            return None
        attempts = (handler.undo_attempts or UNDO_ATTEMPTS + 1) - (self.max_attempts - self.attempt)
        return pause_after(handler.undo_backoff, max(attempts, 1))

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to end with it: no step was begun, no worker told it to stop."""
        return self._remembers is None and not self.handed_back

    @property
    def open_steps(self) -> OpenSteps | None:
        """The steps under way; None where there never was one."""
        return None if self._remembers is None else self._remembers.open_steps

    async def _mark_taken_back(self, row_name: str, result: Any) -> None:
        await self._memory.mark_compensated(self._held, row_name)

    async def compensate(self, only: Container[str] | None = None) -> None:
        """Undo the finished steps this attempt came to, the last one first, each once."""
        for name, undo, result in reversed(self._memory.undo):
            row_name = stored_name(name)
            if not self._memory.is_compensated(row_name) and (only is None or row_name in only):
                mark = partial(self._mark_taken_back, row_name)
                await self._memory.open_steps.perform(name, partial(undo, result), mark)
        if self.undoing is not None and not self.unreached:
            await self._memory.mark_compensated(self._held, FAILED)


def stored_name(name: str) -> str:
    """What a step of that name is remembered as: never as something of the engine's."""
    return f"{OURS}{name}" if name.startswith(OURS) else name


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an async function here and a plain one on a thread."""
    if is_async(fn):
        return await fn(*args, **kwargs)
    outcome = await on_thread(partial(fn, *args, **kwargs))
    return await outcome if inspect.isawaitable(outcome) else outcome
