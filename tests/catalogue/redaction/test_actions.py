"""Records that an action returns are shown as everywhere else: without the fields hidden from the caller."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, RootModel, computed_field

from maniflex import Context, Model, Next, Operation, Response, Server
from maniflex.middleware import idempotency, response
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


class Holder(BaseModel):
    """An object that holds records where pydantic's schema does not say so."""

    held: Any

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def copy_of_held(self) -> Any:
        return self.held if isinstance(self.held, Model) else None


class ByType(BaseModel):
    found: Found
    people: Iterable[Person]


class Roots(RootModel[list[Found]]):
    pass


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
    "a dataclass in a pydantic model": lambda person, team: Holder(held=Found(person, 7)),
    "a typed dataclass and a generator": lambda person, team: ByType(
        found=Found(person, 7), people=(one for one in [person])
    ),
    "a map in a pydantic model": lambda person, team: Holder(held=map(copy, [person])),
    "a computed field": lambda person, team: Holder(held=person),
    "a root model": lambda person, team: Roots([Found(person, 7)]),
    "pydantic in a dataclass in pydantic": lambda person, team: Holder(held=Crowd(Holder(held=person))),
    "a deque": lambda person, team: deque([Holder(held=[person])]),
    "a view of a dict": lambda person, team: Holder(held={"a": {"b": person}}.values()),
    "meta": lambda person, team: Response(200, {"n": 1}, meta={"best": person}),
    "meta alone": lambda person, team: Response(200, meta={"best": Holder(held=person)}),
    "meta that is given once": lambda person, team: Response(200, {"n": 1}, meta={"all": iter([person])}),
    "meta of a large answer": lambda person, team: Response(
        200, [{"n": "x" * 1000}] * 1000, meta={"best": person}
    ),
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
async def test_an_action_shows_no_hidden_field(name: str, when: Any) -> None:
    server = with_actions(a_server() if when is None else a_server(when))
    path = f"/api/shapes/{list(SHAPES).index(name)}"
    async with client(server) as http:
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


@pytest.mark.parametrize("when", [None, later], ids=["plain", "async"])
async def test_the_details_of_a_refusal_show_no_hidden_field(when: Any) -> None:
    server = a_server() if when is None else a_server(when)

    @server.action("POST", "/refuse/{how}")
    async def refuse(ctx: Context) -> Any:
        [person] = await ctx.db(Person).list()
        details: Any = {"who": person, "as": Holder(held=Found(person, 1))}
        if ctx.url_param("how") == "abort":
            ctx.abort(409, "TAKEN", "somebody is there", details=details)
        return Response(409, error={"code": "TAKEN", "message": "somebody is there", "details": details})

    @server.pipeline.service.middleware(models=[Person])
    async def occupied(ctx: Context, next: Next) -> None:
        [person] = await ctx.db(Person).list()
        ctx.abort(409, "TAKEN", "somebody is there", details={"who": Holder(held=person)})

    async with client(server) as http:
        await fill(server)
        for path in ("/api/refuse/abort", "/api/refuse/response", "/api/people"):
            seen_by_staff = await http.post(path, headers=STAFF, json={"name": "Bob"})
            seen_by_stranger = await http.post(path, json={"name": "Bob"})
            assert seen_by_staff.status_code == seen_by_stranger.status_code == 409, path
            assert PHONE in seen_by_staff.text
            assert PHONE not in seen_by_stranger.text
            assert "Ada" in seen_by_stranger.text


ANSWERS: dict[str, Callable[[Person], Any]] = {
    "data": lambda person: Response(200, {"who": person}),
    "objects": lambda person: Response(200, [Found(person, 1)]),
    "meta": lambda person: Response(200, [], meta={"who": person}),
    "details": lambda person: Response(409, error={"code": "X", "message": "m", "details": [person]}),
    "a refusal": lambda person: Response(409, error={"code": "X", "who": Holder(held=person)}),
    "a result": lambda person: [Holder(held=person)],
}


