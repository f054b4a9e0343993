"""The tables of schedules, as ordinary models.

A schedule names a target and its times, and says in whose name it acts; a firing is one due time that came,
and the row that makes sure it comes once. The unique index on (schedule, due time) is in `background/sql`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import JsonValue

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import TableRules

Kind = Literal["run", "action", "url"]
Policy = Literal["skip", "once", "all"]
Status = Literal["active", "inactive"]


class FiringOutcome(StrEnum):
    """What a due time came to."""

    FIRED = "fired"
    SKIPPED = "skipped"


class Schedule(Model, table="schedules"):
    """Something that happens again and again, at the times of a cron expression."""

    __shows_unreadable__: ClassVar = True
    # The names of schedules without a tenant are unique by an index in `background/sql`.
    __table_rules__: ClassVar = TableRules(old_indexes=("uq_schedules_name",))

    name: str = field(unique="tenant_id", min_length=1, max_length=100, filterable=True, sortable=True)
    cron: str = field(max_length=100)
    timezone: str = field(default="UTC", max_length=100, filterable=True)
    kind: Kind = field(default="run", filterable=True)
    target: str = field(min_length=1, max_length=2000, filterable=True)  # a run type, an action or a URL
    payload: JsonValue | None = field(default=None)
    policy: Policy = field(default="once", filterable=True)  # for due times no scheduler was there for
    attempts: int | None = field(default=None, min=1, max=100)
    # An address inside the network is the operator's to open, so only code may say so.
    allow_private: bool = field(default=False, readonly=True)
    status: Status = field(default="active", filterable=True, sortable=True)
    last_run_at: datetime | None = field(default=None, readonly=True, filterable=True, sortable=True)
    next_run_at: datetime | None = field(default=None, readonly=True, filterable=True, sortable=True)
    last_error: str | None = field(default=None, readonly=True)  # why it was made inactive
    # In whose name its runs act, and for which tenant; None: in nobody's, for none.
    actor_id: str | None = field(default=None, readonly=True, filterable=True, relation=None)
    tenant_id: str | None = field(default=None, readonly=True, filterable=True, relation=None)
    created_by: str | None = field(default=None, readonly=True, filterable=True)  # None: code, in no request
    updated_by: str | None = field(default=None, readonly=True, filterable=True)


class ScheduleFiring(Model, table="schedule_firing"):
    """A due time of a schedule that came: the run it became, or that it was skipped."""

    schedule_id: str = field(filterable=True, relation=None)
    schedule_name: str = field(filterable=True)
    due_at: datetime = field(filterable=True, sortable=True)
    fired_at: datetime = field(filterable=True, sortable=True)
    outcome: FiringOutcome = field(default=FiringOutcome.FIRED, filterable=True)
    manual: bool = field(default=False, filterable=True)  # by `run_now`
    skipped_until: datetime | None = field(default=None)  # no due time before this was fired
    run_id: str | None = field(default=None, filterable=True, relation=None, index=True)
    tenant_id: str | None = field(default=None, filterable=True, relation=None)  # of the schedule
