"""The six steps: their order, who runs in them, and how a request ends early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Response, Server
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, pass_on, total

STEPS = ("auth", "deserialize", "validate", "service", "db", "response")


class Post(Model):
    title: str
    views: int = 0


class Comment(Model):
    text: str


def blog() -> Server:
    server = Server()
    server.register(Post, Comment)
    return server


def noting(log: list[str], label: str) -> Callable[[Context, Next], Any]:
    async def note(ctx: Context, next: Next) -> None:
        log.append(label)
        await next()
        log.append(f"/{label}")

    return note


async def test_the_steps_run_in_order_and_nest_up_to_the_database(database_url: str) -> None:
    log: list[str] = []
    server = blog()
    for step in reversed(STEPS):
        for at in ("after", "before"):
            getattr(server.pipeline, step).register(noting(log, f"{at} {step}"), at=at)
    async with client(server, database=database_url) as http:
        await created(http, "/api/posts", title="a")
    main = [f"{at} {step}" for step in STEPS[:5] for at in ("before", "after")]
    answer = ["before response", "after response"]
    assert log == [
        *main,
        *(f"/{label}" for label in reversed(main)),
        *answer,
        *(f"/{label}" for label in reversed(answer)),
    ]


async def test_middleware_of_one_step_runs_in_the_order_of_registration(sqlite_url: str) -> None:
    log: list[str] = []
    server = blog()
    for label in ("first", "second", "third"):
        server.pipeline.service.register(noting(log, label))
    async with client(server, database=sqlite_url) as http:
        await http.get("/api/posts")
    assert log == ["first", "second", "third", "/third", "/second", "/first"]


async def test_each_step_has_done_its_work_for_what_comes_after_it(database_url: str) -> None:
    seen: dict[str, Any] = {}
    server = blog()

    @server.pipeline.deserialize.middleware(operations=[Operation.CREATE])
    async def raw(ctx: Context, next: Next) -> None:
        seen["before deserialize"] = dict(ctx.body)
        await next()

    @server.pipeline.validate.middleware(operations=[Operation.CREATE])
    async def parsed(ctx: Context, next: Next) -> None:
        seen["before validate"] = (dict(ctx.body), ctx.record)
        await next()

    @server.pipeline.db.middleware(operations=[Operation.CREATE])
    async def stored(ctx: Context, next: Next) -> None:
        seen["before db"] = (ctx.record.title, ctx.result)
        await next()
        seen["after db"] = ctx.result.title

    @server.pipeline.response.middleware(at="after", operations=[Operation.CREATE])
    async def answered(ctx: Context, next: Next) -> None:
        assert ctx.response is not None
        seen["after response"] = (ctx.response.status, ctx.response.data["title"])
        await next()

    async with client(server, database=database_url) as http:
        await created(http, "/api/posts", title="a")
    assert seen == {
        "before deserialize": {},
        "before validate": ({"title": "a"}, None),
        "before db": ("a", None),
        "after db": "a",
        "after response": (201, "a"),
    }


async def test_a_replacement_runs_instead_of_the_default_and_the_last_one_wins(sqlite_url: str) -> None:
    log: list[str] = []
    server = blog()
    server.pipeline.db.register(noting(log, "first"), at="replace", models=[Post], operations=["list"])

    @server.pipeline.db.middleware(at="replace", models=[Post], operations=["list"])
    async def cached(ctx: Context, next: Next) -> None:
        ctx.result = [{"title": "from the cache"}]
        await next()

    async with client(server, database=sqlite_url) as http:
        await created(http, "/api/posts", title="a")
        assert data_of(await http.get("/api/posts")) == [{"title": "from the cache"}]
        assert data_of(await http.get("/api/comments")) == []
    assert log == []


async def test_rules_apply_to_their_models_and_operations_only(database_url: str) -> None:
    log: list[str] = []
    server = blog()

    def rule(label: str, **scope: Any) -> None:
        async def note(ctx: Context, next: Next) -> None:
            log.append(f"{label}: {ctx.model.name} {ctx.operation}")
            await next()

        server.pipeline.auth.register(note, **scope)

    rule("class", models=[Post], operations=[Operation.CREATE])
    rule("name", models="Comment", operations="create")
    rule("writes", models=Post, operations=Operation.WRITES)
    rule("reads", operations=Operation.READS)
    async with client(server, database=database_url) as http:
        post = await created(http, "/api/posts", title="a")
        await created(http, "/api/comments", text="a")
        one = f"/api/posts/{post['id']}"
        await http.patch(one, json={"title": "b"})
        await http.get(one)
        await http.get("/api/comments")
        await http.delete(one)
        await http.options(one)
    assert log == [
        "class: Post create",
        "writes: Post create",
        "name: Comment create",
        "writes: Post update",
        "reads: Post read",
        "reads: Comment list",
        "writes: Post delete",
    ]


async def refuse(ctx: Context, next: Next) -> None:
    ctx.abort(403, "CLOSED", "not for you", [{"field": "x", "message": "y"}])


@pytest.mark.parametrize("operation", [Operation.READ, Operation.LIST])
async def test_a_rule_for_reading_covers_the_head_of_the_same_path(
    database_url: str, operation: Operation
) -> None:
    server = blog()
    server.pipeline.auth.register(refuse, operations=[operation])
    async with client(server, database=database_url) as http:
        post = await created(http, "/api/posts", title="a")
        paths = {Operation.READ: f"/api/posts/{post['id']}", Operation.LIST: "/api/posts"}
        closed = paths.pop(operation)
        [other] = paths.values()
        assert (await http.get(closed)).status_code == 403
        assert (await http.head(closed)).status_code == 403
        assert (await http.get(other)).status_code == 200
        assert (await http.head(other)).status_code == 200


async def test_abort_ends_the_request_where_it_stands(database_url: str) -> None:
    log: list[str] = []
    server = blog()

    @server.pipeline.service.middleware(operations=["create"])
    async def stop(ctx: Context, next: Next) -> None:
        ctx.abort(409, "NOT_NOW", "come back later", {"after": 5})
        log.append("after abort")  # type: ignore[unreachable]
        await next()

    async with client(server, database=database_url) as http:
        error = error_of(await http.post("/api/posts", json={"title": "a"}), 409, "NOT_NOW")
        assert error == {"code": "NOT_NOW", "message": "come back later", "details": {"after": 5}}
        assert await total(http, "/api/posts") == 0
    assert log == []


@pytest.mark.parametrize("step", STEPS[:5])
async def test_setting_a_response_and_not_going_on_ends_the_request(database_url: str, step: str) -> None:
    server = blog()

    async def answer(ctx: Context, next: Next) -> None:
        ctx.response = Response(202, {"queued": True}, headers={"X-Queue": "q1"})

    getattr(server.pipeline, step).register(answer, operations=["create"])
    async with client(server, database=database_url) as http:
        response = await http.post("/api/posts", json={"title": "a"})
        assert data_of(response, 202) == {"queued": True}
        assert response.headers["x-queue"] == "q1"
        assert await total(http, "/api/posts") == 0


async def test_an_answer_that_has_no_body_is_sent_without_one(sqlite_url: str) -> None:
    server = blog()

    @server.pipeline.service.middleware(operations=["list"])
    async def unchanged(ctx: Context, next: Next) -> None:
        ctx.response = Response(304, headers={"etag": '"v1"'})

    async with client(server, database=sqlite_url) as http:
        response = await http.get("/api/posts")
        assert (response.status_code, response.content) == (304, b"")
        assert "content-length" not in response.headers
        assert response.headers["etag"] == '"v1"'


async def test_response_middleware_sees_refusals_and_panics_too(database_url: str) -> None:
    seen: list[int] = []
    server = blog()

    @server.pipeline.service.middleware(models=[Comment])
    async def broken(ctx: Context, next: Next) -> None:
        raise RuntimeError("no")

    @server.pipeline.response.middleware(at="after")
    async def brand(ctx: Context, next: Next) -> None:
        assert ctx.response is not None
        seen.append(ctx.response.status)
        ctx.response.set_header("x-brand", "ours")
        await next()

    async with client(server, database=database_url) as http:
        answers = [
            await http.post("/api/posts", json={"title": "a"}),
            await http.post("/api/posts", json={}),
            await http.post("/api/posts", content=b"{"),
            await http.get("/api/posts/none"),
            await http.get("/api/comments"),
        ]
        assert [a.headers["x-brand"] for a in answers] == ["ours"] * 5
    assert seen == [a.status_code for a in answers] == [201, 422, 400, 404, 500]


async def test_response_middleware_may_change_the_answer(sqlite_url: str) -> None:
    server = blog()

    @server.pipeline.response.middleware(at="after", operations=["list"])
    async def count(ctx: Context, next: Next) -> None:
        assert ctx.response is not None
        ctx.response.meta = {**ctx.response.meta, "note": "hello"}
        ctx.response.data = [row["title"] for row in ctx.response.data]
        await next()

    async with client(server, database=sqlite_url) as http:
        await created(http, "/api/posts", title="a")
        body = (await http.get("/api/posts")).json()
        assert body["data"] == ["a"]
        assert (body["meta"]["note"], body["meta"]["total"]) == ("hello", 1)


async def test_a_changed_result_is_what_the_client_gets(database_url: str) -> None:
    server = blog()

    @server.pipeline.service.middleware(operations=["read", "list"])
    async def shout(ctx: Context, next: Next) -> None:
        await next()
        for post in [ctx.result] if ctx.operation is Operation.READ else ctx.result:
            post.title = post.title.upper()

    async with client(server, database=database_url) as http:
        post = await created(http, "/api/posts", title="a")
        assert data_of(await http.get(f"/api/posts/{post['id']}")) == {**post, "title": "A"}
        listed = (await http.get("/api/posts")).json()
        assert (listed["data"], listed["meta"]["total"]) == ([{**post, "title": "A"}], 1)


async def test_a_model_brings_its_own_middleware(database_url: str) -> None:
    log: list[str] = []

    class Letter(
        Model,
        middleware={"auth": noting(log, "auth"), "service": [noting(log, "one"), noting(log, "two")]},
    ):
        text: str

    server = blog()
    server.register(Letter)
    async with client(server, database=database_url) as http:
        await http.get("/api/posts")
        assert log == []
        await http.get("/api/letters")
        assert log == ["auth", "one", "two", "/two", "/one", "/auth"]


def sealed_with(register: Callable[[Server], None]) -> str:
    """What stops the start of a server whose middleware is registered like this."""
    server = blog()
    register(server)
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    return str(caught.value)


@pytest.mark.parametrize("step", STEPS[1:5])
@pytest.mark.parametrize("operation", [Operation.ACTION, Operation.OPTIONS])
def test_middleware_on_a_step_its_operations_never_reach_stops_the_start(
    step: str, operation: Operation
) -> None:
    def register(server: Server) -> None:
        getattr(server.pipeline, step).register(pass_on, operations=[Operation.CREATE, operation])

    message = sealed_with(register)
    assert f"pipeline.{step}" in message
    assert "pass_on" in message
    assert operation in message


def test_a_rule_for_the_actions_of_a_model_stops_the_start_because_actions_have_none() -> None:
    def register(server: Server) -> None:
        server.pipeline.auth.register(pass_on, models=[Post], operations=[Operation.ACTION], name="gate")

    assert "gate" in sealed_with(register)


def test_an_unknown_model_name_stops_the_start_and_is_guessed() -> None:
    message = sealed_with(lambda server: server.pipeline.auth.register(pass_on, models=["Psot"], name="gate"))
    assert "gate" in message
    assert "'Psot'" in message
    assert "Post" in message


@pytest.mark.parametrize(
    "scope",
    [
        {"models": []},
        {"operations": []},
        {"operations": ["destroy"]},
        {"at": "around"},
        {"models": [int]},
    ],
)
def test_a_scope_that_means_nothing_is_refused_at_once(scope: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        blog().pipeline.auth.register(pass_on, **scope)


def test_a_model_with_middleware_on_an_unknown_step_stops_the_start() -> None:
    class Letter(Model, middleware={"servcie": pass_on}):
        text: str

    server = blog()
    server.register(Letter)
    with pytest.raises(DeclarationError, match="service"):
        server.seal()


async def test_nothing_can_be_registered_once_the_server_is_sealed(sqlite_url: str) -> None:
    server = blog()
    async with client(server, database=sqlite_url) as http:
        with pytest.raises(DeclarationError):
            server.pipeline.auth.register(refuse)
        with pytest.raises(DeclarationError):
            server.register(type("Late", (Model,), {"__annotations__": {"a": str}}))
        with pytest.raises(DeclarationError):
            server.action("GET", "/late")(pass_on)
        with pytest.raises(DeclarationError):
            server.computed(Post, "late")(len)
        assert (await http.get("/api/posts")).status_code == 200
        assert (await http.get("/api/late")).status_code == 404
