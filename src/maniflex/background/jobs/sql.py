"""Jobs as durable runs, in the database of the application: the adapter to choose first.

A job is a run of its type in `workflow_run`. Enqueueing joins the open transaction: rolled back, there
is no job; committed, it survives everything the database survives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from maniflex._ids import new_id
from maniflex.background.clock import may_take_over
from maniflex.background.jobs.inproc import ABANDONED
from maniflex.background.jobs.job import Job, Result, dead_letter, validate_job
from maniflex.background.jobs.port import Delivery, Recovered
from maniflex.background.json_text import decode, encode
from maniflex.background.leases import Held
from maniflex.background.runs.api import Work
from maniflex.background.runs.claim_cursor import ClaimCursor
from maniflex.background.runs.handlers import payload_text
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.rows import ClaimedRun, Reaped, RunChange, RunDraft
from maniflex.background.runs.store import CHANNEL
from maniflex.db.current import transaction
from maniflex.db.port import Adapter, Tx
from maniflex.errors import Conflict, NotFound, Unavailable

OWNER = "jobs"


class SqlQueue:
    """A queue, and the source of its workers, made of the runs of `server.work`."""

    def __init__(self, work: Work, *, lease: timedelta | None = None) -> None:
        self._work = work
        self._lease = lease

    @property
    def lease(self) -> timedelta:
        return self._lease or self._work.environment.config.work_lease

    @lease.setter
    def lease(self, lease: timedelta) -> None:
        self._lease = lease

    # -- for producers

    async def enqueue(self, job: Job, *, tx: Tx | None = None) -> str:
        """Store the job; inside a transaction it is there when that commits."""
        work = self._work
        work.ready()
        payload = job.payload
        job, now = validate_job(replace(job, payload=None)), work.clock.now()
        text = payload_text(work.handlers.get(job.type), payload)
        when = job.not_before or now
        draft = RunDraft(
            job.type,
            when,
            job.max_retry,
            group_key=job.group_key,
            actor_id=job.actor_id,
            tenant_id=job.tenant_id,
            trace_id=job.trace_id,
        )
        await work.store.submit(draft, [(job.id, text, None)], now, tx)
        if when <= now:
            work.wake_after(tx)
        return job.id

    async def enqueue_at(self, job: Job, when: datetime, *, tx: Tx | None = None) -> str:
        """Store the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when), tx=tx)

    async def cancel(self, id: str) -> None:
        """Cancel a job that waits."""
        await self._work.cancel(id, running=False)

    # -- for workers

    def sibling(self) -> _Line:
        return _Line(self, self._work.store.adapter.sibling())

    async def open(self) -> None:
        """The server opens its database."""

    async def close(self) -> None:
        """The server closes its database."""

    async def claim(self, types: Sequence[str], limit: int) -> list[Delivery]:
        """Lease due runs of exactly these types."""
        ranges = sorted((type, f"{type}\x01") for type in types)
        now = self._work.clock.now()
        try:
            runs = await self._work.store.claim(
                ranges, limit, OWNER, now, self.lease, {}, new_id(), ClaimCursor()
            )
        except Conflict:  # another worker took a run of the same group in the same moment
            return []
        deliveries = []
        for run in runs:
            try:
                deliveries.append(Delivery(_of_claimed(run), run.held.lease))
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                await self._refuse(run, f"the payload cannot be read: {error}")
        return deliveries

    async def _refuse(self, run: ClaimedRun, reason: str) -> None:
        """Fail a run at once whose payload no handler can read."""
        delivery = Delivery(Job(run.type, id=run.id, attempt=run.attempt), run.held.lease)
        change = _failure_change(delivery, "failed", "failed", reason, None)
        await self._work.store.settle([change], self._work.clock.now())

    async def extend(self, held: Sequence[Held]) -> set[str]:
        """Push back the end of the leases."""
        return await self.extend_on(self._work.store.adapter, held)

    async def extend_on(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        until = self._work.clock.now() + self.lease
        return (await self._work.store.renew(adapter, [(one, until) for one in held])).gone

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        """The run succeeded with this result."""
        result_json = result.stored()
        text = None if result_json is None else encode(result_json, "result")
        written_ids = await self._work.store.succeed([(delivery.held, text)], self._work.clock.now())
        return bool(written_ids) or await self._was_written(delivery.held, "succeeded", delivery.job.attempt)

    async def retry(self, delivery: Delivery, at: datetime, error: str) -> bool:
        """Wait for another attempt."""
        return await self._settle(_failure_change(delivery, "pending", "retried", error, at), delivery)

    async def release(self, delivery: Delivery) -> bool:
        """Be as if it had not been delivered."""
        data = _json({"attempt": delivery.job.attempt})
        now = self._work.clock.now()
        change = RunChange(delivery.held, "pending", "released", data, now, unspent=1)
        return await self._settle(change, delivery)

    async def bury(self, delivery: Delivery, error: str, letter: Job | None) -> bool:
        """The run failed; its letter is enqueued in the same transaction."""
        change = _failure_change(delivery, "failed", "failed", error, None)
        async with transaction(self._work.store.adapter) as tx:
            is_ours = await self._settle(change, delivery, tx)
            if is_ours and letter is not None:
                await self.enqueue(letter, tx=tx)
        return is_ours

    async def recover(self, types: Sequence[str], letter: str | None) -> list[Recovered]:
        """Take back runs whose lease was not extended in time."""
        work = self._work
        now = work.clock.now()
        if not may_take_over(work.clock) or not await work.store.has_expired(now):
            return []
        async with transaction(work.store.adapter) as tx:
            reaped_runs = await work.store.reap(now, types, tx=tx)
            recoveries = [
                await self._recover_run(one, letter, tx) for one in reaped_runs if one.type in types
            ]
        return [one for one in recoveries if one is not None]

    async def _recover_run(self, reaped: Reaped, letter: str | None, tx: Tx) -> Recovered | None:
        try:
            job = of_run(await self._work.records(tx).read(reaped.id))
        except NotFound:  # deleted while it ran: nobody misses it
            return None
        dead = reaped.status == "failed"
        letter_job = dead_letter(job, ABANDONED, letter) if dead else None
        if letter_job is not None:
            await self.enqueue(letter_job, tx=tx)
        return Recovered(job, dead, letter_job)

    @asynccontextmanager
    async def listen(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        async with self._work.store.adapter.listen(CHANNEL, wake):
            self._work.workers.append(wake)
            try:
                yield
            finally:
                self._work.workers.remove(wake)

    async def _settle(self, change: RunChange, delivery: Delivery, tx: Tx | None = None) -> bool:
        written_ids = await self._work.store.settle([change], self._work.clock.now(), tx)
        return bool(written_ids) or await self._was_written(
            change.held, change.status, delivery.job.attempt - change.unspent
        )

    async def _was_written(self, held: Held, status: str, attempt: int) -> bool:
        """Whether an earlier write, whose answer was lost, settled the run; a locked run is tried again."""
        state = (await self._work.store.states([held.id])).get(held.id)
        if state is None:
            return False
        if (state.status, state.lease) == ("leased", held.lease):
            raise Unavailable("the run is locked by somebody; its outcome has to wait")
        return (state.status, state.lease, state.attempt) == (status, None, attempt)


class _Line:
    """The connection on which the `LeaseKeeper` of a worker renews its leases."""

    def __init__(self, queue: SqlQueue, adapter: Adapter) -> None:
        self._queue = queue
        self._adapter = adapter

    async def open(self) -> None:
        await self._adapter.open()

    async def close(self) -> None:
        await self._adapter.close()

    async def extend(self, held: Sequence[Held]) -> set[str]:
        return await self._queue.extend_on(self._adapter, held)


def of_run(run: WorkflowRun) -> Job:
    """The job a stored run is."""
    return Job(
        run.type,
        run.payload,
        actor_id=run.actor_id,
        tenant_id=run.tenant_id,
        trace_id=run.trace_id,
        max_retry=run.max_attempts,
        not_before=run.run_at,
        group_key=run.group_key,
        id=run.id,
        attempt=run.attempt,
    )


def _of_claimed(run: ClaimedRun) -> Job:
    if run.payload is None:
        raise ValueError("what is stored is not text")
    return Job(
        run.type,
        decode(run.payload),
        actor_id=run.actor_id,
        tenant_id=run.tenant_id,
        trace_id=run.trace_id,
        max_retry=run.max_attempts,
        group_key=run.group_key,
        id=run.id,
        attempt=run.attempt,
    )


def _failure_change(
    delivery: Delivery, status: str, event: str, error: str, at: datetime | None
) -> RunChange:
    attempt = delivery.job.attempt
    stored_error = {"code": "error", "message": error, "attempt": attempt}
    data: dict[str, Any] = {"attempt": attempt, "error": error}
    if at is not None:
        data["run_at"] = at.isoformat()
    return RunChange(delivery.held, status, event, _json(data), at, 0, _json(stored_error), error)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
