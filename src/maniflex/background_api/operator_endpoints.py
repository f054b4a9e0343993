"""All requests of the operations panel, by name: lists, counts and commands about durable work.

They are on no path, whether or not the routes of a part are: code of this process answers them, behind the
same guards as the routes that clients have.
"""

from __future__ import annotations

from collections.abc import Collection

from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background_api.operator_runs import OperatorRuns
from maniflex.background_api.outbox import OutboxRoutes
from maniflex.background_api.part_routes import refuse_foreign_scopes
from maniflex.background_api.runs import RunRoutes
from maniflex.background_api.schedules import ScheduleRoutes
from maniflex.model.base import Model
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.model_routes import browse_endpoints
from maniflex.pipeline.routes import RouteBuilder

_LISTS: dict[type[Model], str] = {
    WorkflowRun: "run",
    WorkflowEvent: "event",
    OutboxMessage: "message",
    Schedule: "schedule",
    ScheduleFiring: "firing",
    StatusModel: "job",
}


def operator_endpoints(
    work: Work,
    outbox: Outbox,
    schedules: Schedules,
    routes: RouteBuilder,
    tables: Collection[type[Model]],
) -> dict[str, Endpoint]:
    """The endpoints of the parts that are in use, such as `run.page` and `run.cancel`."""
    stores = routes.runtime.stores
    endpoints: dict[str, Endpoint] = {}
    for model, name in _LISTS.items():
        if model in stores:
            endpoints[f"{name}.page"], endpoints[f"{name}.count"] = browse_endpoints(
                routes, routes.runtime.models[model]
            )
    if WorkflowRun in stores:
        endpoints |= RunRoutes(work).private_endpoints(routes) | OperatorRuns(work, routes).endpoints()
    if OutboxMessage in stores:
        endpoints |= OutboxRoutes(outbox).private_endpoints(routes)
    if Schedule in stores:
        endpoints |= ScheduleRoutes(schedules).private_endpoints(routes)
    return dict(zip(endpoints, refuse_foreign_scopes(endpoints.values(), tables), strict=True))
