"""One application with nearly everything declared at once: two tenants, histories, files, caches, audit."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from maniflex import (
    AuthInfo,
    Context,
    Model,
    Next,
    Operation,
    Server,
    WithDeletedAt,
    belongs_to,
    field,
    file,
    has_many,
    scheduled,
)
from maniflex.audit import TableSink
from maniflex.middleware import auth, db, idempotency, response, stores, workflow


class Team(
    Model,
    WithDeletedAt,
    versioned=True,
    restore=True,
    export=True,
    aggregate=True,
    global_searchable=True,
    optimistic_lock=True,
):
    org: str = field(relation=None, default="", readonly=True, filterable=True)
    name: str = field(filterable=True, sortable=True, searchable=True, unique="org")
    secret: str = field(default="", writeonly=True)
    logo: str | None = file(default=None, max_size="1MB")
    parent_id: str | None = field(default=None, relation="Team", filterable=True, on_delete="set_null")
    tasks: list[Task] = has_many()


class Task(
    Model,
    WithDeletedAt,
    versioned=True,
    history_restore=True,
    restore=True,
    export=True,
    aggregate=True,
    global_searchable=True,
    cursor_field="created_at",
):
    team_id: str = field(filterable=True, on_delete="cascade")
    title: str = field(filterable=True, sortable=True, searchable=True)
    state: Literal["open", "doing", "done"] = field(default="open", filterable=True, sortable=True)
    cost: Decimal = field(default=Decimal(0), filterable=True, sortable=True)
    wage: int = field(default=0, filterable=True, sortable=True)
    extra: dict[str, Any] = field(default_factory=dict)
    close_at: datetime | None = scheduled(default=None, set_field="state", to="done")
    gone_at: datetime | None = scheduled(default=None, soft_delete=True)
    scans: list[str] = file(default_factory=list, max_count=3)
    team: Team | None = belongs_to()


class Note(Model, versioned=True, versioned_diff_only=True, aggregate=True, export=True):
    org: str = field(relation=None, default="", readonly=True)
    task_id: str = field(filterable=True, on_delete="cascade")
    text: str = field(filterable=True, sortable=True)
    task: Task | None = belongs_to()


async def identify(ctx: Context, next: Next) -> None:
    if org := ctx.header("x-org"):
        ctx.auth = AuthInfo(
            user_id=ctx.header("x-user") or org, tenant_id=org, roles=[ctx.header("x-role") or "member"]
        )
    await next()


def is_no_boss(ctx: Context) -> bool:
    return not ctx.has_role("boss")


async def charge(ctx: Context) -> dict[str, str]:
    task = await ctx.db(Task).update(ctx.url_param("id"), cost=Decimal("9.5"))
    return {"title": task.title}


async def ours(ctx: Context) -> list[str]:
    return [task.title for task in await ctx.db(Task).list()]


def make_server(url: str) -> Server:
    server = Server(url, storage="memory:", max_exports=8)
    server.register(Team, Task, Note)
    server.enable_global_search()
    register = server.pipeline.auth.register
    register(identify)
    register(db.tenancy("org", shared=[Task]))
    register(db.force_filter_via("team", "org", lambda ctx: ctx.require_auth().tenant_id), models=[Task])
    register(auth.require_auth())
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    states = workflow.machine(
        "state",
        workflow.allow_initial("open"),
        workflow.allow("open", "doing"),
        workflow.allow("doing", "done"),
        workflow.allow("done", "open"),
    )
    server.pipeline.validate.register(states, models=[Task])
    server.pipeline.db.register(db.cache_query(stores.MemoryStore()), models=[Task, Note])
    audit = db.audit_log(TableSink(routes=True), changes=True)
    server.pipeline.db.register(audit, operations=Operation.WRITES)
    server.pipeline.response.register(response.redact_field("wage", is_no_boss), models=[Task])
    server.action("POST", "/tasks/{id}/charge")(charge)
    server.action("GET", "/ours")(ours)
    return server
