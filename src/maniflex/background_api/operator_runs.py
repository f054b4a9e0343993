"""What operators do with runs in the panel beside what clients do: submit any type, signal, run now.

These endpoints are on no path: the panel answers them in this process, behind the guard of runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import PRIORITIES
from maniflex.background.runs.model import WorkflowRun
from maniflex.background_api.caller_keys import mark
from maniflex.background_api.payloads import run_payload
from maniflex.background_api.reach import CallerReach, actor_of, reach_of
from maniflex.background_api.runs import check_instant_text, check_zone, refuse_excesses
from maniflex.errors import Forbidden, ValidationFailed
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import RouteBuilder


class OperatorSubmission(BaseModel):
    """What an operator says about a run to submit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$")
    payload: JsonValue = Field(default_factory=dict)
    priority: int = Field(default=0, ge=-PRIORITIES, le=PRIORITIES)
    run_at: Annotated[
        datetime | None, Field(strict=False), BeforeValidator(check_instant_text), AfterValidator(check_zone)
    ] = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=200)
    about: str | None = Field(default=None, max_length=400)


class Signal(BaseModel):
    """Something to tell a run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=200)
    payload: JsonValue = None


class OperatorRuns:
    """The endpoints about runs that only the panel has."""

    def __init__(self, work: Work, routes: RouteBuilder) -> None:
        self._work = work
        self._routes = routes
        self._store = routes.runtime.stores[WorkflowRun]

    def endpoints(self) -> dict[str, Endpoint]:
        table = self._store.meta.table
        return {
            "run.submit": self._routes.endpoint(
                "POST",
                f"/{table}",
                Operation.CREATE,
                model=self._store.meta,
                defaults={"db": self._submit},
                respond=_answer_result,
            ),
            "run.signal": self._routes.endpoint(
                "POST",
                f"/{table}/{{id}}/signal",
                Operation.UPDATE,
                model=self._store.meta,
                defaults={"db": self._signal},
                respond=_answer_result,
            ),
        }

    async def _submit(self, ctx: Context) -> None:
        submission: OperatorSubmission = await ctx.bind_json(OperatorSubmission)
        self._require_type(ctx, submission.type)
        handler = self._work.handlers.get(submission.type)
        values = submission.model_dump(exclude={"type", "payload"}, exclude_none=True)
        tenant = ctx.auth.tenant_id if ctx.auth is not None else ""
        reach = reach_of(ctx, self._work.access.admin_role)
        if reach is not CallerReach.ALL:  # tenants share the workers, so one does not push in front of others
            refuse_excesses(self._work, submission.type, priority=submission.priority)
        if reach is not CallerReach.ALL and submission.idempotency_key is not None:
            # As over REST: a key that another tenant has is another key, and tells nothing of its run.
            values["idempotency_key"] = mark(tenant, actor_of(ctx)) + submission.idempotency_key
        run, is_new = await self._work.offer(
            submission.type,
            run_payload(submission.payload, handler),
            **values,
            actor_id=actor_of(ctx),
            tenant_id=tenant or None,
        )
        if not is_new:
            detail = {"field": "idempotency_key", "message": f"run {run.id} has this key", "code": "unique"}
            raise ValidationFailed(details=[detail])
        ctx.result = {"id": run.id}

    def _require_type(self, ctx: Context, type: str) -> None:
        """Leave internal types to operators of all tenants, and to others what clients may submit."""
        reach, work = reach_of(ctx, self._work.access.admin_role), self._work
        if reach is CallerReach.OWN and not work.access.is_public(type, work.handlers):
            raise Forbidden("runs of this type are the application's to submit")
        if reach is CallerReach.TENANT and type in work.handlers.hidden_types():
            raise Forbidden("runs of this type are the application's to submit")

    async def _signal(self, ctx: Context) -> None:
        signal: Signal = await ctx.bind_json(Signal)
        async with ctx.transaction():
            run: Any = self._store.record(await self._store.read(ctx.resource_id, scope=ctx.forced))
            self._require_type(ctx, run.type)
            await self._work.signal(run.id, signal.name, signal.payload)
        ctx.result = {"id": ctx.resource_id}


def _answer_result(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(200, ctx.result)
