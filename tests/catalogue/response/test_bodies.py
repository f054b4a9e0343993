"""Fields and bodies in another form (R1, R13, R17, C57)."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Operation, Server, belongs_to, field, has_many
from maniflex.middleware import response
from maniflex.testing import client
from tests.kit.http import created, csv_cells, data_of, error_of


class Team(Model):
    name: str
    members: list[Person] = has_many()


class Person(Model, export=True, optimistic_lock=True):
    name: str = field(filterable=True, sortable=True)
    phone: str | None = field(filterable=True, default=None)
    salary: Decimal | None = None
    born: datetime | None = None
    notes: dict[str, Any] | None = None
    team_id: str | None = None
    team: Team | None = belongs_to()
    password: str = field(writeonly=True, default="")


def a_server() -> Server:
    server = Server()
    server.register(Team, Person)
    return server


def count_phones(ctx: Context) -> str:
    """What a header can tell of the body, once it has its form."""
    assert ctx.response is not None
    return str(len(json.loads(ctx.response.body or b"")["phones"]))


def mask(value: str | None) -> str:
    return "none" if value is None else f"…{value[-2:]}"


async def test_a_field_is_shown_changed_everywhere_and_stored_as_it_was(database_url: str) -> None:
    """R13."""
    server = a_server()
    server.pipeline.response.register(response.transform_field("phone", mask), models=[Person])
    async with client(server, database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        ada = await created(http, "/api/people", name="ada", phone="12345", team_id=team["id"])
        bob = await created(http, "/api/people", name="bob", team_id=team["id"])
        path = f"/api/people/{ada['id']}"
        changed = data_of(await http.patch(path, json={"name": "ada l"}))
        read = data_of(await http.get(f"{path}?include=team"))
        selected = data_of(await http.get(f"{path}?select=phone"))
        unselected = data_of(await http.get(f"{path}?select=name"))
        listed = data_of(await http.get("/api/people?sort=name&include=team.members"))
        filtered = data_of(await http.get("/api/people?filter=phone:eq:12345"))
        included = data_of(await http.get("/api/teams?include=members"))
        export = csv_cells(await http.get("/api/people/export?sort=name&select=name,phone"))

    assert [ada["phone"], bob["phone"], changed["phone"], read["phone"]] == ["…45", "none", "…45", "…45"]
    assert selected["phone"] == "…45"
    assert "phone" not in unselected
    assert [person["phone"] for person in listed] == ["…45", "none"]
    assert {p["phone"] for p in listed[0]["team"]["members"]} == {"…45", "none"}
    assert [person["id"] for person in filtered] == [ada["id"]]
    assert sorted(person["phone"] for person in included[0]["members"]) == ["none", "…45"]
    assert export == [["name", "phone"], ["ada l", "…45"], ["bob", "none"]]


async def test_functions_see_typed_values_and_the_request(database_url: str) -> None:
    seen: list[type] = []

    async def round_up(ctx: Context, value: Any) -> Any:
        seen.append(type(value))
        return None if value is None else f"{value} for {ctx.header('x-user')}"

    def keys(value: Any) -> Any:
        return sorted(value or ())

    server = a_server()
    server.pipeline.response.register(response.transform_field("salary", round_up), operations=Operation.READ)
    server.pipeline.response.register(response.transform_field("notes", keys))
    async with client(server, database=database_url, headers={"x-user": "ada"}) as http:
        made = await created(http, "/api/people", name="ada", salary="12.50", notes={"b": 1, "a": 2})
        read = data_of(await http.get(f"/api/people/{made['id']}"))

    assert (made["salary"], made["notes"]) == ("12.50", ["a", "b"])
    assert (read["salary"], read["notes"]) == ("12.50 for ada", ["a", "b"])
    assert seen == [Decimal]


async def test_the_tag_of_the_row_does_not_change(sqlite_url: str) -> None:
    tags = []
    for transforms in (False, True):
        server = a_server()
        if transforms:
            server.pipeline.response.register(response.transform_field("phone", mask))
        async with client(server, database=sqlite_url) as http:
            people = data_of(await http.get("/api/people"))
            if not people:
                people = [await created(http, "/api/people", name="ada", phone="12345")]
            tags.append((await http.get(f"/api/people/{people[0]['id']}")).headers["etag"])

    assert tags[0] == tags[1]


async def test_a_transform_that_raises_shows_nothing(database_url: str) -> None:
    """C57."""

    def broken(value: Any) -> Any:
        raise KeyError(value)

    server = a_server()
    server.pipeline.response.register(response.transform_field("phone", broken), operations=Operation.READS)
    async with client(server, database=database_url) as http:
        made = await http.post("/api/people", json={"name": "ada", "phone": "12345"})
        path = f"/api/people/{data_of(made, 201)['id']}"
        answers = [
            await http.get(path),
            await http.get("/api/people"),
            await http.get("/api/people/export"),
        ]

    for answer in answers:
        error_of(answer, 500, "INTERNAL")
        assert "12345" not in answer.text


async def test_an_envelope_is_the_whole_body_of_a_success(database_url: str) -> None:
    """C57."""

    def wrap(ctx: Context, data: Any, meta: Any) -> Any:
        return {"ok": True, "items": data, "count": meta["total"] if meta else None}

    server = a_server()
    server.pipeline.response.register(response.envelope(wrap))

    @server.action("GET", "/sum")
    async def total(ctx: Context) -> Any:
        return {"total": Decimal("1.5")}

    async with client(server, database=database_url) as http:
        made = await http.post("/api/people", json={"name": "ada"})
        listed = await http.get("/api/people")
        summed = await http.get("/api/sum")
        missing = await http.get("/api/people/17")
        export = csv_cells(await http.get("/api/people/export?select=name"))
        probe = await http.get("/live")
        description = await http.get("/api/openapi.json")
        gone = await http.delete(f"/api/people/{made.json()['items']['id']}")

    assert (made.status_code, made.json()["ok"], made.json()["count"]) == (201, True, None)
    assert listed.json() == {"ok": True, "items": [made.json()["items"]], "count": 1}
    assert summed.json() == {"ok": True, "items": {"total": "1.5"}, "count": None}
    error_of(missing, 404, "NOT_FOUND")
    assert export == [["name"], ["ada"]]
    assert probe.json() == {"status": "ok"}
    assert description.json()["openapi"] == "3.1.0"
    assert (gone.status_code, gone.content) == (204, b"")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
async def test_entries_act_in_their_own_order(order: tuple[int, ...], sqlite_url: str) -> None:
    """R1: whatever the order of registration; the tag is that of the bytes that are sent."""
    entries: list[Any] = [
        response.transform_field("phone", mask),
        response.envelope(lambda ctx, data, meta: {"phones": [one["phone"] for one in data]}),
        response.add_header("X-Phones", count_phones),
        response.cache(60),
    ]
    server = a_server()
    for number in order:
        server.pipeline.response.register(entries[number], models=[Person], operations=Operation.LIST)
    async with client(server, database=sqlite_url) as http:
        await created(http, "/api/people", name="ada", phone="12345")
        answer = await http.get("/api/people")
        unchanged = await http.get("/api/people", headers={"if-none-match": answer.headers["etag"]})

    assert answer.json() == {"phones": ["…45"]}
    assert answer.headers["x-phones"] == "1"
    assert unchanged.status_code == 304


def test_mistakes_stop_the_start() -> None:
    server = a_server()
    step = server.pipeline.response
    step.register(response.transform_field("fone", mask))
    step.register(response.transform_field("password", mask), models=[Person])
    step.register(response.transform_field("name", lambda: None))
    step.register(response.envelope(lambda data: data), models=[Team])
    with pytest.raises(DeclarationError) as refusal:
        server.seal()

    assert len(refusal.value.problems) == 4
    assert any("did you mean 'phone'" in problem for problem in refusal.value.problems)


def test_two_envelopes_on_a_route_stop_the_start() -> None:
    server = a_server()
    first, second = (response.envelope(lambda ctx, data, meta: data) for _ in range(2))
    server.pipeline.response.register(first, models=[Person])
    server.pipeline.response.register(second, models=[Team])
    server.seal()

    server = a_server()
    server.pipeline.response.register(first, models=[Person])
    server.pipeline.response.register(second)
    with pytest.raises(DeclarationError, match="one envelope"):
        server.seal()
