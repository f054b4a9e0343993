"""The tables of durable runs, as ordinary models, and the states of a run.

Their statements are in `background/sql`; a model here is how REST, filters, OpenAPI and code read them.

                 pause, release, lease ended,
                 failure with attempts left
                ┌───────────────────────────┐
                ▼                           │
    submit ─▶ pending ──── claim ───────▶ leased ──── success ─────▶ succeeded
               ▲ │                          │ │
         retry │ │ cancel            cancel │ └─── last failure ───▶ failed ─┐
               │ ▼                          ▼                                │ retry
              cancelled ◀───────────────────┘                     pending ◀──┘

A claim counts an attempt. A run that is cancelled while it is leased keeps its lease until its handler stops.
A deleted run keeps its state; `deleted_at` says that no worker claims it any more.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from pydantic import JsonValue

from maniflex.model.base import Model, WithDeletedAt
from maniflex.model.field import field
from maniflex.model.meta import TableRules, is_one_of


class Status(StrEnum):
    """The state of a run; the diagram above says how it changes."""

    PENDING = "pending"  # waits for its time, a signal, another run or a worker
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


class WorkflowRun(Model, WithDeletedAt, table="workflow_run"):
    """One durable unit of work: what to do, when, how often it was tried and what came of it."""

    __table_rules__: ClassVar = TableRules(
        defaults=("status", "priority", "attempt", "max_attempts", "created_at", "updated_at"),
        checks={"workflow_run_status_check": is_one_of("status", tuple(Status))},
    )

    __shows_unreadable__: ClassVar = True

    # A worker's claim is no part of what a run says, so a run may be a payload or a result.
    __omitted__: ClassVar = frozenset({"lease"})

    __sealed__: ClassVar = dict.fromkeys(("payload", "result", "error", "last_error"), ("id",))

    type: str = field(filterable=True, sortable=True)
    status: Status = field(default=Status.PENDING, filterable=True, sortable=True)
    priority: int = field(default=0, filterable=True, sortable=True)  # higher is more urgent
    idempotency_key: str | None = field(default=None, filterable=True)
    payload: JsonValue = field(default_factory=dict)
    result: JsonValue | None = field(default=None)
    error: dict[str, JsonValue] | None = field(default=None)
    last_error: str | None = field(default=None)
    attempt: int = field(default=0, filterable=True, sortable=True)
    max_attempts: int = field(default=3)
    run_at: datetime = field(filterable=True, sortable=True)
    timeout: float | None = field(default=None)  # seconds one attempt may take
    group_key: str | None = field(default=None, filterable=True)
    lease: str | None = field(default=None, hidden=True)
    lease_until: datetime | None = field(default=None, filterable=True)
    leased_by: str | None = field(default=None, filterable=True)
    waiting_for: str | None = field(default=None, filterable=True)
    actor_id: str | None = field(default=None, filterable=True, relation=None)
    tenant_id: str | None = field(default=None, filterable=True, relation=None)
    trace_id: str | None = field(default=None, filterable=True, relation=None)
    traceparent: str | None = field(default=None)  # the span that submitted it
    parent_id: str | None = field(default=None, filterable=True, relation=None)
    about: str | None = field(default=None, filterable=True)  # a record, as `order/<id>`
    delete_reason: str | None = field(default=None)

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.status in FINISHED


class WorkflowEvent(Model, table="workflow_event"):
    """What happened to a run; written in the same transaction as the change."""

    __table_rules__: ClassVar = TableRules(defaults=("id", "created_at", "updated_at"))
    __shows_unreadable__: ClassVar = True

    workflow_id: str = field(filterable=True, index=True, relation="WorkflowRun")
    event_type: str = field(filterable=True)
    data: dict[str, JsonValue] | None = field(default=None)


class WorkflowStep(Model, table="workflow_step", headless=True):
    """What a step of a run returned, so that a retry does not repeat it."""

    __shows_unreadable__: ClassVar = True
    __sealed__: ClassVar = {"result": ("workflow_id", "name")}

    workflow_id: str = field(relation=None)
    name: str
    result: JsonValue | None = field(default=None)
    undoable: bool = field(default=False)  # it has something that takes it back
    compensated: bool = field(default=False)


class WorkflowSignal(Model, table="workflow_signal", headless=True):
    """Something told to a run from outside, kept until the run asks for it."""

    __shows_unreadable__: ClassVar = True
    __sealed__: ClassVar = {"payload": ("workflow_id", "name")}

    workflow_id: str = field(relation=None)
    name: str
    payload: JsonValue | None = field(default=None)
