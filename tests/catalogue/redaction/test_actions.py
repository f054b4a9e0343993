"""Records that an action returns are shown as everywhere else: without the fields hidden from the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import Context, Response, Server
from maniflex.middleware import idempotency
from maniflex.testing import client
from tests.catalogue.redaction.app import PHONE, STAFF, Person, Team, a_server
from tests.kit.http import data_of


@dataclass
class Found:
    person: Person
    score: int


@dataclass
class Crowd:
    people: Any


class Page(BaseModel):
    people: list[Person]
    team: Team
    total: int


SHAPES: dict[str, Callable[[Person, Team], Any]] = {
    "a record": lambda person, team: person,
    "a list": lambda person, team: [person, person],
    "a dict": lambda person, team: {"best": person, "team": team},
    "deep": lambda person, team: {"rows": [{"who": (person, 1)}]},
    "an iterator": lambda person, team: iter([person]),
    "an iterator within": lambda person, team: {"people": (one for one in [person])},
    "an iterator in an object": lambda person, team: Crowd(people=iter([person])),
    "a dataclass": lambda person, team: Found(person, 7),
    "a pydantic model": lambda person, team: Page(people=[person], team=team, total=1),
    "a response": lambda person, team: Response(201, {"person": person}, headers={"x-own": "yes"}),
}


def with_actions(server: Server) -> Server:
    for number, shape in enumerate(SHAPES.values()):

        async def show(ctx: Context, shape: Any = shape) -> Any:
            [person] = await ctx.db(Person).list({"name": "Ada"})
            [team] = await ctx.db(Team).list()
            return shape(person, team)

        server.action("GET", f"/shapes/{number}", name=f"shape_{number}")(show)
    return server


async def fill(server: Server) -> None:
    team = await server.db(Team).create(name="Reds")
    await server.db(Person).create(name="Ada", phone=PHONE, team_id=team.id)


async def later(ctx: Context) -> bool:
    return not ctx.has_role("staff")


@pytest.mark.parametrize("when", [None, later], ids=["plain", "async"])
@pytest.mark.parametrize("name", SHAPES)
async def test_an_action_shows_no_hidden_field(database_url: str, name: str, when: Any) -> None:
    server = with_actions(a_server() if when is None else a_server(when))
    path = f"/api/shapes/{list(SHAPES).index(name)}"
    async with client(server, database=database_url) as http:
        await fill(server)
        seen_by_staff = await http.get(path, headers=STAFF)
        seen_by_stranger = await http.get(path)

    assert seen_by_staff.status_code == seen_by_stranger.status_code in (200, 201)
    assert PHONE in seen_by_staff.text
    assert PHONE not in seen_by_stranger.text
    assert "phoneNumber" not in seen_by_stranger.text
    assert "Ada" in seen_by_stranger.text
    assert seen_by_stranger.headers.get("x-own") == seen_by_staff.headers.get("x-own")


async def test_an_action_without_such_records_asks_nobody() -> None:
    calls: list[str] = []

    def when(ctx: Context) -> bool:
        calls.append("asked")
        return True

    server = a_server(when)

    @server.action("GET", "/numbers")
    async def numbers(ctx: Context) -> dict[str, int]:
        return {"people": await ctx.db(Person).count()}

    async with client(server) as http:
        assert data_of(await http.get("/api/numbers")) == {"people": 0}
    assert calls == []


async def test_a_replayed_answer_has_what_was_shown_first() -> None:
    server = a_server()

    @server.action("POST", "/hire", middleware=[idempotency.keys()])
    async def hire(ctx: Context) -> Person:
        return await ctx.db(Person).create(name="Eve", phone=PHONE)

    async with client(server) as http:
        key = {"Idempotency-Key": "one"}
        answers = [await http.post("/api/hire", headers=key) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert PHONE not in answers[0].text
    assert answers[1].headers["idempotent-replayed"] == "true"
