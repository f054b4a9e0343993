"""What the routes of schedules take and answer, and what the API description says of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from maniflex.background.schedules.model import Schedule, Status
from maniflex.pipeline.route_docs import RouteDocs

MOST_DELETED = 1000


@dataclass
class Ids:
    """The schedules to delete."""

    ids: Annotated[list[str], Field(min_length=1, max_length=MOST_DELETED)]


@dataclass
class NewStatus:
    """What a schedule shall be."""

    status: Status


@dataclass
class Deleted:
    """How many schedules are gone."""

    deleted: int


@dataclass
class Started:
    """The run that a schedule was fired as."""

    run_id: str
    schedule_id: str


DUE = RouteDocs(
    name="list_due_schedules",
    summary="List the schedules that are due",
    description="The active schedules whose next time has come.",
    answer_texts={200: "A page of schedules."},
    grammar=("filter", "sort", "page", "limit", "select"),
    response=list[Schedule],
)
DUE_HEAD = replace(DUE.of_head(), name="head_due_schedules")
CODES = ("INVALID_SCHEDULE",)
_ONE = {200: "The schedule as it is now."}
ACTIVATE = RouteDocs(
    name="activate_schedule",
    summary="Make a schedule active",
    description="The schedule is fired from now on, at its next time first.",
    response=Schedule,
    codes=CODES,
    answer_texts=_ONE,
)
DEACTIVATE = RouteDocs(
    name="deactivate_schedule",
    summary="Make a schedule inactive",
    description="The schedule stays and is not fired until it is made active again.",
    response=Schedule,
    codes=CODES,
    answer_texts=_ONE,
)
PUT = RouteDocs(
    name="put_schedule",
    summary="Change a schedule",
    description="As PATCH does: fields that are left out stay as they are.",
    request_schema={"$ref": "#/components/schemas/ScheduleUpdate"},
    body_text="The fields to change, with their new values.",
    response=Schedule,
    answer_texts=_ONE,
    errors=(404, 409),
    codes=CODES,
)
STATUS = RouteDocs(
    name="put_schedule_status",
    summary="Make a schedule active or inactive",
    description="As `activate` and `deactivate` do, by what the body says.",
    request=NewStatus,
    body_text="What the schedule shall be.",
    response=Schedule,
    answer_texts=_ONE,
    errors=(404,),
    codes=CODES,
)
RUN = RouteDocs(
    name="run_schedule",
    summary="Fire a schedule now",
    description="Fires the schedule once more, also an inactive one; its next time stays as it is.",
    response=Started,
    status=202,
    codes=CODES,
    answer_texts={202: "The run that was submitted."},
)
_IDS = f"The ids of 1 to {MOST_DELETED:,} schedules, with commas between them."
DELETE = RouteDocs(
    name="delete_schedules",
    summary="Delete the listed schedules",
    description="Deletes those of the schedules that there are.",
    parameters=(
        {"name": "ids", "in": "query", "required": True, "description": _IDS, "schema": {"type": "string"}},
    ),
    codes=("INVALID_QUERY",),
    response=Deleted,
    answer_texts={200: "How many were deleted."},
)
DELETE_ONE = RouteDocs(
    name="delete_schedule",
    summary="Delete one schedule, or several with commas between their ids",
    description="Deletes all that the path names or, when one of them is not there, none.",
    status=204,
    answer_texts={204: "They are deleted."},
    errors=(404,),
)
DELETE_MANY = RouteDocs(
    name="delete_many_schedules",
    summary="Delete many schedules",
    description="Deletes those of the schedules that there are.",
    request=Ids,
    body_text=f"The ids of 1 to {MOST_DELETED:,} schedules.",
    response=Deleted,
    answer_texts={200: "How many were deleted."},
)
