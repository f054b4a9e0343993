"""The tabs above every page of operations, and how such a page is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maniflex.admin.operations.desk import WorkDesk
from maniflex.pipeline.response import Response

ROOT = "/-/operations"
# Keys of texts, paths, the endpoint a page needs, and whether it shows what belongs to no tenant.
_TABS = (
    ("ops_overview", "/", "", False),
    ("ops_runs", "/runs", "run.page", False),
    ("ops_schedules", "/schedules", "schedule.page", False),
    ("ops_outbox", "/outbox", "message.page", True),
    ("ops_scheduled", "/scheduled", "", True),
    ("ops_jobs", "/jobs", "", False),
    ("ops_processes", "/processes", "", True),
    ("ops_doctor", "/doctor", "", True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A page of operations."""

    label: str
    url: str
    is_current: bool


def tabs_of(desk: WorkDesk, current: str) -> list[Tab]:
    """The pages that this person may see."""
    return [
        Tab(label=desk.visit.t(key), url=f"{desk.visit.root}{ROOT}{path}", is_current=key == current)
        for key, path, endpoint, for_all in _TABS
        if (not endpoint or desk.has(endpoint)) and (desk.sees_all or not for_all) and _is_used(desk, key)
    ]


def _is_used(desk: WorkDesk, key: str) -> bool:
    if key == "ops_jobs":
        return bool(desk.parts.jobs.types) or not desk.parts.jobs.uses_runs
    if key == "ops_schedules":
        return desk.sees_schedules
    return key != "ops_scheduled" or desk.parts.scheduled.has_fields


async def show_page(
    desk: WorkDesk, template: str, view: Any, *, tab: str, title: str = "", status: int = 200
) -> Response:
    """A page of operations with its tabs."""
    visit = desk.visit
    layout = await visit.layout(title or visit.t(tab))
    body = visit.panel.render(
        f"operations/{template}", layout=layout, view=view, t=visit.t, tabs=tabs_of(desk, tab)
    )
    return visit.whole(body, layout, status)
