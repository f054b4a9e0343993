"""A model that takes credentials of its own is shown to nobody who has only those of another model.

The application has teams and people, each with an authenticator of its own. Whatever a request for one of
them shows or tells of the other needs both credentials, as two requests would.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field, has_many
from maniflex.middleware import auth
from maniflex.testing import client
from tests.kit.http import data_of, error_of

TEAM_KEY = {"x-team-key": "the-key-of-the-teams"}
PEOPLE_KEY = {"x-people-key": "the-key-of-the-people"}
BOTH = {**TEAM_KEY, **PEOPLE_KEY}


class Team(Model, export=True, aggregate=True, global_searchable=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    people: list[Person] = has_many()


class Person(Model, export=True, aggregate=True, global_searchable=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    team_id: str | None = field(default=None, filterable=True)


COUNT_OF_REDS = quote(
    json.dumps({"select": [{"op": "count"}], "where": [{"field": "team.name", "value": "Reds"}]})
)

# A request, the credential of its own model, and that of the model it reaches.
OF_TEAMS = (TEAM_KEY, PEOPLE_KEY)
OF_PEOPLE = (PEOPLE_KEY, TEAM_KEY)
SURFACES = {
    "include": ("GET", "/teams?include=people", OF_TEAMS),
    "include of one": ("GET", "/teams/{team}?include=people", OF_TEAMS),
    "include upwards": ("GET", "/people?include=team", OF_PEOPLE),
    "nested include": ("GET", "/people?include=team.people", OF_PEOPLE),
    "nested filter": ("GET", "/teams?filter=people.name:eq:Ada", OF_TEAMS),
    "group of filters": ("GET", "/teams?filter[0]=people.name:eq:Ada&filter[0]=name:eq:x", OF_TEAMS),
    "sort": ("GET", "/people?sort=team.name", OF_PEOPLE),
    "count": ("HEAD", "/teams?filter=people.name:eq:Ada", OF_TEAMS),
    "aggregate": ("GET", f"/people/aggregate?aggregate={COUNT_OF_REDS}", OF_PEOPLE),
    "export": ("GET", "/people/export?filter=team.name:eq:Reds", OF_PEOPLE),
    "search": ("GET", "/search?q=Ada&models=Person", ({}, PEOPLE_KEY)),
    "key in a body": ("POST", "/people", OF_PEOPLE),
}


def key_reader(header: str, key: str, name: str) -> Any:
    return auth.api_keys(header, {key: AuthInfo(user_id=name, roles=[name])})


def team_reader() -> Any:
    return key_reader("x-team-key", TEAM_KEY["x-team-key"], "teams")


def people_reader() -> Any:
    return key_reader("x-people-key", PEOPLE_KEY["x-people-key"], "people")


def world(database_url: str, *registrations: tuple[Any, dict[str, Any]]) -> Server:
    server = Server(database=database_url)
    server.register(Team, Person)
    server.enable_global_search()
    for entry, options in registrations:
        server.pipeline.auth.register(entry, **options)
    return server


def apart(database_url: str, *more: tuple[Any, dict[str, Any]]) -> Server:
    """Teams take one credential, people another."""
    readers = ((team_reader(), {"models": [Team]}), (people_reader(), {"models": [Person]}))
    return world(database_url, *readers, *more)


async def ask(http: httpx.AsyncClient, surface: str, headers: dict[str, str], team: str) -> httpx.Response:
    method, path, _ = SURFACES[surface]
    body = {"name": "Eve", "team_id": team} if method == "POST" else None
    return await http.request(method, "/api" + path.replace("{team}", team), headers=headers, json=body)


async def a_team(server: Server) -> str:
    team = await server.db(Team).create(name="Reds")
    await server.db(Person).create(name="Ada", team_id=team.id)
    return team.id


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_credential_of_one_model_opens_no_way_to_the_other(database_url: str, surface: str) -> None:
    own, other = SURFACES[surface][2]
    server = apart(database_url)
    async with client(server) as http:
        team = await a_team(server)
        refused = await ask(http, surface, own, team)
        assert refused.status_code == 401, refused.text
        assert "Ada" not in refused.text
        passed = await ask(http, surface, {**own, **other}, team)
        assert passed.status_code in (200, 201), passed.text


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_bad_credential_of_the_other_model_is_refused(database_url: str, surface: str) -> None:
    own, other = SURFACES[surface][2]
    server = apart(database_url)
    async with client(server) as http:
        team = await a_team(server)
        bad = dict.fromkeys(other, "not-a-key-of-anybody")
        assert (await ask(http, surface, {**own, **bad}, team)).status_code == 401


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("way", ["for all models", "for both models", "beside one of their own"])
async def test_a_credential_that_both_models_take_is_enough(sqlite_url: str, way: str, surface: str) -> None:
    shared = team_reader()
    options: dict[str, Any] = {} if way == "for all models" else {"models": [Team, Person]}
    more = [(people_reader(), {"models": [Person]})] if way == "beside one of their own" else []
    server = world(sqlite_url, (shared, options), *more)
    async with client(server) as http:
        team = await a_team(server)
        answer = await ask(http, surface, TEAM_KEY, team)
        assert answer.status_code in (200, 201), answer.text
        unknown = await ask(http, surface, {}, team)
        assert unknown.status_code == 401


async def test_the_list_alone_needs_its_own_credential_only(database_url: str) -> None:
    server = apart(database_url)
    async with client(server) as http:
        await a_team(server)
        assert len(data_of(await http.get("/api/teams", headers=TEAM_KEY))) == 1
        assert len(data_of(await http.get("/api/people", headers=PEOPLE_KEY))) == 1
        error_of(await http.get("/api/people", headers=TEAM_KEY), 401, "UNAUTHORIZED")


async def test_guards_for_all_models_judge_the_other_identity_too(database_url: str) -> None:
    server = apart(database_url, (auth.require_role("teams"), {}))
    async with client(server) as http:
        await a_team(server)
        assert (await http.get("/api/teams", headers=TEAM_KEY)).status_code == 200
        error_of(await http.get("/api/people", headers=BOTH), 403, "FORBIDDEN")
        error_of(await http.get("/api/teams?include=people", headers=BOTH), 403, "FORBIDDEN")


async def test_an_exemption_of_the_other_model_keeps_it_open(database_url: str) -> None:
    server = world(
        database_url,
        (auth.allow_anonymous(), {"models": [Person], "operations": ["list"]}),
        (team_reader(), {"models": [Team]}),
        (people_reader(), {"models": [Person]}),
    )
    async with client(server) as http:
        await a_team(server)
        teams = data_of(await http.get("/api/teams?include=people", headers=TEAM_KEY))
        assert [person["name"] for person in teams[0]["people"]] == ["Ada"]


async def test_code_of_the_application_vouches_for_whom_it_names(database_url: str) -> None:
    server = apart(database_url)
    async with server.lifespan():
        await a_team(server)
        answer = await server.execute(
            Operation.LIST, Team, query="include=people", auth=AuthInfo(user_id="a script")
        )
        assert answer.data[0]["people"][0]["name"] == "Ada"


async def test_an_identity_that_own_middleware_sets_counts_for_both(database_url: str) -> None:
    server = Server(database=database_url)
    server.register(Team, Person)

    @server.pipeline.auth.middleware(models=[Team])
    async def by_gateway(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id=ctx.header("x-gateway-user") or "")
        await next()

    server.pipeline.auth.register(team_reader(), models=[Team])
    server.pipeline.auth.register(people_reader(), models=[Person])
    async with client(server) as http:
        await a_team(server)
        answer = await http.get("/api/teams?include=people", headers={"x-gateway-user": "ada"})
        assert answer.status_code == 200, answer.text


async def test_a_write_may_name_records_of_a_model_that_takes_its_credential_for_writes(
    database_url: str,
) -> None:
    server = world(
        database_url,
        (team_reader(), {"operations": Operation.WRITES}),
        (people_reader(), {"operations": Operation.READS}),
    )
    async with client(server) as http:
        team = await a_team(server)
        made = await http.post("/api/people", headers=TEAM_KEY, json={"name": "Eve", "team_id": team})
        assert made.status_code == 201, made.text


async def test_the_cost_of_bcrypt_can_be_chosen() -> None:
    hashed = await auth.hash_password("correct horse", algorithm="bcrypt", cost=10)
    assert hashed.startswith("$2b$10$")
    assert await auth.verify_password("correct horse", hashed)
    for cost in (4, 31):
        with pytest.raises(ValueError, match="is none of 10 to 18"):
            await auth.hash_password("correct horse", algorithm="bcrypt", cost=cost)
