"""What clients see of jobs: one row each, at `/job_statuses`.

For jobs that are runs the rows are made of the runs themselves. Other queues keep nothing of a job
that is over, so their workers write it down here (`TableStatus`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Unpack

from pydantic import JsonValue

from maniflex._json import encode
from maniflex.background.environment import Environment
from maniflex.background.jobs.port import AttemptEnd, Job
from maniflex.background.loop import Loop
from maniflex.background.parameters import PACKAGE, parameters_of
from maniflex.db.current import executor
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import TypedSelect
from maniflex.sql.statement import load

Status = Literal["enqueued", "running", "succeeded", "failed", "dead", "cancelled"]

_OF_RUNS = """
SELECT id, type, CASE status WHEN 'leased' THEN 'running' WHEN 'failed' THEN 'dead'
                     WHEN 'pending' THEN CASE WHEN attempt = 0 THEN 'enqueued' ELSE 'failed' END
                     ELSE status END AS status,
       attempt, max_attempts AS max_retry, actor_id, tenant_id, trace_id,
       {url} AS result_url, {output} AS output,
       CASE WHEN substr(last_error, 1, 4) <> 'enc:' THEN last_error END AS error,
       {code} AS error_code, created_at,
       CASE WHEN status IN ('succeeded', 'failed', 'cancelled') THEN updated_at END AS completed_at,
       updated_at
  FROM workflow_run WHERE deleted_at IS NULL"""
# What cannot be read would fail the whole list: text that is no JSON, and escapes that Postgres stores and
# does not take apart.
_READABLE = {"sqlite": "json_valid({0})", "postgresql": r"{0}::text !~* '\\u(0000|d[89a-f])'"}
_AS_TEXT = {"sqlite": "result", "postgresql": "result::text"}
_PARTS = {
    "sqlite": (
        "CAST(result ->> '$.url' AS TEXT)",
        "result -> '$.output'",
        "CAST(error ->> '$.code' AS TEXT)",
    ),
    "postgresql": ("result ->> 'url'", "result -> 'output'", "error ->> 'code'"),
}


def _of_runs(dialect: str) -> TypedSelect:
    url, output, code = _PARTS[dialect]
    readable = _READABLE[dialect].format
    is_sealed = (
        f"substr({_AS_TEXT[dialect]}, 1, 5) = '\"enc:'"  # an encrypted job shows neither output nor error
    )
    return TypedSelect(
        _OF_RUNS.format(
            url=f"CASE WHEN {readable('result')} THEN {url} END",
            output=f"CASE WHEN {is_sealed} THEN NULL WHEN {readable('result')} THEN {output} ELSE result END",
            code=f"CASE WHEN {readable('error')} THEN {code} END",
        )
    )


OF_RUNS = {dialect: _of_runs(dialect) for dialect in _PARTS}
OF_ROWS = TypedSelect("SELECT * FROM job_status")


class StatusModel(Model, table="job_statuses", query=OF_RUNS):
    """How a job is doing. `failed` waits for its next attempt, `dead` has none left."""

    __shows_unreadable__: ClassVar = True

    id: str = field(filterable=True, sortable=True)
    type: str = field(filterable=True, sortable=True)
    status: Status = field(filterable=True, sortable=True)
    attempt: int = field(filterable=True, sortable=True)
    max_retry: int
    actor_id: str | None = field(filterable=True, relation=None)
    tenant_id: str | None = field(filterable=True, relation=None)
    trace_id: str | None = field(filterable=True, relation=None)
    result_url: str | None
    output: JsonValue | None
    error: str | None  # in full for operators; for others the code, or what a handler told them
    error_code: str | None
    created_at: datetime = field(filterable=True, sortable=True)
    completed_at: datetime | None = field(filterable=True, sortable=True)
    updated_at: datetime = field(filterable=True, sortable=True)


class JobStatus(Model, table="job_status", headless=True):
    """The row of a job whose queue keeps nothing of it; `StatusModel` shows it to clients."""

    type: str
    status: Status
    attempt: int = field(default=0)
    max_retry: int
    actor_id: str | None = field(default=None, relation=None)
    tenant_id: str | None = field(default=None, relation=None)
    trace_id: str | None = field(default=None, relation=None)
    result_url: str | None = field(default=None)
    output: JsonValue | None = field(default=None)
    error: str | None = field(default=None)
    error_code: str | None = field(default=None)
    completed_at: datetime | None = field(default=None)


class TableStatus:
    """Writes the rows of `job_status`, inside the open transaction if there is one."""

    def __init__(self, environment: Environment) -> None:
        self._adapter = environment.adapter
        self._clock = environment.clock
        self._sql = load(PACKAGE, "jobs", environment.adapter.dialect)
        self._time = parameters_of(environment.adapter.dialect).time

    async def put(self, job: Job, status: str, **end: Unpack[AttemptEnd]) -> None:
        """Note the status of an attempt; an older attempt, or one that is over, changes nothing."""
        now, result = self._clock.now(), end.get("result")
        over = status in ("succeeded", "dead")
        output = None if result is None or result.output is None else encode(result.output, "output")
        await self._run(
            "put",
            id=job.id,
            type=job.type,
            status=status,
            attempt=job.attempt,
            max_retry=job.max_retry,
            actor_id=job.actor_id,
            tenant_id=job.tenant_id,
            trace_id=job.trace_id,
            result_url=None if result is None else result.url,
            output=output,
            error=end.get("error"),
            error_code=end.get("error_code"),
            completed_at=self._time(now) if over else None,
            now=self._time(now),
        )

    async def cancelled(self, id: str) -> None:
        """Note that a waiting job was cancelled."""
        await self._run("cancelled", id=id, now=self._time(self._clock.now()))

    async def make_room(self, id: str) -> None:
        """Remove the row of a job that is over: another one is about to have its id."""
        await self._run("make_room", id=id)

    async def forget(self, id: str) -> None:
        """Remove the row of a job that could not be enqueued."""
        await self._run("forget", id=id)

    async def prune(self, before: datetime, limit: int = 500) -> int:
        """Remove rows of jobs that were over before this time; how many."""
        sql = self._sql["prune"].bind(before=self._time(before), limit=limit)
        return len(await self._adapter.write(sql))

    async def _run(self, statement: str, **values: Any) -> None:
        await executor(self._adapter).execute(self._sql[statement].bind(**values))


class StatusPruner(Loop):
    """Removes the rows of jobs that were over long ago."""

    name = "maniflex-jobs-pruner"

    def __init__(self, status: TableStatus, environment: Environment) -> None:
        super().__init__(environment.clock, timedelta(minutes=10), environment.logger)
        self._status = status
        self._retention = environment.config.work_retention

    async def tick(self) -> bool:
        if not self._retention:
            return False
        return await self._status.prune(self.clock.now() - self._retention) > 0