@pytest.mark.parametrize("step", ["auth", "service", "db", "response"])
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("when", [None, later], ids=["plain", "async"])
async def test_the_answer_of_a_middleware_shows_no_hidden_field(name: str, step: str, when: Any) -> None:
    """On the route of a model it is written as the answer of an action is, also by what keeps answers."""
    server = a_server() if when is None else a_server(when)
    server.pipeline.response.register(response.cache(max_age=60), models=[Person])

    async def answer(ctx: Context, next: Next) -> None:
        [person] = await server.db(Person).list()
        own = ANSWERS[name](person)
        if isinstance(own, Response):
            ctx.response = own
        else:
            ctx.result = own
            await next()

    getattr(server.pipeline, step).register(answer, models=[Person], operations=["read"])
    async with client(server) as http:
        await fill(server)
        [person] = await server.db(Person).list()
        seen_by_staff = await http.get(f"/api/people/{person.id}", headers=STAFF)
        seen_by_stranger = await http.get(f"/api/people/{person.id}")
        in_process = await server.execute(Operation.READ, Person, person.id)
    if name == "a result" and step == "db":
        return  # the step that follows puts the row there again
    assert seen_by_staff.status_code == seen_by_stranger.status_code in (200, 409)
    assert PHONE in seen_by_staff.text
    assert PHONE not in seen_by_stranger.text
    assert PHONE.encode() not in in_process.encode(lambda value: repr(value).encode())
    assert "Ada" in seen_by_stranger.text


async def test_an_answer_that_cannot_be_written_is_a_failure_that_shows_nothing() -> None:
    server = a_server()

    @server.pipeline.service.middleware(models=[Person])
    async def answer(ctx: Context, next: Next) -> None:
        [person] = await server.db(Person).list()
        ctx.response = Response(200, (one or 1 / 0 for one in (person, None)))

    async with client(server) as http:
        await fill(server)
        broken = await http.post("/api/people", json={"name": "Bob"})
    assert broken.status_code == 500
    assert PHONE not in broken.text


class Contract(Model, versioned=True, table="redacted_contracts"):
    title: str = ""
    fee: int = 0


async def test_versions_in_an_answer_show_no_hidden_field() -> None:
    server = Server()
    server.register(Contract)
    server.pipeline.response.register(
        response.redact_field("fee", when=lambda ctx: ctx.header("x-role") != "staff"), models=[Contract]
    )

    @server.action("GET", "/versions/{id}")
    async def versions(ctx: Context) -> Any:
        rows = await server.history(Contract).of(ctx.url_param("id"))
        return {"rows": rows, "first": Holder(held=rows[-1]), "crowd": Crowd(rows)}

    async with client(server) as http:
        made = await server.db(Contract).create(title="Roof", fee=4711)
        await server.db(Contract).update(made.id, fee=4712)
        seen_by_staff = await http.get(f"/api/versions/{made.id}", headers=STAFF)
        seen_by_stranger = await http.get(f"/api/versions/{made.id}")
    assert "4711" in seen_by_staff.text
    assert seen_by_stranger.status_code == 200
    assert not {"4711", "4712", "fee"} & set(re.findall(r"\w+", seen_by_stranger.text))
    assert "Roof" in seen_by_stranger.text


async def test_a_field_that_is_hidden_from_reads_is_in_no_answer_of_a_write() -> None:
    server = Server()
    server.register(Contract)
    hide = response.redact_field("fee", when=lambda ctx: True)
    server.pipeline.response.register(hide, models=[Contract], operations=Operation.READS)
    async with client(server) as http:
        made = data_of(await http.post("/api/redacted_contracts", json={"title": "Roof", "fee": 4711}), 201)
        path = f"/api/redacted_contracts/{made['id']}"
        changed = data_of(await http.patch(path, json={"title": "Wall"}))
        for record in (made, changed, data_of(await http.get(path))):
            assert "fee" not in record
