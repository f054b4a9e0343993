"""Jobs as durable runs, in the database of the application: the adapter to choose first.

A job is a run of its type in `workflow_run`, and a handler of jobs is a handler of runs: the workers of
`server.work` work on them. Enqueueing joins the open transaction: rolled back, there is no job; committed,
it survives everything the database survives.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from maniflex.background.jobs.job import Job, validate_job
from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import payload_text
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.rows import RunDraft
from maniflex.db.port import Tx


class SqlQueue:
    """A queue made of the runs of `server.work`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def enqueue(self, job: Job, *, tx: Tx | None = None) -> str:
        """Store the job; inside a transaction it is there when that commits."""
        runs = self._work.require_sealed().runs
        payload = job.payload
        job, now = validate_job(replace(job, payload=None)), runs.clock.now()
        text = payload_text(runs.handlers.get(job.type), payload)
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
        await runs.store.submit(draft, [(job.id, text, None)], now, tx)
        if when <= now:
            runs.wake_after(tx)
        return job.id

    async def enqueue_at(self, job: Job, when: datetime, *, tx: Tx | None = None) -> str:
        """Store the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when), tx=tx)

    async def cancel(self, id: str) -> None:
        """Cancel a job that waits."""
        await self._work.cancel(id, running=False)


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
