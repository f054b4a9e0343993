"""The status of jobs over REST: `GET /job_statuses`, everyone their own.

The rows are bound to the caller by actor and tenant, on lists, counts and single rows alike; an admin sees
those of their tenant, an operator all. Clients cannot write them: the job queue does.
"""

from __future__ import annotations

from collections.abc import Mapping

from maniflex.background.commands import CallerReach
from maniflex.background.jobs.api import Jobs
from maniflex.background.jobs.status import OF_ROWS, OF_RUNS, StatusModel
from maniflex.background_api.own_rows import (
    bind_to_caller,
    drop_added_fields,
    hide_text_of_job,
    is_operator,
    reach_of,
    require_identity,
    select_deciding_fields,
)
from maniflex.background_api.part_routes import rename_route
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import Endpoint, RouteBuilder


def _as_job_status(endpoint: Endpoint) -> Endpoint:
    if endpoint.model is None or endpoint.model.cls is not StatusModel:
        return endpoint
    return rename_route("job_status", "job_statuses", endpoint)


class JobRoutes:
    """The routes of `server.jobs.mount_status`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def options(self) -> Mapping[type[Model], ModelOptions]:
        if self._jobs.status is None:
            return {}
        query = OF_RUNS if self._jobs.uses_runs else OF_ROWS
        middleware = {"auth": self._own_jobs, "response": self._hide_texts}
        return {StatusModel: ModelOptions(query=query, middleware=middleware)}

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        return [_as_job_status(endpoint) for endpoint in usual]

    async def _own_jobs(self, ctx: Context, next: Next) -> None:
        role, public = self._jobs.status or ("", False)
        stranger = ctx.auth is None or not ctx.auth.user_id
        if not (public and stranger):
            self._bind(ctx, reach_of(ctx, role))
        if ctx.operation is not Operation.OPTIONS and not is_operator(ctx, role):
            select_deciding_fields(ctx, ["error"], "error_code")
        if self._jobs.uses_runs and ctx.operation is not Operation.OPTIONS:
            # The table has all runs; those that are no jobs are not shown here.
            ctx.query.force("type", sorted(self._jobs.types), "in")
        await next()

    def _bind(self, ctx: Context, reach: CallerReach) -> None:
        if ctx.operation is not Operation.OPTIONS and reach is not CallerReach.ALL:
            bind_to_caller(ctx.query.force, require_identity(ctx), reach)

    async def _hide_texts(self, ctx: Context, next: Next) -> None:
        """Show the texts of exceptions to operators alone."""
        await next()
        response, (role, _) = ctx.response, self._jobs.status or ("", False)
        if response is None or response.error is not None or is_operator(ctx, role):
            return
        data = response.data
        for record in data if isinstance(data, list) else [data]:
            if isinstance(record, dict):
                hide_text_of_job(record)
                drop_added_fields(ctx, record)
