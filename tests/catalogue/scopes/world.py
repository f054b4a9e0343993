"""Two organisations on one server, bound by scope rules; callers say who they are in headers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, WithDeletedAt, field, has_many, many_to_many
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import db
from maniflex.testing import client


class Org(Model, export=True, aggregate=True):
    name: str = field(filterable=True, sortable=True)
    members: list[Member] = has_many()
    projects: list[Project] = has_many()


class Member(Model, export=True, aggregate=True, cursor_field="email", global_searchable=True):
    org_id: str = field(filterable=True)
    email: str = field(unique="org_id", filterable=True, sortable=True, searchable=True)
    role: str = field(default="member", filterable=True)
    badge: str | None = field(default=None, encrypted=True, blind_index=True, unique="org_id")


class Project(
    Model,
    WithDeletedAt,
    export=True,
    aggregate=True,
    restore=True,
    cursor_field="name",
    global_searchable=True,
):
    org_id: str = field(filterable=True)
    name: str = field(filterable=True, sortable=True, searchable=True)
    rank: int = field(default=0, filterable=True, sortable=True)
    owner_id: str | None = field(default=None, filterable=True, relation=None)
    parent_id: str | None = field(default=None, relation="Project", filterable=True, on_delete="set_null")
    below: list[Project] = has_many(key="parent_id")
    tasks: list[Task] = has_many(nested=True)
    labels: list[Label] = many_to_many(through="ProjectLabel", nested=True)


class Task(Model, WithDeletedAt, export=True, aggregate=True, restore=True, global_searchable=True):
    project_id: str | None = field(default=None, filterable=True, on_delete="cascade")
    title: str = field(filterable=True, sortable=True, searchable=True)
    notes: list[Note] = has_many(nested=True)


class Note(Model, export=True, aggregate=True):
    task_id: str = field(filterable=True, on_delete="cascade")
    text: str = field(filterable=True, sortable=True)


class Label(Model, export=True, aggregate=True):
    name: str = field(filterable=True, sortable=True)
    projects: list[Project] = many_to_many(through="ProjectLabel")


class ProjectLabel(Model):
    project_id: str = field(filterable=True, on_delete="cascade")
    label_id: str = field(filterable=True, on_delete="cascade")


class Currency(Model, global_searchable=True, export=True, aggregate=True):
    code: str = field(filterable=True, sortable=True, searchable=True)


MODELS: tuple[type[Model], ...] = (Org, Member, Project, Task, Note, Label, ProjectLabel, Currency)
A = {"x-org": "org-a", "x-user": "ann"}
B = {"x-org": "org-b", "x-user": "bob"}
NOBODY: dict[str, str] = {}
NO_ORG = {"x-user": "ann"}


async def identify(ctx: Context, next: Next) -> None:
    """The caller as the headers say."""
    user, org = ctx.header("x-user"), ctx.header("x-org")
    if user is not None or org is not None:
        roles = (ctx.header("x-roles") or "").split()
        ctx.auth = AuthInfo(user_id=user or "", tenant_id=org or "", roles=roles, claims={"org": org})
    await next()


def bind_all(server: Server) -> None:
    """Tenancy for what has an org, the parent for what has none."""
    server.pipeline.auth.register(
        db.tenancy("org_id", shared=[Org, Label, ProjectLabel, Currency, Task, Note])
    )
    server.pipeline.auth.register(
        db.force_filter_via("project", "org_id", org_of), models=[Task, ProjectLabel]
    )
    server.pipeline.auth.register(db.force_filter_via("task.project", "org_id", org_of), models=[Note])


def org_of(ctx: Context) -> str | None:
    return None if ctx.auth is None else ctx.auth.tenant_id


def make_server(
    *rules: Callable[[Server], None], models: Iterable[type[Model]] = MODELS, **settings: Any
) -> Server:
    settings.setdefault("key_provider", MemoryKeyProvider({"default": bytes(range(32))}))
    server = Server(**settings)
    server.register(*models)
    server.pipeline.auth.register(identify)
    server.enable_global_search()
    server.enable_batch()
    for rule in rules:
        rule(server)
    return server


@asynccontextmanager
async def serving(
    server: Server, url: str, *, sides: Sequence[str] = ("a", "b"), **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server, on a database that has the rows of these organisations."""
    async with client(server, database=url, **options) as http:
        await fill(server, sides)
        yield http


async def fill(server: Server, sides: Sequence[str]) -> None:
    """The same rows for each side, told apart by their ids and names; the organisations are there anyway."""
    for code in ("EUR", "USD"):
        await server.db(Currency).create(id=f"cur-{code}", code=code)
    for label in ("red", "blue"):
        await server.db(Label).create(id=f"label-{label}", name=label)
    for side in ("a", "b"):
        await server.db(Org).create(id=f"org-{side}", name=f"Org {side}")
    for side in sides:
        await _fill_side(server, side, {"a": "ann", "b": "bob"}[side])


async def _fill_side(server: Server, side: str, user: str) -> None:
    org = f"org-{side}"
    for n in (1, 2, 3):
        project, task = f"p-{side}{n}", f"t-{side}{n}"
        await server.db(Member).create(
            id=f"m-{side}{n}", org_id=org, email=f"{n}.common.{side}@x.org", badge=f"common {n} of {side}"
        )
        await server.db(Project).create(
            id=project,
            org_id=org,
            name=f"common {n} of {side}",
            rank=n,
            owner_id=user if n < 3 else "third",
            parent_id=f"p-{side}{n - 1}" if n > 1 else None,
        )
        await server.db(Task).create(id=task, project_id=project, title=f"common {n} {side}")
        await server.db(Note).create(id=f"n-{side}{n}", task_id=task, text=f"note {n} {side}")
        await server.db(ProjectLabel).create(id=f"l-{side}{n}", project_id=project, label_id="label-red")
    gone = f"p-{side}9"
    await server.db(Project).create(id=gone, org_id=org, name=f"common gone {side}", owner_id=user)
    await server.db(Project).delete(gone)
    await server.db(Task).create(id=f"t-{side}9", project_id=f"p-{side}1", title=f"common gone {side}")
    await server.db(Task).delete(f"t-{side}9")
