"""`scope=` keeps digests of hidden fields beside events: conditions can be asked, values are nowhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import httpx
import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Next, Server, field
from maniflex.events import Emit
from maniflex.testing import client
from tests.kit.scripted_http import Answer, ScriptedHttp, scripted
from tests.kit.servers import started

OK: Answer = (200, {}, b"fine")
RED, BLUE = "team-of-the-red-ones", "team-of-the-blue-ones"


class Paper(Model, events=Emit(scope=("team",))):
    """What belongs to a team that nobody is shown."""

    team: str | None = field(default=None, hidden=True)
    title: str = ""


async def authenticate(ctx: Context, next: Next) -> None:
    """Who is asking stands in a header."""
    user = ctx.request.headers.get("x-user")
    if user:
        ctx.auth = AuthInfo(user)
    await next()


async def own_team(ctx: Context, next: Next) -> None:
    """The team has the name of its one member."""
    if ctx.auth is not None:
        ctx.query.force("team", ctx.auth.user_id)
    await next()


@asynccontextmanager
async def serving(url: str, **receivers: ScriptedHttp) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server with an endpoint of each of these people."""
    server = Server(url, background=False)
    server.register(Paper)
    server.pipeline.auth.register(authenticate)
    server.pipeline.service.register(own_team, models=[Paper])
    server.webhooks.enable(["paper.*"], allow_private=True, allow_http=True)
    async with client(server, database=url) as http:
        for user, receiver in receivers.items():
            body = {"url": receiver.url, "patterns": ["paper.*"], "ordering": "endpoint"}
            answer = await http.post("/api/webhook_endpoints", json=body, headers={"x-user": user})
            assert answer.status_code == 201, answer.text
        yield server, http


def told(receiver: ScriptedHttp) -> list[str]:
    return [json.loads(asked.body)["type"] for asked in receiver.asked]


async def test_deleted_records_and_moves_are_told_to_those_whose_they_were(database_url: str) -> None:
    async with (
        scripted(OK) as red,
        scripted(OK) as blue,
        serving(database_url, red=red, blue=blue) as (server, _),
    ):
        papers = server.db(Paper)
        gone = await papers.create(team="red", title="gone by then")
        await papers.delete(gone.id)
        moved = await papers.create(team="red", title="moved")
        await papers.update(moved.id, team="blue")
        await papers.update(moved.id, title="of the others")
        await papers.create(title="nobody's")
        await server.webhooks.drain()

    # `gone` was red's to the end. Who may see `moved` now may not see what it was before.
    assert told(red) == ["paper.deleted"]
    assert told(blue) == ["paper.updated", "paper.updated"]
    assert {json.loads(asked.body)["data"]["title"] for asked in blue.asked} == {"moved", "of the others"}


async def test_a_change_of_the_hidden_field_alone_is_an_event_that_names_nothing(database_url: str) -> None:
    async with started(database_url, Paper, background=False) as server:
        paper = await server.db(Paper).create(team=RED)
        await server.db(Paper).update(paper.id, team=BLUE)
        async with server.transaction():
            for _ in range(2):
                await server.db(Paper).create(team=RED)
        await server.events.drain()

        created, updated, *_ = await server.events.read()
        assert (updated.type, updated.changed) == ("paper.updated", None)
        assert set(updated.data) == {"id", "title", "created_at", "updated_at"}
        rows = await server.raw_query("SELECT * FROM event_log ORDER BY position")
        assert RED not in str(rows)
        assert BLUE not in str(rows)
        scopes = [json.loads(row["scope"]) if isinstance(row["scope"], str) else row["scope"] for row in rows]
        assert [set(scope) for scope in scopes] == [{"team"}] * len(rows)
        assert scopes[0] != scopes[1]
        assert created.headers == {}

        await server.events.erase(created.subject or "")
        assert [
            row["scope"] for row in await server.raw_query("SELECT scope FROM event_log ORDER BY position")
        ][:2] == [
            None,
            None,
        ]


async def test_processes_share_the_key_and_feeds_do_not(database_url: str, sqlite_url: str) -> None:
    keys = []
    for url in (database_url, database_url, sqlite_url + ".other"):
        async with started(url, Paper, background=False) as server:
            await server.db(Paper).create(team=RED)
            keys.append(server.events.digests.key)
    assert keys[0] == keys[1]
    assert keys[2] != keys[0]
    assert None not in keys


class Colour(StrEnum):
    """A closed set."""

    RED = "red"


NAMES = ("text", "number", "share", "flag", "at", "day", "key", "colour")


class Kinds(Model, events=Emit(scope=NAMES)):
    """A hidden field of every kind that conditions compare."""

    text: str | None = field(default=None, hidden=True)
    number: int | None = field(default=None, hidden=True)
    share: Decimal | None = field(default=None, hidden=True)
    flag: bool | None = field(default=None, hidden=True)
    at: datetime | None = field(default=None, hidden=True)
    day: date | None = field(default=None, hidden=True)
    key: UUID | None = field(default=None, hidden=True, relation=None)
    colour: Colour | None = field(default=None, hidden=True)


VALUES: dict[str, Any] = {
    "text": "é",
    "number": 7,
    "share": Decimal("1.50"),
    "flag": False,
    "at": datetime(2030, 1, 1, 12, tzinfo=UTC),
    "day": date(2030, 1, 1),
    "key": UUID("12345678-1234-5678-1234-567812345678"),
    "colour": Colour.RED,
}


@pytest.mark.parametrize("name", VALUES)
async def test_equal_values_of_every_kind_have_equal_digests(database_url: str, name: str) -> None:
    """The condition, as a rule forces it, and the row, as the database gives it, say the same."""
    value = VALUES[name]

    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force(name, value)
        await next()

    server = Server(database_url, background=False)
    server.register(Kinds)
    server.pipeline.auth.register(authenticate)
    server.pipeline.service.register(bind, models=[Kinds])
    server.webhooks.enable(["kinds.*"], allow_private=True, allow_http=True)
    async with scripted(OK) as receiver, client(server, database=database_url) as http:
        body = {"url": receiver.url, "patterns": ["kinds.deleted"]}
        answer = await http.post("/api/webhook_endpoints", json=body, headers={"x-user": "ada"})
        assert answer.status_code == 201, answer.text
        rows = server.db(Kinds)
        for one in (await rows.create(**VALUES), await rows.create()):
            await rows.delete(one.id)
        await server.webhooks.drain()
        assert told(receiver) == ["kinds.deleted"]


async def test_what_nobody_may_compare_is_no_scope() -> None:
    class Odd(Model, events=Emit(scope=("pin", "sealed", "tags", "missing"))):
        pin: str | None = field(default=None, writeonly=True)
        sealed: str | None = field(default=None, encrypted=True)
        tags: list[str] = field(default_factory=list, hidden=True)

    server = Server()
    server.register(Odd)
    with pytest.raises(DeclarationError) as refused:
        async with server.lifespan():
            pass
    text = str(refused.value)
    for part in (
        "'pin' is write-only",
        "'sealed' is write-only",
        "'tags' cannot be",
        "no field 'missing'",
    ):
        assert part in text
