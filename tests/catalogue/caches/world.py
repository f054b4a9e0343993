"""Two organisations, their projects and the people in them, behind a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, belongs_to, field, has_many
from maniflex.middleware import db
from maniflex.testing import FakeClock, client
from tests.kit.statements import Counting


class Org(Model, table="orgs"):
    name: str = field(default="", filterable=True)
    projects: list[Project] = has_many()


class Project(Model, table="projects", soft_delete=True, restore=True, export=True, aggregate=True):
    org: str = field(default="A", filterable=True)
    name: str = field(default="", filterable=True, sortable=True)
    owner_id: str | None = field(default=None, on_delete="set_null", relation="Owner", filterable=True)
    owner: Owner | None = belongs_to()
    org_id: str | None = field(default=None, on_delete="cascade", filterable=True)
    home: Org | None = belongs_to(key="org_id")
    pin: str = field(default="secret", hidden=True)
    stars: int = 0


class Owner(Model, table="owners"):
    name: str = field(default="", filterable=True, sortable=True)


class Everything(Model, table="everything", optimistic_lock=True):
    """A value of every kind."""

    flag: bool = True
    amount: Decimal = Decimal("1.10")
    ratio: float = 2.0
    at: datetime | None = None
    day: date | None = None
    clock: time | None = None
    code: UUID | None = None
    content: bytes | None = None
    data: dict[str, Any] | None = None


async def bind(ctx: Context, next: Next) -> None:
    """Each caller sees the rows of the organisation in `x-org`."""
    org = ctx.header("x-org")
    if org:
        ctx.auth = AuthInfo(user_id="someone", tenant_id=org)
        ctx.query.force("org", org, model=Project)
    await next()


def cached(**options: Any) -> Server:
    server = Server(path_prefix="")
    server.register(Org, Project, Owner, Everything)
    server.pipeline.auth.register(bind, models=Project)
    server.pipeline.db.register(db.cache_query(**options))
    return server


class Asking:
    """A client, and the statements that its requests cost, those of the cache left out."""

    def __init__(self, http: httpx.AsyncClient, adapter: Counting, clock: FakeClock, server: Server) -> None:
        self.http, self.adapter, self.clock, self.server = http, adapter, clock, server

    async def get(self, path: str, **headers: str) -> tuple[httpx.Response, int]:
        """The answer and how many statements it took on the tables of the application."""
        self.adapter.statements.clear()
        answer = await self.http.get(path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        return answer, len([text for text in self.adapter.statements if "cache_entry" not in text])

    async def hits(self, path: str, **headers: str) -> bool:
        answer, statements = await self.get(path, **headers)
        assert answer.status_code == 200, answer.text
        return statements == 0

    async def make(self, path: str, **body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["data"]


@asynccontextmanager
async def asking(server: Server, url: str) -> AsyncIterator[Asking]:
    adapter, clock = Counting(url), FakeClock()
    async with client(server, database=adapter, clock=clock) as http:  # type: ignore[arg-type]  # an adapter
        yield Asking(http, adapter, clock, server)
