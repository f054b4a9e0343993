"""The groups in which the API description shows the routes of durable work, by names people know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.model.base import Model
from maniflex.pipeline.about import About
from maniflex.pipeline.endpoints import Endpoint

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
    return endpoint if group is None else replace(endpoint, about=_tagged(endpoint.about, group))


def _tagged(about: About | None, group: str) -> About:
    return replace(about or About(), tags=(group,))
