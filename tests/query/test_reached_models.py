"""The auth middleware of a reached model: when it runs, what it sees, and what comes of a refusal."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import (
    AuthInfo,
    Context,
    Model,
    Next,
    Operation,
    Response,
    Server,
    field,
    has_many,
    many_to_many,
)
from maniflex.middleware import auth, db
from maniflex.testing import client
from tests.kit.http import data_of, error_of, pass_on

Declare = Callable[[Server], None]
MEMORY = "sqlite:///:memory:"


class Team(Model, global_searchable=True):
    name: str = field(filterable=True, searchable=True)
    players: list[Player] = has_many()


class Player(Model, aggregate=True, global_searchable=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    grade: int = field(default=1, filterable=True, sortable=True)
    team_id: str = field(filterable=True)
    coach_id: str | None = field(default=None, relation="Player", filterable=True)
    owner_id: str | None = field(default=None, relation="Team", readonly=True)
    games: list[Game] = many_to_many(through="Lineup")


class Game(Model, global_searchable=True):
    name: str = field(filterable=True, searchable=True)
    players: list[Player] = many_to_many(through="Lineup")


class Lineup(Model):
    player_id: str = field(filterable=True)
    game_id: str = field(filterable=True)


MODELS: tuple[type[Model], ...] = (Team, Player, Game, Lineup)


@asynccontextmanager
async def serving(database: str, declare: Declare) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(*MODELS)
    server.enable_global_search()
    declare(server)
    async with client(server, database=database) as http:
        if not await server.db(Team).exists("t"):
            await furnish(server)
        yield http


async def furnish(server: Server) -> None:
    await server.db(Team).create(id="t", name="word team")
    for grade in (1, 2):
        await server.db(Player).create(id=f"p{grade}", name=f"word p{grade}", grade=grade, team_id="t")
    await server.db(Player).update("p1", coach_id="p2")
    await server.db(Game).create(id="g", name="word game")
    await server.db(Lineup).create(player_id="p1", game_id="g")


def refusing(*models: type[Model], **more: Any) -> Declare:
    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=models, **more)
        async def refuse(ctx: Context, next: Next) -> None:
            ctx.abort(403, "CLOSED", f"{ctx.model.name} is closed")

    return declare


async def test_it_runs_once_however_often_the_model_is_met(database_url: str) -> None:
    seen: list[tuple[str, str, str, bool]] = []

    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Player])
        async def note(ctx: Context, next: Next) -> None:
            seen.append((ctx.model.name, ctx.operation, ctx.resource_id, ctx.parent is not None))
            await next()

    wide = "include=players.coach&filter=players.name:not_null&filter=players.coach.grade:gt:0"
    async with serving(database_url, declare) as http:
        data_of(await http.get(f"/api/teams?{wide}"))
        data_of(await http.get(f"/api/teams/t?{wide}"))
        data_of(await http.get("/api/teams?filter=name:not_null"))
        data_of(await http.get("/api/players"))

    reached = ("Player", "list", "", True)
    assert seen == [reached, reached, ("Player", "list", "", False)]


async def test_middleware_for_all_models_is_not_run_again(database_url: str) -> None:
    seen: list[str] = []

    def declare(server: Server) -> None:
        async def note(ctx: Context, next: Next) -> None:
            seen.append(ctx.model.name)
            await next()

        server.pipeline.auth.register(note)
        server.pipeline.auth.register(note, models=[Player])

    async with serving(database_url, declare) as http:
        data_of(await http.get("/api/teams?include=players"))

    assert seen == ["Team"]


async def test_middleware_for_several_models_runs_for_each_of_them(database_url: str) -> None:
    """It may decide by `ctx.model`, so what it said about one model says nothing about another."""

    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Team, Player, Game])
        async def decide(ctx: Context, next: Next) -> None:
            if ctx.model.name == "Player":
                ctx.abort(403, "CLOSED", "no")
            await next()

    async with serving(database_url, declare) as http:
        data_of(await http.get("/api/teams"))
        for path in ("teams?include=players", "games?filter=players.name:not_null", "players"):
            error_of(await http.get(f"/api/{path}"), 403, "CLOSED")


@pytest.mark.parametrize(
    "path",
    [
        "teams?include=players",
        "teams/t?include=players.coach",
        "teams?filter=players.grade:gt:0",
        "teams?filter[0]=players.grade:gt:0&filter[0]=name:eq:x",
        "teams?filter=players.name:eq_field:name",
        "games?include=players",
        "games?filter=players.team.name:eq:x",
        "lineups?sort=player.grade",
        "lineups?include=player.team",
        "search?q=word&models=Player",
    ],
)
async def test_a_refusal_refuses_with_its_own_status(database_url: str, path: str) -> None:
    async with serving(database_url, refusing(Player)) as http:
        for method in ("GET", "HEAD"):
            answer = await http.request(method, f"/api/{path}")
            assert answer.status_code == 403, answer.text
        error_of(await http.get(f"/api/{path}"), 403, "CLOSED")


async def test_an_aggregate_reaches_by_its_conditions_wherever_it_is_read(database_url: str) -> None:
    async def skip(ctx: Context, next: Next) -> None:
        await next()  # in place of the step that reads the request; the database step reads it then

    def declare(server: Server) -> None:
        refusing(Team)(server)
        server.pipeline.deserialize.register(skip, models=[Player], operations=[Operation.HEAD], at="replace")

    spec = {"select": [{"op": "count"}], "where": [{"field": "team.name", "value": "word team"}]}
    path = f"/api/players/aggregate?aggregate={quote(json.dumps(spec))}"
    async with serving(database_url, declare) as http:
        for method in ("GET", "HEAD"):
            assert (await http.request(method, path)).status_code == 403
        body = json.dumps(spec).encode()
        error_of(await http.request("GET", "/api/players/aggregate", content=body), 403, "CLOSED")


async def test_a_description_names_the_refusals_of_reached_models(database_url: str) -> None:
    async with serving(database_url, refusing(Player, operations=[Operation.LIST])) as http:
        paths = (await http.get("/api/openapi.json")).json()["paths"]

    assert "403" in paths["/api/teams"]["get"]["responses"]
    assert "403" not in paths["/api/players/{id}"]["delete"]["responses"]


async def test_a_junction_is_reached_with_what_it_ties(database_url: str) -> None:
    async with serving(database_url, refusing(Lineup)) as http:
        for path in ("games?include=players", "players?filter=games.name:eq:x", "lineups"):
            error_of(await http.get(f"/api/{path}"), 403, "CLOSED")
        data_of(await http.get("/api/players?include=team"))


async def test_a_guard_for_lists_alone_covers_what_is_included_and_not_what_is_written(
    database_url: str,
) -> None:
    async with serving(database_url, refusing(Player, operations=[Operation.LIST])) as http:
        error_of(await http.get("/api/teams/t?include=players"), 403, "CLOSED")
        error_of(await http.get("/api/players/p1?include=coach"), 403, "CLOSED")
        data_of(await http.get("/api/players/p1"))
    async with serving(database_url, refusing(Player, operations=Operation.WRITES)) as http:
        data_of(await http.get("/api/teams/t?include=players"))


async def test_a_key_in_a_body_reaches_the_model_it_names(database_url: str) -> None:
    async with serving(database_url, refusing(Team)) as http:
        for team in ("t", "nobody"):
            body = {"name": "new", "team_id": team}
            error_of(await http.post("/api/players", json=body), 403, "CLOSED")
            error_of(await http.patch("/api/players/p1", json={"team_id": team}), 403, "CLOSED")
        # A key that a client cannot set names nothing.
        data_of(await http.patch("/api/players/p1", json={"owner_id": "t", "name": "n"}))


async def test_a_key_the_server_sets_reaches_nothing(database_url: str) -> None:
    def declare(server: Server) -> None:
        refusing(Team)(server)

        @server.pipeline.auth.middleware(models=[Player])
        async def own_team(ctx: Context, next: Next) -> None:
            if ctx.header("x-way") == "force":
                ctx.query.force("team_id", "t")
            else:
                ctx.set_field("team_id", "t")
            await next()

    async with serving(database_url, declare) as http:
        for way in ("force", "set"):
            for body in ({"name": "new"}, {"name": "new", "team_id": "x"}):
                made = data_of(await http.post("/api/players", json=body, headers={"x-way": way}), 201)
                assert made["team_id"] == "t"


async def test_a_guard_can_tell_that_it_is_asked_about_a_reference(database_url: str) -> None:
    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Team])
        async def guard(ctx: Context, next: Next) -> None:
            if ctx.parent is None or ctx.parent.operation not in Operation.WRITES:
                ctx.abort(403, "CLOSED", "no")
            await next()

    async with serving(database_url, declare) as http:
        data_of(await http.post("/api/players", json={"name": "new", "team_id": "t"}), 201)
        error_of(await http.get("/api/players?include=team"), 403, "CLOSED")


async def test_the_view_shares_request_identity_and_state_and_keeps_its_own_identity(
    database_url: str,
) -> None:
    seen: dict[str, Any] = {}

    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware()
        async def identify(ctx: Context, next: Next) -> None:
            ctx.auth = AuthInfo(user_id="u")
            ctx.state.first = "from the request"
            await next()

        @server.pipeline.auth.middleware(models=[Player])
        async def raise_up(ctx: Context, next: Next) -> None:
            assert ctx.auth is not None
            seen["view"] = (ctx.auth.user_id, ctx.state.first, ctx.header("x-a"), ctx.query_param("include"))
            seen["same request"] = ctx.request.url.path
            ctx.auth = AuthInfo(user_id="root", roles=("admin",))
            ctx.state.second = "from the view"
            await next()

        @server.pipeline.auth.middleware(models=[Player])
        async def later(ctx: Context, next: Next) -> None:
            seen["later"] = ctx.has_role("admin")
            await next()

        @server.pipeline.service.middleware()
        async def after(ctx: Context, next: Next) -> None:
            seen["request"] = (ctx.has_role("admin"), ctx.state.second, ctx.model.name)
            await next()

    async with serving(database_url, declare) as http:
        data_of(await http.get("/api/teams?include=players", headers={"x-a": "b"}))

    assert seen == {
        "view": ("u", "from the request", "b", "players"),
        "same request": "/api/teams",
        "later": True,
        "request": (False, "from the view", "Team"),
    }


async def test_what_it_forces_or_filters_binds_that_model_alone(database_url: str) -> None:
    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Player])
        async def few(ctx: Context, next: Next) -> None:
            if ctx.header("x-way") == "force":
                ctx.query.force("name", "word p2")
            else:
                ctx.query.add_filter("name", "word p2")
            await next()

    async with serving(database_url, declare) as http:
        for way in ("force", "filter"):
            headers = {"x-way": way}
            [team] = data_of(await http.get("/api/teams?include=players", headers=headers))
            hidden = data_of(await http.get("/api/teams?filter=players.grade:eq:1", headers=headers))
            [line] = data_of(await http.get("/api/lineups?include=player", headers=headers))
            hits = data_of(await http.get("/api/search?q=word", headers=headers))
            assert (team["name"], [p["id"] for p in team["players"]]) == ("word team", ["p2"])
            assert hidden == []
            assert "player" not in line
            assert sorted(hit["id"] for hit in hits) == ["g", "p2", "t"]


async def test_an_answer_without_next_refuses_whatever_it_is(database_url: str) -> None:
    answers = {
        "403": Response(403, error={"code": "OWN", "message": "own"}),
        "200": Response(200, {"cached": "list of players"}),
        "nothing": None,
    }

    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Player])
        async def answer(ctx: Context, next: Next) -> None:
            ctx.response = answers[ctx.header("x-way") or ""]

    async with serving(database_url, declare) as http:

        async def ask(way: str) -> httpx.Response:
            return await http.get("/api/teams?include=players", headers={"x-way": way})

        error_of(await ask("403"), 403, "OWN")
        error_of(await ask("200"), 403, "FORBIDDEN")
        error_of(await ask("nothing"), 500, "PANIC")


async def test_it_refuses_before_anything_is_written_and_the_response_step_sees_it(database_url: str) -> None:
    seen: list[int] = []

    def declare(server: Server) -> None:
        refusing(Team)(server)

        @server.pipeline.response.middleware(models=[Player])
        async def look(ctx: Context, next: Next) -> None:
            await next()
            assert ctx.response is not None
            seen.append(ctx.response.status)

        @server.pipeline.service.middleware(models=[Player])
        async def never(ctx: Context, next: Next) -> None:
            raise AssertionError("the request went on")

    async with serving(database_url, declare) as http:
        error_of(await http.post("/api/players", json={"name": "n", "team_id": "t"}), 403, "CLOSED")
        error_of(await http.get("/api/players?include=team"), 403, "CLOSED")

    assert seen == [403, 403]


async def test_global_search_leaves_out_what_refuses_unless_it_is_named(database_url: str) -> None:
    async with serving(database_url, refusing(Player)) as http:
        hits = data_of(await http.get("/api/search?q=word"))
        error_of(await http.get("/api/search?q=word&models=Player,Team"), 403, "CLOSED")
        data_of(await http.get("/api/search?q=word&models=Team"))
    assert sorted(hit["model"] for hit in hits) == ["Game", "Team"]

    async with serving(database_url, refusing(Player, Team, Game)) as http:
        error_of(await http.get("/api/search?q=word"), 403, "CLOSED")


async def test_a_plain_function_in_a_thread_guards_too(database_url: str) -> None:
    threads: list[int] = []

    def declare(server: Server) -> None:
        def guard(ctx: Context, next: Callable[[], None]) -> None:
            threads.append(threading.get_ident())
            ctx.query.force("name", "word p1")
            next()

        server.pipeline.auth.register(guard, models=[Player])

    async with serving(database_url, declare) as http:
        [team] = data_of(await http.get("/api/teams?include=players"))

    assert [p["id"] for p in team["players"]] == ["p1"]
    assert threads != [threading.get_ident()]


async def test_positions_hold_and_own_middleware_of_a_class_counts(database_url: str) -> None:
    seen: list[str] = []

    def noting(word: str) -> Any:
        async def note(ctx: Context, next: Next) -> None:
            seen.append(word)
            await next()

        return note

    def declare(server: Server) -> None:
        for position in ("after", "replace", "before"):
            server.pipeline.auth.register(noting(position), models=[Player], at=position)
        server.pipeline.auth.register(noting("last replace"), models=[Player], at="replace")

    async with serving(database_url, declare) as http:
        data_of(await http.get("/api/teams?include=players"))

    assert seen == ["before", "last replace", "after"]


async def test_code_of_the_application_runs_no_middleware_of_models(database_url: str) -> None:
    """What the auth step adds to a query is code as well: only what a client asks for reaches."""

    def declare(server: Server) -> None:
        refusing(Player)(server)

        @server.pipeline.auth.middleware(models=[Team])
        async def narrow(ctx: Context, next: Next) -> None:
            ctx.query.add_filter("players.name", "word p1")
            await ctx.db(Team).list(include="players")
            await next()

    async with serving(database_url, declare) as http:
        assert len(data_of(await http.get("/api/teams"))) == 1
        error_of(await http.get("/api/teams?filter=players.name:not_null"), 403, "CLOSED")


async def test_after_commit_of_a_view_belongs_to_the_request(database_url: str) -> None:
    done = asyncio.Event()

    def declare(server: Server) -> None:
        @server.pipeline.auth.middleware(models=[Player])
        async def later(ctx: Context, next: Next) -> None:
            ctx.after_commit(done.set)
            await next()

    async with serving(database_url, declare) as http:
        data_of(await http.get("/api/teams?include=players"))

    assert done.is_set()


@pytest.mark.parametrize(("operation", "guarded"), [(Operation.CREATE, False), (Operation.LIST, True)])
def test_only_routes_that_reach_a_guarded_model_have_such_a_step(operation: Operation, guarded: bool) -> None:
    server = Server(database="sqlite:///:memory:")
    server.register(*MODELS)
    server.pipeline.auth.register(pass_on)
    server.pipeline.auth.register(some_guard, models=[Player], operations=[operation])
    endpoints = [e for e in server._seal().endpoints if e.model is not None and e.model.name == "Team"]

    assert any("Reach" in repr(_closures(e.main)) for e in endpoints) is guarded


async def some_guard(ctx: Context, next: Next) -> None:
    await next()


def _closures(handler: Any, depth: int = 6) -> list[Any]:
    """What a composed handler holds, as far down as chains go."""
    cells = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]
    cells.append(getattr(handler, "steps", ()))
    held = [item for cell in cells for item in (cell if isinstance(cell, list | tuple) else [cell])]
    return [*held, *(inner for item in held for inner in (_closures(item, depth - 1) if depth else ()))]


WAYS_TO_PLAYERS = (
    "/api/teams?include=players",
    "/api/teams/t?include=players.coach",
    "/api/teams?filter=players.name:eq:x",
    "/api/games?include=players",
    "/api/players/p1?include=coach",
    "/api/search?q=word&models=Player",
)


async def test_a_guard_for_single_records_stands_before_reached_rows() -> None:
    """A model may be served without its list; what guards its records is then all that guards it."""
    async with serving(MEMORY, refusing(Player, operations=[Operation.READ])) as http:
        data_of(await http.get("/api/teams"))
        for path in WAYS_TO_PLAYERS:
            error_of(await http.get(path), 403, "CLOSED")
        named = await http.post("/api/players", json={"name": "n", "team_id": "t", "coach_id": "p1"})
        error_of(named, 403, "CLOSED")


async def test_a_scope_rule_for_single_records_binds_reached_rows() -> None:
    def declare(server: Server) -> None:
        rule = db.force_filter("grade", 2)
        server.pipeline.auth.register(rule, models=[Player], operations=[Operation.READ])

        @server.action("GET", "/teams_in_code")
        async def in_code(ctx: Context) -> list[str]:
            [team] = await ctx.db(Team).list(include="players")
            return [player.id for player in team.players]

    async with serving(MEMORY, declare) as http:
        for path in (
            "/api/teams/t?include=players",
            "/api/teams?include=players",
            "/api/games/g?include=players",
        ):
            assert "word p1" not in (await http.get(path)).text, path
        assert data_of(await http.get("/api/teams?filter=players.name:eq:word%20p1")) == []
        assert data_of(await http.get("/api/teams_in_code")) == ["p2"]


async def test_a_policy_for_single_records_closes_filters_through_the_model() -> None:
    def declare(server: Server) -> None:
        policy = auth.enforce(lambda ctx, record: record.grade == 2)
        server.pipeline.db.register(policy, models=[Player], operations=[Operation.READ])

    async with serving(MEMORY, declare) as http:
        assert "word p1" not in (await http.get("/api/teams/t?include=players")).text
        error_of(await http.get("/api/teams?filter=players.name:eq:x"), 403, "FORBIDDEN")
        error_of(await http.get("/api/search?q=word&models=Player"), 403, "FORBIDDEN")
        assert data_of(await http.get("/api/players?q=word"))


@pytest.mark.parametrize(
    ("exempted", "status"), [("list", 401), ("read", 401), (("list", "read"), 200), (None, 401)]
)
async def test_an_exemption_opens_what_it_is_for(exempted: Any, status: int) -> None:
    """Lists need no key; single records do, unless the exemption is for them too."""

    def declare(server: Server) -> None:
        register = server.pipeline.auth.register
        if exempted is not None:
            register(auth.allow_anonymous(), models=[Player], operations=exempted)
        register(auth.api_keys(keys={"k": AuthInfo(user_id="u")}), models=[Player], operations="read")
        register(auth.api_keys(keys={"k": AuthInfo(user_id="u")}), models=[Player], operations="list")

    async with serving(MEMORY, declare) as http:
        assert (await http.get("/api/teams?include=players")).status_code == status
        keyed = await http.get("/api/teams?include=players", headers={"x-api-key": "k"})
        assert keyed.status_code == 200
