"""`GET /workflow_run/{id}/steps`: the steps of a run that are done, for those who see the run.

What a step returned is the handler's own; operators see it, other callers see that the step is done.
"""

from __future__ import annotations

from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background_api.reach import is_operator
from maniflex.model.value_rules import is_unreadable
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.routes import RouteBuilder

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
