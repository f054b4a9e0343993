"""Runs over REST: `/workflow_run` and `/workflow_event`.

Reading is what every model has, bound to the caller by `Guard`. Writing goes through `server.work`:
a client submits, cancels, retries and deletes its own runs of public types, and can change nothing else
about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter
from pydantic_core import PydanticCustomError

from maniflex import _json
from maniflex._json import is_unreadable
from maniflex.background.commands import LONGEST_REASON, RUN, CallerReach, Command, commands_of
from maniflex.background.jobs.api import Jobs
from maniflex.background.jobs.status import OF_ROWS, OF_RUNS, StatusModel
from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import PRIORITIES, RunHandlers, excesses
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background_api.part_routes import (
    KEYS,
    Guard,
    HideInternals,
    actor_of,
    add_options,
    bind_to_caller,
    command_endpoint,
    drop_added_fields,
    hide_text_of_job,
    is_operator,
    mark,
    reach_of,
    rename_route,
    require_identity,
    run_payload,
    select_deciding_fields,
)
from maniflex.errors import Detail, Forbidden, InvalidJson, InvalidQuery, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.binding import binder
from maniflex.pipeline.body import read_body
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.scope import stamp
from maniflex.pipeline.steps.deserialize import Deserialize
from maniflex.pipeline.steps.response import Respond

CENTURY = timedelta(days=36525).total_seconds()
_OWN = ("actor_id", "tenant_id", "trace_id", "parent_id")  # the server's to say


def check_instant_text(value: Any) -> Any:
    """Refuse an instant that is written as anything but a text."""
    if not isinstance(value, str | datetime | None):
        raise PydanticCustomError("instant", "is a text such as 2026-01-31T08:00:00Z")
    return value


def check_zone(value: datetime | None) -> datetime | None:
    """The instant in UTC; one without a zone is refused."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise PydanticCustomError("instant", "must have a time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("instant", "is outside the years 1 to 9999") from None


class RequestedRun(BaseModel):
    """What everybody says about a run to submit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$")
    payload: JsonValue = Field(default_factory=dict)
    priority: int = Field(default=0, ge=-PRIORITIES, le=PRIORITIES)
    run_at: Annotated[
        datetime | None, Field(strict=False), BeforeValidator(check_instant_text), AfterValidator(check_zone)
    ] = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=200)


class Submission(RequestedRun):
    """What a client says about a run it submits."""

    delay: float | None = Field(default=None, ge=0, le=CENTURY, allow_inf_nan=False)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    group_key: str | None = Field(default=None, min_length=1, max_length=200)
    timeout: float | None = Field(default=None, gt=0, le=CENTURY, allow_inf_nan=False)


class Deletion(BaseModel):
    """What a client says about a run it deletes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(default=None, max_length=LONGEST_REASON)


def refuse_excesses(
    work: Work, type: str, *, priority: int = 0, max_attempts: int | None = None, timeout: float | None = None
) -> None:
    """Refuse what a client asks for beyond what the handler of the type allows."""
    excess = excesses(work.handlers, type, priority=priority, max_attempts=max_attempts, timeout=timeout)
    details: list[Detail] = [{"field": f, "message": why, "code": "invalid"} for f, why in excess]
    if details:
        raise ValidationFailed(details=details)


_SUBMISSION = TypeAdapter(Submission)
_DELETION = TypeAdapter(Deletion)
_RUN = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"$ref": "#/components/schemas/WorkflowRun"}},
}
_SUBMIT = RouteDocs(
    name="submit_workflow_run",
    summary="Submit a run",
    description="Stores a run, which a worker takes up when it is due.",
    body_text="The type of the run, what it works on, and when.",
    answer_texts={
        200: "The run that the caller has submitted with this `idempotency_key` before.",
        201: "The new run.",
    },
    answers={200: _RUN, 201: _RUN},
    errors=(400, 409, 413, 415, 422, 500, 503, 504),
)


