"""The groups in which the API description shows the routes of durable work, by names people know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.model.base import Model
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.route_docs import RouteDocs

GROUPS: dict[type[Model], str] = {
    WorkflowRun: "Runs",
    WorkflowEvent: "Runs",
    StatusModel: "Jobs",
    Schedule: "Schedules",
    ScheduleFiring: "Schedules",
    OutboxMessage: "Outbox",
}


def in_groups(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """The same endpoints, those of durable work with the tag of their group."""
    return [_in_group(endpoint) for endpoint in endpoints]


def _in_group(endpoint: Endpoint) -> Endpoint:
    group = None if endpoint.model is None else GROUPS.get(endpoint.model.cls)
    return endpoint if group is None else replace(endpoint, about=_with_tag(endpoint.about, group))


def _with_tag(about: RouteDocs | None, group: str) -> RouteDocs:
    return replace(about or RouteDocs(), tags=(group,))
