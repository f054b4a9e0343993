"""Routes of the application's own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, StreamingResponse

from maniflex import AuthInfo, Context, DeclarationError, Model, Next, Operation, Response, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of


class Order(Model):
    title: str
    secret: str = field(default="s3cret", hidden=True)
    pin: str = field(default="1234", writeonly=True)


def shop(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Order)
    return server


@dataclass
class Move:
    to: str
    pieces: int = 1


class Note(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ({"a": 1}, {"a": 1}),
        ([1, "a", None], [1, "a", None]),
        ("text", "text"),
        (0, 0),
        (False, False),
        ([], []),
        ({}, {}),
        ("", ""),
        (Move("x"), {"to": "x", "pieces": 1}),
        (Note(text="a"), {"text": "a"}),
        ({"notes": [Note(text="a")]}, {"notes": [{"text": "a"}]}),
    ],
)
async def test_what_a_handler_returns_becomes_the_data(sqlite_url: str, returned: Any, shown: Any) -> None:
    server = shop()

    @server.action("GET", "/it")
    async def it(ctx: Context) -> Any:
        return returned

    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/api/it")).json() == {"data": shown}


async def test_a_handler_that_returns_nothing_answers_204(sqlite_url: str) -> None:
    server = shop()

    @server.action("POST", "/it")
    async def it(ctx: Context) -> None:
        assert ctx.result is None

    @server.pipeline.response.middleware(at="after", operations=[Operation.ACTION])
    async def look(ctx: Context, next: Next) -> None:
        assert ctx.result is None
        await next()

    async with client(server, database=sqlite_url) as http:
        response = await http.post("/api/it")
        assert (response.status_code, response.content) == (204, b"")


async def test_a_handler_may_answer_with_a_response_of_its_own(sqlite_url: str) -> None:
    server = shop(service_name="shop")

    @server.action("POST", "/set")
    async def set_it(ctx: Context) -> None:
        ctx.response = Response(202, {"queued": True}, headers={"Location": "/queue/1"})

    @server.action("POST", "/returned")
    async def returned(ctx: Context) -> Response:
        return Response(418, error={"code": "TEAPOT", "message": "short and stout"})

    @server.action("GET", "/text")
    async def text(ctx: Context) -> PlainTextResponse:
        return PlainTextResponse("hello", status_code=203, headers={"x-own": "1"})

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> StreamingResponse:
        async def parts() -> Any:
            yield b"a,b\n"
            yield b"1,2\n"

        return StreamingResponse(parts(), media_type="text/csv")

    async with client(server, database=sqlite_url) as http:
        queued = await http.post("/api/set")
        assert data_of(queued, 202) == {"queued": True}
        assert queued.headers["location"] == "/queue/1"
        error_of(await http.post("/api/returned"), 418, "TEAPOT")
        plain = await http.get("/api/text", headers={"x-request-id": "r1"})
        assert (plain.status_code, plain.text, plain.headers["x-own"]) == (203, "hello", "1")
        assert plain.headers["content-type"].startswith("text/plain")
        assert (plain.headers["x-request-id"], plain.headers["x-service-name"]) == ("r1", "shop")
        streamed = await http.get("/api/stream")
        assert (streamed.text, streamed.headers["content-type"]) == (
            "a,b\n1,2\n",
            "text/csv; charset=utf-8",
        )


async def test_records_in_an_answer_keep_their_secrets(database_url: str) -> None:
    server = shop()

    @server.action("GET", "/one/{id}", response=Order)
    async def one(ctx: Context) -> Order:
        return await ctx.db(Order).read(ctx.url_param("id"))

    @server.action("GET", "/many")
    async def many(ctx: Context) -> dict[str, Any]:
        orders = await ctx.db(Order).list()
        return {"orders": orders, "first": {"of": [orders[0]]}, "pair": (orders[0], Note(text="x"))}

    @server.action("GET", "/raw")
    async def raw(ctx: Context) -> Response:
        return Response(200, (await ctx.db(Order).list())[0])

    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", title="a", pin="98765")
        assert data_of(await http.get(f"/api/one/{order['id']}")) == order
        everything = await http.get("/api/many")
        assert data_of(everything) == {
            "orders": [order],
            "first": {"of": [order]},
            "pair": [order, {"text": "x"}],
        }
        assert data_of(await http.get("/api/raw")) == order
        error_of(await http.get("/api/one/none"), 404, "NOT_FOUND")


async def test_the_body_is_checked_against_the_request_type(database_url: str) -> None:
    server = shop()

    @server.action("POST", "/move", request=Move)
    async def move(ctx: Context) -> dict[str, Any]:
        assert isinstance(ctx.body, Move)
        again = await ctx.bind_json(Move)
        return {"to": ctx.body.to, "pieces": again.pieces}

    async with client(server, database=database_url) as http:
        assert data_of(await http.post("/api/move", json={"to": "x"})) == {"to": "x", "pieces": 1}
        refused = await http.post("/api/move", json={"pieces": "many"})
        details = error_of(refused, 422, "VALIDATION_FAILED")["details"]
        assert {detail["field"] for detail in details} == {"to", "pieces"}
        error_of(await http.post("/api/move"), 400, "EMPTY_BODY")
        error_of(await http.post("/api/move", content=b"{"), 400, "INVALID_JSON")
        assert (await http.post("/api/move", json=[1])).status_code == 422
        plain = {"content-type": "text/plain"}
        error_of(await http.post("/api/move", content=b"{}", headers=plain), 415, "UNSUPPORTED_MEDIA_TYPE")


async def test_a_body_without_a_declared_type_is_read_by_the_handler(sqlite_url: str) -> None:
    server = shop()

    @server.action("PUT", "/raw")
    async def raw(ctx: Context) -> Any:
        return await ctx.bind_json()

    @server.action("PUT", "/typed")
    async def typed(ctx: Context) -> Any:
        return await ctx.bind_json(list[int])

    async with client(server, database=sqlite_url) as http:
        assert data_of(await http.put("/api/raw", json=[1, {"a": 2}])) == [1, {"a": 2}]
        error_of(await http.put("/api/typed", json=[1, "x"]), 422, "VALIDATION_FAILED")


async def test_auth_then_its_own_middleware_then_the_handler(sqlite_url: str) -> None:
    log: list[str] = []
    server = shop()

    @server.pipeline.auth.middleware()
    async def who(ctx: Context, next: Next) -> None:
        log.append(f"auth {ctx.operation}")
        ctx.auth = AuthInfo(user_id="ada", roles=["clerk"])
        await next()

    @server.pipeline.service.middleware()
    async def never(ctx: Context, next: Next) -> None:
        log.append("service")
        await next()

    @server.pipeline.response.middleware()
    async def after(ctx: Context, next: Next) -> None:
        log.append("response")
        await next()

    async def first(ctx: Context, next: Next) -> None:
        log.append("first")
        await next()
        log.append("/first")

    def second(ctx: Context, next: Any) -> None:
        log.append("second")
        if ctx.query_param("stop"):
            ctx.abort(403, "STOPPED", "no")
        next()

    @server.action("POST", "/go", middleware=[first, second])
    async def go(ctx: Context) -> bool:
        log.append("handler")
        return ctx.has_role("clerk")

    async with client(server, database=sqlite_url) as http:
        assert data_of(await http.post("/api/go")) is True
        assert log == ["auth action", "first", "second", "handler", "/first", "response"]
        log.clear()
        error_of(await http.post("/api/go?stop=1"), 403, "STOPPED")
        assert log == ["auth action", "first", "second", "response"]


async def test_a_rule_for_a_model_does_not_run_for_actions(sqlite_url: str) -> None:
    server = shop()

    @server.pipeline.auth.middleware(models=[Order])
    async def closed(ctx: Context, next: Next) -> None:
        ctx.abort(403, "CLOSED", "no")

    @server.action("GET", "/open")
    async def go(ctx: Context) -> bool:
        return True

    async with client(server, database=sqlite_url) as http:
        assert data_of(await http.get("/api/open")) is True
        error_of(await http.get("/api/orders"), 403, "CLOSED")


async def test_a_plain_function_runs_in_a_thread(sqlite_url: str) -> None:
    server = shop()

    @server.action("GET", "/where")
    def where(ctx: Context) -> bool:
        return threading.current_thread() is threading.main_thread()

    @server.action("GET", "/refuse")
    def refuse(ctx: Context) -> None:
        ctx.abort(409, "NO", "no")

    async with client(server, database=sqlite_url) as http:
        assert data_of(await http.get("/api/where")) is False
        error_of(await http.get("/api/refuse"), 409, "NO")


async def test_parameters_of_the_path_keep_their_own_names(database_url: str) -> None:
    server = shop()

    @server.action("POST", "/orders/{code}")
    async def by_code(ctx: Context) -> list[str]:
        return [ctx.url_param("code"), ctx.url_param("none")]

    @server.action("PUT", "/orders/{order_id}/lines/{line}")
    async def put_line(ctx: Context) -> list[str]:
        return [ctx.url_param("order_id"), ctx.url_param("line")]

    @server.action("GET", "/orders/{id}/lines/{number}")
    async def get_line(ctx: Context) -> list[str]:
        return [ctx.url_param("id"), ctx.url_param("number")]

    @server.action("GET", "/orders/latest")
    async def latest(ctx: Context) -> str:
        return "latest"

    async with client(server, database=database_url) as http:
        order = await created(http, "/api/orders", title="a")
        assert data_of(await http.get(f"/api/orders/{order['id']}")) == order
        assert data_of(await http.post("/api/orders/x%20y")) == ["x y", ""]
        assert data_of(await http.put("/api/orders/a/lines/b")) == ["a", "b"]
        assert data_of(await http.get("/api/orders/a/lines/b")) == ["a", "b"]
        assert data_of(await http.get("/api/orders/latest")) == "latest"
        error_of(await http.patch("/api/orders/latest", json={"title": "b"}), 404, "NOT_FOUND")
        error_of(await http.delete("/api/orders/a/lines/b"), 405, "METHOD_NOT_ALLOWED")
        error_of(await http.get("/api/orders/a/lines"), 404, "NOT_FOUND")
        error_of(await http.get("/api/orders//lines/b"), 404, "NOT_FOUND")


@pytest.mark.parametrize("nul", ["%00", "a%00b"])
async def test_a_nul_in_a_parameter_of_the_path_never_becomes_a_5xx(database_url: str, nul: str) -> None:
    server = shop()

    @server.action("GET", "/orders/{id}/copy")
    async def copy(ctx: Context) -> Order:
        return await ctx.db(Order).read(ctx.url_param("id"))

    async with client(server, database=database_url) as http:
        error_of(await http.get(f"/api/orders/{nul}/copy"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/orders"), ("POST", "/orders"), ("GET", "/orders/{id}"), ("PATCH", "/orders/{other}")],
)
def test_an_action_on_a_route_of_a_model_stops_the_start(method: str, path: str) -> None:
    async def handler(ctx: Context) -> None: ...

    server = shop()
    server.action(method, path, name="mine")(handler)
    with pytest.raises(DeclarationError, match=r"Order and action mine"):
        server.seal()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "no-slash"),
        ("GET", "/a/{b"),
        ("GET", "/a/{b}/{b}"),
        ("GET", "/a//b"),
        ("GET", ""),
        ("BREW", "/a"),
    ],
)
def test_an_action_that_could_not_be_reached_stops_the_start(method: str, path: str) -> None:
    async def handler(ctx: Context) -> None: ...

    server = shop()
    server.action(method, path)(handler)
    with pytest.raises(DeclarationError):
        server.seal()


def test_two_actions_on_one_route_stop_the_start() -> None:
    async def handler(ctx: Context) -> None: ...

    server = shop()
    server.action("GET", "/same/{a}/x", name="one")(handler)
    server.action("GET", "/same/{b}/x", name="two")(handler)
    with pytest.raises(DeclarationError, match="one and action two"):
        server.seal()


class Unknown:
    """A class of which pydantic can make nothing."""

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"request": Unknown}, "request=Unknown: pydantic can build no schema for it"),
        ({"request": list[Unknown] | None}, "pydantic can build no schema for it"),
        ({"response": Unknown}, "response=Unknown: pydantic can build no schema for it"),
        ({"query_params": {"size": Unknown}}, "query_params['size']=Unknown: pydantic can build no schema"),
        ({"request": list["Nowhere"]}, "there is no 'Nowhere'; give the type itself"),  # type: ignore[name-defined]  # noqa: F821
        ({"response": "Nowhere"}, "there is no 'Nowhere'; give the type itself"),
        ({"request": 5}, "request=5: pydantic can build no schema for it"),
    ],
)
def test_a_type_of_which_no_schema_can_be_made_stops_the_start_and_names_the_action(
    options: dict[str, Any], told: str
) -> None:
    server = shop(database=":memory:")

    @server.action("POST", "/weigh", **options)
    async def weigh(ctx: Context) -> None: ...

    @server.action("POST", "/weigh")
    async def again(ctx: Context) -> None: ...

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    [problem] = refused.value.problems
    assert problem.startswith("action POST /weigh (weigh): ")
    assert told in problem


def test_types_that_hold_models_are_no_problem() -> None:
    server = shop(database=":memory:")

    @server.action("POST", "/many", request=list[Order], response=dict[str, Order | None])
    async def many(ctx: Context) -> None: ...

    server.seal()


async def test_a_whole_number_in_the_query_string_is_written_as_one(sqlite_url: str) -> None:
    """The handler reads the text, which `int` must take; pydantic alone lets `1.0` pass."""
    server = shop()

    @server.action("GET", "/times", query_params={"n": int, "x": float})
    async def times(ctx: Context) -> Any:
        return int(ctx.query_param("n")) * float(ctx.query_param("x") or 1)

    async with client(server, database=sqlite_url) as http:
        assert data_of(await http.get("/api/times?n=-2&x=1.5")) == -3
        for text in ("1.0", "0.0", "1_0", "%201", "1e3", "x", ""):
            error_of(await http.get(f"/api/times?n={text}"), 400, "INVALID_QUERY")