class RunRoutes:
    """The routes of durable runs."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def options(self) -> Mapping[type[Model], ModelOptions]:
        hide_internals = HideInternals(self._work)
        guards: dict[type[Model], Guard] = {
            WorkflowRun: Guard(self._work),
            WorkflowEvent: Guard(self._work, "workflow."),
        }
        return {
            model: ModelOptions(
                middleware={"auth": guard, "response": hide_internals},
                headless=not self._work.has_routes,
            )
            for model, guard in guards.items()
        }

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        if not (self._work.is_used and self._work.has_routes and WorkflowRun in routes.runtime.stores):
            return usual
        remaining = [
            e
            for e in usual
            if e.model is None or e.model.cls not in _MODELS or e.operation in Operation.READS
        ]
        own = _RunEndpoints(self._work, routes).endpoints()
        return add_options(routes, [*remaining, *own], _MODELS)

    def private_endpoints(self, routes: RouteBuilder) -> dict[str, Endpoint]:
        """What operators do in the panel, on no path."""
        return _RunEndpoints(self._work, routes).private()


_MODELS: frozenset[type[Model]] = frozenset({WorkflowRun, WorkflowEvent})


class _RunEndpoints:
    """What a client may do with its runs."""

    def __init__(self, work: Work, routes: RouteBuilder) -> None:
        self._work = work
        self._routes = routes
        self._store = routes.runtime.stores[WorkflowRun]
        self._meta = self._store.meta
        computed_fields = routes.computed.get(WorkflowRun, ())
        self._respond = Respond(routes.runtime.serializers[WorkflowRun], computed_fields, etags=False)

    def endpoints(self) -> Iterator[Endpoint]:
        submits = self._work.access.public_types(self._work.handlers)
        if submits:
            yield self._submission(submits)
        yield self._deletion()
        yield from (self._command(one) for one in commands_of(RUN) if one.route is not None)
        yield steps_endpoint(self._work, self._routes)

    def private(self) -> dict[str, Endpoint]:
        commands = {one.key: self._command(one) for one in commands_of(RUN)}
        return commands | {
            "run.delete": self._deletion(),
            "run.steps": steps_endpoint(self._work, self._routes),
        }

    def _deletion(self) -> Endpoint:
        return self._routes.endpoint(
            "DELETE",
            f"/{self._meta.table}/{{id}}",
            Operation.DELETE,
            model=self._meta,
            defaults={"deserialize": self._reason, "db": self._delete},
            respond=self._respond.answer_empty,
            about=_DELETE,
        )

    def _submission(self, types: Sequence[str]) -> Endpoint:
        return self._routes.endpoint(
            "POST",
            f"/{self._meta.table}",
            Operation.CREATE,
            model=self._meta,
            defaults={
                "deserialize": Deserialize(self._store).body,
                "validate": self._check,
                "db": self._submit,
            },
            respond=self._answer_submission,
            about=replace(_SUBMIT, request_schema=_submission_schema(types, self._work.handlers)),
        )

    def _command(self, command: Command) -> Endpoint:
        async def change(ctx: Context) -> None:
            # One transaction, so that what is shown is what was changed, also beside a read replica.
            async with ctx.transaction():
                await self._require_change(ctx)
                ctx.result = await command.call(self._work, ctx.resource_id)

        return command_endpoint(
            self._routes, command, WorkflowRun, {"db": change}, self._respond.answer_record
        )

    # -- submitting

    def _check(self, ctx: Context) -> None:
        body = ctx.body
        values = dict(body)
        body.strip(_OWN)  # leaves what middleware said
        server_values = {name: body[name] for name in _OWN if name in body}
        submission: Submission = binder(Submission).fit(
            {n: v for n, v in values.items() if n not in server_values}
        )
        if submission.run_at is not None and submission.delay is not None:
            raise _invalid_field("delay", "a run has a run_at or a delay, not both")
        handler = self._work.handlers.get(submission.type)
        if not self._work.access.is_public(submission.type, self._work.handlers):
            raise _invalid_field("type", "there is no such type of run")
        limits = submission.model_dump(include={"priority", "max_attempts", "timeout"})
        refuse_excesses(self._work, submission.type, **limits)
        submission.payload = run_payload(submission.payload, handler)
        ctx.state.submission = (submission, server_values)

    async def _submit(self, ctx: Context) -> None:
        if "submission" not in ctx.state:  # middleware replaced the validate step
            self._check(ctx)
        submission, server_values = ctx.state.submission
        auth = require_identity(ctx)
        options = submission.model_dump(exclude={"payload", "type", "idempotency_key"}, exclude_none=True)
        values = {
            "type": submission.type,
            **options,
            "actor_id": auth.user_id,
            "tenant_id": auth.tenant_id or None,
            "trace_id": ctx.caller().trace_id,
            **server_values,
        }
        stamp(self._meta, ctx.forced, values)
        own = mark(values.get("tenant_id"), values.get("actor_id"))
        run_options = {name: value for name, value in values.items() if name in (*options, *_OWN)}
        for name in KEYS:
            client_key = getattr(submission, name)
            # One that differs was forced by middleware.
            if client_key is not None and run_options.get(name, client_key) == client_key:
                run_options[name] = own + client_key
        ctx.result, ctx.state.is_new = await self._work.offer(
            submission.type, submission.payload, **run_options
        )

    async def _answer_submission(self, ctx: Context) -> None:
        is_new = ctx.state.get("is_new", True)
        rest = (self._respond.answer_created if is_new else self._respond.answer_record)(ctx)
        if rest is not None:
            await rest

    # -- changing

    async def _require_change(self, ctx: Context) -> None:
        """Refuse a change to a run that the caller does not see, or sees and may only read."""
        run = self._store.record(await self._store.read(ctx.resource_id, scope=ctx.forced))
        assert isinstance(run, WorkflowRun)
        work = self._work
        if reach_of(ctx, work.access.admin_role) is CallerReach.OWN and not work.access.is_public(
            run.type, work.handlers
        ):
            raise Forbidden("runs of this type are the application's to change")

    async def _reason(self, ctx: Context) -> None:
        """Why it is deleted: in the query, or in a body if there is one."""
        reason = ctx.query_param("reason")
        if len(reason) > LONGEST_REASON:
            raise InvalidQuery(f"reason: it has at most {LONGEST_REASON} characters")
        ctx.state.reason = reason or await _reason_in_body(ctx)

    async def _delete(self, ctx: Context) -> None:
        async with ctx.transaction():
            await self._require_change(ctx)
            await self._work.delete(ctx.resource_id, ctx.state.get("reason"))


async def _reason_in_body(ctx: Context) -> str | None:
    if ctx.header("content-length") == "0":
        return None
    if ctx.raw_body is None:
        await read_body(ctx)
    if not ctx.raw_body:
        return None
    body = await ctx.parse_body(_json.loads)
    if not isinstance(body, dict):
        raise InvalidJson("the body must be a JSON object")
    deletion: Deletion = binder(Deletion).fit(body)
    return deletion.reason or None


_DELETE = RouteDocs(
    name="delete_workflow_run",
    summary="Delete a run",
    description="The run is never worked on again, and its idempotency key is free.",
    body_text="Why the run is deleted, unless the query says it.",
    answer_texts={204: "The run is deleted."},
    query={"reason": Annotated[str, Field(max_length=LONGEST_REASON, description="Why the run is deleted.")]},
    request_schema=_DELETION.json_schema(),
    body_required=False,
    status=204,
    errors=(403, 404),
)


def _submission_schema(types: Sequence[str], handlers: RunHandlers) -> Mapping[str, Any]:
    """The body of a submission, with the types there are and the most that one of them allows."""
    schema = _SUBMISSION.json_schema()
    urgent = max((h.max_priority for h in handlers), default=0)
    schema["properties"]["priority"] |= {"minimum": -urgent, "maximum": urgent}
    exact = sorted(type for type in types if not type.endswith("."))
    below = [re.escape(type) + "[A-Za-z0-9_.:/-]*" for type in types if type.endswith(".")]
    names = [*map(re.escape, exact), *sorted(below)]
    type_schema = {"pattern": f"^({'|'.join(names)})$", "maxLength": 200} if below else {"enum": exact}
    schema["properties"]["type"] = {"type": "string", **type_schema}
    both = {"run_at": {"type": "string"}, "delay": {"type": "number"}}
    schema["not"] = {"required": [*both], "properties": both}
    return schema


def _invalid_field(field: str, message: str) -> ValidationFailed:
    return ValidationFailed(details=[{"field": field, "message": message, "code": "invalid"}])


# `GET /workflow_run/{id}/steps`: the steps of a run that are done, for those who see the run.
#
# What a step returned is the handler's own; operators see it, other callers see that the step is done.


_STEP = {
    "type": "object",
    "required": ["id", "name", "undoable", "compensated", "created_at", "updated_at"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "result": {"description": "What the step returned; for operators."},
        "undoable": {"type": "boolean", "description": "Whether the step has something that takes it back."},
        "compensated": {"type": "boolean", "description": "Whether the step was taken back."},
        "created_at": {"type": "string", "format": "date-time"},
        "updated_at": {"type": "string", "format": "date-time"},
    },
}
_STEPS = RouteDocs(
    name="list_workflow_run_steps",
    summary="List the steps of a run",
    description="The steps that are done, in the order they were.",
    answer_texts={200: "The steps."},
    answers={
        200: {
            "type": "object",
            "required": ["data"],
            "properties": {"data": {"type": "array", "items": _STEP}},
        }
    },
    errors=(401, 404),
)


def steps_endpoint(work: Work, routes: RouteBuilder) -> Endpoint:
    """The route, with the guard of runs."""
    store = routes.runtime.stores[WorkflowRun]

    async def read_steps(ctx: Context) -> None:
        await store.read(ctx.resource_id, scope=ctx.forced)
        shows_results = is_operator(ctx, work.access.admin_role)
        ctx.result = [
            {
                "id": step.id,
                "name": step.name,
                **({"result": None if is_unreadable(step.result) else step.result} if shows_results else {}),
                "undoable": step.undoable,
                "compensated": step.compensated,
                "created_at": step.created_at,
                "updated_at": step.updated_at,
            }
            for step in await work.steps(ctx.resource_id)
        ]

    return routes.endpoint(
        "GET",
        f"/{store.meta.table}/{{id}}/steps",
        Operation.READ,
        model=store.meta,
        defaults={"db": read_steps},
        respond=_answer_steps,
        about=_STEPS,
    )


def _answer_steps(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(200, ctx.result)


# What operators do with runs in the panel beside what clients do: submit any type, signal, run now.
#
# These endpoints are on no path: the panel answers them in this process, behind the guard of runs.


class OperatorSubmission(RequestedRun):
    """What an operator says about a run to submit."""

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


# The status of jobs over REST: `GET /job_statuses`, everyone their own.
#
# The rows are bound to the caller by actor and tenant, on lists, counts and single rows alike; an admin
# sees those of their tenant, an operator all. Clients cannot write them: the job queue does.


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
