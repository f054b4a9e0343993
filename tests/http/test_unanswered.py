"""A middleware that neither answers nor goes on is a failure on every surface, never an empty success."""

from __future__ import annotations

import pytest

from maniflex import Context, Model, Next, Server, field, with_transaction
from maniflex.testing import client


class Sale(Model, export=True, aggregate=True):
    total: int = field(filterable=True)


@pytest.mark.parametrize(
    "path",
    [
        "/api/sales",
        "/api/sales/export?format=csv",
        '/api/sales/aggregate?aggregate={"select":[{"op":"count"}]}',
    ],
)
async def test_a_request_that_nothing_came_of_is_500(path: str, database_url: str) -> None:
    server = Server()
    server.register(Sale)

    @server.pipeline.auth.middleware()
    async def forgets_to_go_on(ctx: Context, next: Next) -> None:
        """Neither answers nor calls next()."""

    async with client(server, database=database_url) as http:
        answer = await http.get(path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "PANIC")


@pytest.mark.parametrize("step", ["auth", "deserialize", "validate", "service", "db"])
async def test_the_middleware_that_forgot_to_go_on_is_named(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("sqlite:///:memory:")
    server.register(Sale)

    @server.pipeline.auth.middleware(name="goes_on")
    @server.pipeline.response.middleware(name="sees_all")
    async def go_on(ctx: Context, next: Next) -> None:
        await next()

    async def forgets(ctx: Context, next: Next) -> None: ...

    getattr(server.pipeline, step).register(forgets, name="forgets_to_go_on")
    async with client(server) as http:
        for method, path in (("GET", "/api/sales"), ("DELETE", "/api/sales/x")):
            caplog.clear()
            assert (await http.request(method, path)).status_code == 500
            assert f"{step}:forgets_to_go_on returned without calling next()" in caplog.text


async def test_what_stands_in_the_place_of_the_db_step_and_answers_nothing_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("sqlite:///:memory:")
    server.register(Sale)

    @server.pipeline.db.middleware(at="replace", name="from_elsewhere")
    async def replaces(ctx: Context, next: Next) -> None:
        await next()

    @server.pipeline.db.middleware(at="after", name="behind_it")
    async def behind(ctx: Context, next: Next) -> None:
        await next()

    async with client(server) as http:
        assert (await http.get("/api/sales")).status_code == 500
    words = "db:from_elsewhere, which stands in the place of the db step, set neither ctx.result nor"
    assert words in caplog.text


async def test_a_response_middleware_that_does_not_go_on_is_no_empty_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("sqlite:///:memory:")
    server.register(Sale)

    @server.pipeline.response.middleware(name="keeps_quiet")
    async def keeps_quiet(ctx: Context, next: Next) -> None: ...

    async with client(server) as http:
        assert (await http.get("/api/sales")).status_code == 500
        assert (await http.post("/api/sales", json={"total": 1})).status_code == 500
    assert "response:keeps_quiet returned without calling next()" in caplog.text


@pytest.mark.parametrize("at", ["before", "replace"])
@pytest.mark.parametrize("step", ["service", "db"])
async def test_a_transaction_takes_the_place_of_no_step(step: str, at: str) -> None:
    server, seen = Server("sqlite:///:memory:"), []
    server.register(Sale)
    getattr(server.pipeline, step).register(with_transaction(), at=at)

    @server.pipeline.db.middleware(at="after")
    async def look(ctx: Context, next: Next) -> None:
        seen.append(ctx.tx is not None)
        if ctx.operation == "create" and ctx.field("total") < 0:
            ctx.abort(409, "NO", "no")
        await next()

    async with client(server) as http:
        assert (await http.post("/api/sales", json={"total": 1})).status_code == 201
        assert (await http.post("/api/sales", json={"total": -1})).status_code == 409
        assert (await http.get("/api/sales")).json()["meta"]["total"] == 1
    assert seen == [True] * 3
