"""The status of jobs over REST: `GET /job_statuses`, everyone their own.

The rows are bound to the caller by actor and tenant, on lists, counts and single rows alike; the admin
role sees all jobs. Nobody writes them: they are what became of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from maniflex.background.jobs.client import Jobs
from maniflex.background.jobs.status import OF_ROWS, OF_RUNS, StatusModel
from maniflex.control.face import Site, called
from maniflex.control.guard import identified
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next


def _as_job_status(endpoint: Endpoint) -> Endpoint:
    if endpoint.model is None or endpoint.model.cls is not StatusModel:
        return endpoint
    return called("job_status", "job_statuses", endpoint)


class JobFace:
    """The routes of `server.jobs.mount_status`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def options(self) -> Mapping[type[Model], ModelOptions]:
        if self._jobs.status is None:
            return {}
        query = OF_RUNS if self._jobs.durable else OF_ROWS
        return {StatusModel: ModelOptions(query=query, middleware={"auth": self._own_jobs})}

    def mounted(self, site: Site, usual: list[Endpoint]) -> list[Endpoint]:
        return [_as_job_status(endpoint) for endpoint in usual]

    async def _own_jobs(self, ctx: Context, next: Next) -> None:
        role, public = self._jobs.status or ("", False)
        stranger = ctx.auth is None or not ctx.auth.user_id
        if not (public and stranger) and not ctx.has_role(role):
            self._bind(ctx)
        if self._jobs.durable and ctx.operation is not Operation.OPTIONS:
            # The table has all runs; one that is no job is nobody's business here.
            ctx.query.force("type", sorted(self._jobs.types), "in")
        await next()

    def _bind(self, ctx: Context) -> None:
        auth = identified(ctx)
        if ctx.operation is Operation.OPTIONS:
            return
        ctx.query.force("actor_id", auth.user_id)
        if auth.tenant_id:
            ctx.query.force("tenant_id", auth.tenant_id)
        else:
            ctx.query.force("tenant_id", op="is_null")
