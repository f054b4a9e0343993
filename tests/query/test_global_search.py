"""Searching several models at once: `ctx.search` in code, and the endpoint over models that opted in."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Server, WithDeletedAt, field
from maniflex.pipeline.search import SearchHit, merge_hits
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of


class Article(Model, WithDeletedAt, global_searchable=True):
    text: str = field(searchable=True)
    team: str = ""


class Comment(Model, global_searchable=True):
    text: str = field(searchable=True)
    team: str = ""


class Draft(Model):
    text: str = field(searchable=True)


class Tag(Model):
    text: str


def a_server(**search: Any) -> Server:
    server = Server()
    server.register(Article, Comment, Draft, Tag)
    server.enable_global_search(**search)
    return server


async def fill(http: Any) -> dict[str, str]:
    """Name → id of what is there."""
    texts = {
        "dense": ("articles", "wireless wireless wireless"),
        "thin": ("articles", "a long text that says wireless once and otherwise many things, all dull"),
        "comment": ("comments", "wireless is nice"),
        "draft": ("drafts", "wireless draft"),
    }
    return {
        name: (await created(http, f"/api/{table}", text=text))["id"] for name, (table, text) in texts.items()
    }


async def test_the_endpoint_merges_the_hits_of_models_that_opted_in(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        ids = await fill(http)

        hits = data_of(await http.get("/api/search?q=wireless"))

    assert {(hit["model"], hit["id"]) for hit in hits} == {
        ("Article", ids["dense"]),
        ("Article", ids["thin"]),
        ("Comment", ids["comment"]),
    }
    assert [hit["id"] for hit in hits if hit["model"] == "Article"] == [ids["dense"], ids["thin"]]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert all(hit.keys() == {"model", "id", "snippet", "score"} and hit["score"] > 0 for hit in hits)
    assert all("wireless" in hit["snippet"] for hit in hits)


async def test_soft_deleted_records_are_not_found(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        ids = await fill(http)
        await http.delete(f"/api/articles/{ids['dense']}")

        hits = data_of(await http.get("/api/search?q=wireless&models=Article"))

    assert [hit["id"] for hit in hits] == [ids["thin"]]


async def test_the_endpoint_takes_a_subset_of_models_and_a_clamped_limit(database_url: str) -> None:
    async with client(a_server(default_limit=2, max_limit=3), database=database_url) as http:
        await fill(http)
        for _ in range(4):
            await created(http, "/api/comments", text="wireless too")

        models = data_of(await http.get("/api/search?q=wireless&models=Comment,%20Comment&limit=3"))
        sizes = [
            len(data_of(await http.get(f"/api/search?q=wireless{more}")))
            for more in ("", "&limit=1", "&limit=99")
        ]

    assert {hit["model"] for hit in models} == {"Comment"}
    assert sizes == [2, 1, 3]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?q=",
        "?q=%20",
        "?q=a&models=Draft",
        "?q=a&models=Tag",
        "?q=a&models=Nothing",
        "?q=a&models=,",
        "?q=a&models=",
    ]
    + [f"?q=a&limit={text}" for text in ("0", "-1", "x", "1.5", "", "1000000001")]
    + ["?q=" + "x" * 501, "?q=%00", "?q=%ff"],
)
async def test_a_wrong_request_is_refused(database_url: str, query: str) -> None:
    async with client(a_server(), database=database_url) as http:
        error_of(await http.get(f"/api/search{query}"), 400, "INVALID_QUERY")


async def test_a_text_without_a_word_finds_nothing(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        await fill(http)

        assert data_of(await http.get("/api/search", params={"q": '"*()'})) == []
        assert data_of(await http.get("/api/search", params={"q": "\x1f", "limit": 1_000_000_000})) == []


async def test_the_endpoint_lies_where_it_is_put(database_url: str) -> None:
    async with client(a_server(path="/find/all"), database=database_url) as http:
        assert data_of(await http.get("/api/find/all?q=a")) == []
        assert (await http.get("/api/search?q=a")).status_code == 404


async def test_auth_middleware_guards_the_endpoint_and_response_middleware_sees_its_answer(
    database_url: str,
) -> None:
    server = a_server()
    seen: list[Any] = []

    async def known(ctx: Context, next: Next) -> None:
        if ctx.header("x-user") is None:
            ctx.abort(401, "UNAUTHORIZED", "who are you?")
        await next()

    async def watching(ctx: Context, next: Next) -> None:
        await next()
        seen.append(ctx.response)

    server.pipeline.auth.register(known, operations=Operation.SEARCH)
    server.pipeline.response.register(watching, operations=Operation.SEARCH)
    async with client(server, database=database_url) as http:
        error_of(await http.get("/api/search?q=a"), 401, "UNAUTHORIZED")
        assert data_of(await http.get("/api/search?q=a", headers={"x-user": "ada"})) == []
        assert (await http.get("/api/articles")).status_code == 200

    assert [response.status for response in seen] == [401, 200]


async def test_a_scope_forced_in_the_auth_step_binds_the_endpoint(database_url: str) -> None:
    class Shared(Model, global_searchable=True):
        text: str = field(searchable=True)

    server = Server()
    server.register(Article, Comment, Shared)
    server.enable_global_search()

    async def of_my_team(ctx: Context, next: Next) -> None:
        ctx.query.force(ctx.header("x-by") or "team", ctx.header("x-team"))
        await next()

    server.pipeline.auth.register(of_my_team, operations=Operation.SEARCH)
    async with client(server, database=database_url) as http:
        for team in ("red", "blue"):
            await created(http, "/api/articles", text="wireless", team=team)
            await created(http, "/api/comments", text=f"wireless {team}", team=team)
        await created(http, "/api/shareds", text="wireless for all")
        mine = {"x-team": "red"}

        hits = data_of(await http.get("/api/search?q=wireless", headers=mine))
        foreign = data_of(await http.get("/api/search?q=blue", headers=mine))
        closed = await http.get("/api/search?q=wireless&models=Shared", headers=mine)
        unknown = await http.get("/api/search?q=wireless", headers={**mine, "x-by": "nothing"})
        unset = await http.get("/api/search?q=wireless")

    # What has no such field cannot be bound, so nothing of it is shown.
    assert sorted(hit["model"] for hit in hits) == ["Article", "Comment"]
    assert foreign == []
    refused = error_of(closed, 400, "INVALID_QUERY")
    assert refused["message"] == "models: 'Shared' cannot be searched here"
    assert error_of(unknown, 500, "INTERNAL") == error_of(unset, 500, "INTERNAL")
    assert "team" not in unknown.text


@pytest.mark.parametrize("step", ["deserialize", "validate", "service", "db"])
def test_middleware_for_search_on_a_step_it_never_reaches_stops_the_start(step: str) -> None:
    server = a_server()

    async def middleware(ctx: Context, next: Next) -> None: ...

    getattr(server.pipeline, step).register(middleware, operations=[Operation.SEARCH])

    with pytest.raises(DeclarationError, match=f"search requests never reach the {step} step"):
        server.seal()


def test_middleware_for_search_of_one_model_stops_the_start() -> None:
    server = a_server()

    async def middleware(ctx: Context, next: Next) -> None: ...

    server.pipeline.auth.register(middleware, models=[Article], operations=[Operation.SEARCH])

    with pytest.raises(DeclarationError, match="belongs to no model"):
        server.seal()


@pytest.mark.parametrize("step", ["auth", "service", "db"])
def test_middleware_for_all_reads_may_stand_on_any_step(step: str) -> None:
    server = a_server()

    async def middleware(ctx: Context, next: Next) -> None: ...

    getattr(server.pipeline, step).register(middleware, models=[Article], operations=Operation.READS)

    server.seal()


class Unsearchable(Model, global_searchable=True):
    text: str


class Spoken(Model, search_language="german"):
    text: str


class Vector(Model):
    text: str = field(searchable=True)
    search_vector: str = ""


class Beside(Model, table="articles_fts"):
    text: str


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (Unsearchable, "global_searchable needs a field with searchable"),
        (Spoken, "search_language needs a field with searchable"),
        (Vector, "the column 'search_vector' is the one searching uses"),
        (Beside, "the table 'articles_fts' is the one searching Article uses"),
    ],
)
def test_a_model_that_cannot_be_searched_stops_the_start(model: type[Model], problem: str) -> None:
    server = Server()
    server.register(Article, model)

    with pytest.raises(DeclarationError, match=problem):
        server.seal()


@pytest.mark.parametrize(
    "search",
    [{"path": "search"}, {"path": "/s/{id}"}, {"default_limit": 0}, {"default_limit": 9, "max_limit": 5}],
)
def test_an_endpoint_that_makes_no_sense_stops_the_start(search: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="enable_global_search"):
        a_server(**search).seal()


def test_the_endpoint_is_enabled_once_and_before_the_start() -> None:
    server = a_server()
    with pytest.raises(DeclarationError, match="already"):
        server.enable_global_search()
    server.seal()
    with pytest.raises(DeclarationError, match="sealed"):
        server.enable_global_search()


# -- ctx.search


async def test_code_searches_the_models_it_names_and_sees_its_own_transaction(database_url: str) -> None:
    server = a_server()

    @server.action("POST", "/try")
    async def attempt(ctx: Context) -> Any:
        async with ctx.transaction():
            await ctx.db(Draft).create(text="wireless, not committed yet")
            inside = await ctx.search("uncommitted OR committed")
            inside += await ctx.search("committed", models=[Draft, "Comment"])
            ctx.response = None
        return inside

    @server.action("GET", "/find")
    async def find(ctx: Context) -> Any:
        return {
            "all": await ctx.search("wireless"),
            "drafts": await ctx.search("wireless", models=Draft),
            "named": await ctx.search(query="wireless", models=["Draft", Comment, "Draft"], limit=2),
            "none": await ctx.search("wireless", models=[]),
            "blank": await ctx.search("  ", models=[Draft]),
            "endless": await ctx.search("wireless", models=[Draft], limit=0, per_model_limit=-1),
        }

    async with client(server, database=database_url) as http:
        await fill(http)
        found = data_of(await http.get("/api/find"))
        inside = data_of(await http.post("/api/try"))

    assert {hit["model"] for hit in found["all"]} == {"Article", "Comment"}
    assert [hit["model"] for hit in found["drafts"]] == ["Draft"]
    assert sorted(hit["model"] for hit in found["named"]) == ["Comment", "Draft"]
    assert (found["none"], found["blank"], len(found["endless"])) == ([], [], 1)
    assert [hit["model"] for hit in inside] == ["Draft"]


@pytest.mark.parametrize("name", ["Tag", "Nothing"])
async def test_code_that_searches_what_cannot_be_searched_is_refused(database_url: str, name: str) -> None:
    server = a_server()

    @server.action("GET", "/find")
    async def find(ctx: Context) -> Any:
        return await ctx.search("a", models=[ctx.query_param("model")])

    async with client(server, database=database_url) as http:
        error = error_of(await http.get(f"/api/find?model={name}"), 400, "INVALID_QUERY")

    assert error["message"] == f"there is no model {name!r} that can be searched"


async def test_a_search_in_a_bound_request_is_bound(database_url: str) -> None:
    server = a_server()
    found: list[SearchHit] = []

    async def bound(ctx: Context, next: Next) -> None:
        ctx.query.force("team", "red")
        found.extend(await ctx.search("wireless", models=[Article, Comment]))
        await next()

    server.pipeline.service.register(bound, models=[Article], operations=Operation.LIST)
    async with client(server, database=database_url) as http:
        for team in ("red", "blue"):
            await created(http, "/api/articles", text="wireless", team=team)
            await created(http, "/api/comments", text="wireless", team=team)
        listed = await http.get("/api/articles?q=wireless")

    assert sorted(hit.model for hit in found) == ["Article", "Comment"]
    assert listed.json()["meta"]["total"] == 1


async def test_a_snippet_is_plain_text_around_the_match(database_url: str) -> None:
    server = a_server()
    text = "<b>first</b>\n" + "filler " * 200 + "the wireless <script> end" + " filler" * 200
    async with client(server, database=database_url) as http:
        await created(http, "/api/articles", text=text)
        await created(http, "/api/comments", text="x" * 5_000 + " wireless")

        hits = {hit["model"]: hit["snippet"] for hit in data_of(await http.get("/api/search?q=wireless"))}

    assert "wireless" in hits["Article"]
    assert "\n" not in hits["Article"]
    assert all(len(snippet) <= 240 for snippet in hits.values())


def hits(model: str, *scores: float) -> list[SearchHit]:
    return [SearchHit(model, f"{model}{place}", "", score) for place, score in enumerate(scores)]


def test_without_a_floor_the_best_scores_win() -> None:
    found = merge_hits([hits("A", 9, 8, 7), hits("B", 3, 2)], 3, 0)

    assert [(hit.model, hit.score) for hit in found] == [("A", 9), ("A", 8), ("A", 7)]


def test_a_floor_gives_each_model_its_share_and_the_best_of_the_rest_fill_up() -> None:
    found = merge_hits([hits("A", 9, 8, 7, 6), hits("B", 3, 2), hits("C", 1)], 5, 1)

    assert [(hit.model, hit.score) for hit in found] == [("A", 9), ("A", 8), ("A", 7), ("B", 3), ("C", 1)]


def test_a_floor_that_asks_for_more_than_there_is_room_keeps_the_best() -> None:
    found = merge_hits([hits("A", 9, 8), hits("B", 7, 6), hits("C", 5)], 2, 2)

    assert [hit.score for hit in found] == [9, 8]


def test_equal_scores_are_ordered_by_model_and_id() -> None:
    found = merge_hits([hits("B", 1, 1), hits("A", 1)], 5, 0)

    assert [hit.id for hit in found] == ["A0", "B0", "B1"]
