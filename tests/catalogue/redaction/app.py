"""An application whose people have a phone that only some callers see, and every surface it could show on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maniflex import (
    AuthInfo,
    Context,
    LocaleString,
    Model,
    Next,
    Server,
    belongs_to,
    field,
    has_many,
    many_to_many,
)
from maniflex.middleware import response

PHONE = "5550199"
STAFF = {"X-Role": "staff"}


class Team(Model, aggregate=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    people: list[Person] = has_many(nested=True)


class Membership(Model):
    club_id: str
    person_id: str


class Club(Model):
    name: str
    people: list[Person] = many_to_many(through=Membership)


class Person(
    Model,
    export=True,
    aggregate=True,
    optimistic_lock=True,
    restore=True,
    soft_delete=True,
    global_searchable=True,
    cursor_field="phone",
):
    name: str = field(filterable=True, sortable=True, searchable=True)
    phone: str = field(alias="phoneNumber", filterable=True, sortable=True, searchable=True, default="")
    mobile: str = field(filterable=True, default="")
    hint: LocaleString | None = field(default=None, filterable=True, sortable=True)
    team_id: str | None = field(default=None, filterable=True)
    team: Team | None = belongs_to()
    boss_id: str | None = field(default=None, relation="Person")


def is_stranger(ctx: Context) -> bool:
    return not ctx.has_role("staff")


async def identify(ctx: Context, next: Next) -> None:
    role = ctx.header("x-role")
    if role:
        ctx.auth = AuthInfo(user_id=role, roles=[role])
    await next()


def a_server(when: Callable[..., Any] = is_stranger, *fields: str, **options: Any) -> Server:
    server = Server()
    server.register(Team, Club, Membership, Person)
    server.enable_global_search()
    server.enable_batch()
    server.pipeline.auth.register(identify)
    for name in fields or ("phone", "hint"):
        server.pipeline.response.register(response.redact_field(name, when, **options), models=[Person])

    @server.action("GET", "/tree/{id}")
    async def tree(ctx: Context) -> Any:
        return await ctx.recursive_query(Person, root_id=ctx.url_param("id"), parent_field="boss_id")

    return server
