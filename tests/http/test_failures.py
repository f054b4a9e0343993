"""When something goes wrong: what the client learns, and what only the log does."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from maniflex import Context, Index, Model, Next, Response, Server, Unavailable, field, with_transaction
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, total


class Member(Model, indices=[Index(("team", "number"), unique=True)]):
    email: str = field(unique=True, alias="mail", column="email_address")
    team: str = "red"
    number: int = field(alias="shirtNumber")


async def duplicates(database: str, *, in_transaction: bool = False) -> list[dict[str, Any]]:
    """The refusals of a duplicate on create and update, of one field and of two."""
    server = Server()
    server.register(Member)
    if in_transaction:
        server.pipeline.service.register(with_transaction())
    async with client(server, database=database) as http:
        await created(http, "/api/members", mail="a@x", shirtNumber=1)
        other = await created(http, "/api/members", mail="b@x", shirtNumber=2)
        one = f"/api/members/{other['id']}"
        answers: list[httpx.Response] = [
            await http.post("/api/members", json={"mail": "a@x", "shirtNumber": 3}),
            await http.patch(one, json={"mail": "a@x"}),
            await http.post("/api/members", json={"mail": "c@x", "shirtNumber": 1}),
            await http.patch(one, json={"shirtNumber": 1}),
        ]
        assert await total(http, "/api/members") == 2
        assert data_of(await http.get(one)) == other
        return [error_of(answer, 409, "CONFLICT") for answer in answers]


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_duplicate_has_one_shape_that_names_every_field(
    database_url: str, in_transaction: bool
) -> None:
    refusals = await duplicates(database_url, in_transaction=in_transaction)
    for error in refusals:
        assert error.keys() == {"code", "message", "details"}
        assert all(detail.keys() == {"field", "message"} for detail in error["details"])
    named = [[detail["field"] for detail in error["details"]] for error in refusals]
    assert named == [["mail"], ["mail"], ["team", "shirtNumber"], ["team", "shirtNumber"]]
    for word in ("email_address", "a@x", "UNIQUE", "unique", "constraint", "uq_", "key"):
        assert word not in str(refusals)


async def test_a_duplicate_reads_the_same_on_both_databases(sqlite_url: str, postgres_url: str) -> None:
    assert await duplicates(sqlite_url) == await duplicates(postgres_url)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


def failing(error: Exception, *, step: str = "service") -> Server:
    server = Server()
    server.register(Member)

    async def fail(ctx: Context, next: Next) -> None:
        raise error

    getattr(server.pipeline, step).register(fail, operations=["list"])
    return server


@pytest.mark.parametrize("step", ["auth", "deserialize", "validate", "service", "db", "response"])
async def test_an_unforeseen_exception_is_a_panic_whose_cause_only_the_log_knows(
    sqlite_url: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(failing(RuntimeError("password=hunter2"), step=step), database=sqlite_url) as http:
        response = await http.get("/api/members", headers={"x-request-id": "r-1"})
        assert error_of(response, 500, "PANIC") == {
            "code": "PANIC",
            "message": "the server failed to handle the request",
        }
        assert response.headers["x-request-id"] == "r-1"
        assert (await http.get("/api/members/none")).status_code == 404
    [line] = errors_in(caplog)
    assert line.__dict__["request_id"] == "r-1"
    assert "password=hunter2" in line.getMessage()
    assert "r-1" in line.getMessage()


class ExtensionPanic(BaseException):
    """As modules written in Rust raise them."""


@pytest.mark.parametrize("kind", [SystemExit, ExtensionPanic, asyncio.CancelledError])
async def test_what_is_no_exception_is_a_panic_too_and_ends_nothing(
    kind: type[BaseException], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(metrics_enabled=True)
    server.register(Member)

    @server.action("POST", "/join", middleware=[with_transaction()])
    async def join(ctx: Context) -> None:
        await ctx.db(Member).create(email="a@x", number=1)
        raise kind("hunter2")

    async with client(server, database=database_url) as http:
        answer = await http.post("/api/join")

        error_of(answer, 500, "PANIC")
        assert "hunter2" not in answer.text
        assert answer.headers["x-request-id"] in caplog.text
        assert await total(http, "/api/members") == 0
        assert 'route="/api/join",status="500"' in (await http.get("/metrics")).text


async def test_the_line_of_a_panic_has_the_fields_of_the_request(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(service_name="shop", panic_logger=logging.getLogger("alarms"))

    @server.action("GET", "/broken")
    async def broken(ctx: Context) -> None:
        raise ZeroDivisionError

    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-request-id": "one"}
    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/api/broken", headers=headers)).status_code == 500
    [line] = [vars(record) for record in caplog.records if record.name == "alarms"]
    assert (line["service"], line["trace_id"], line["request_id"]) == ("shop", trace, "one")


async def test_a_panic_goes_to_the_panic_logger_if_there_is_one(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(panic_logger=logging.getLogger("alarms"))
    server.register(Member)

    @server.pipeline.service.middleware()
    async def fail(ctx: Context, next: Next) -> None:
        raise ZeroDivisionError

    async with client(server, database=sqlite_url) as http:
        error_of(await http.get("/api/members"), 500, "PANIC")
    assert [line.name for line in errors_in(caplog)] == ["alarms"]


async def test_an_answer_that_cannot_be_written_is_a_panic_too(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()

    @server.action("GET", "/object")
    async def odd(ctx: Context) -> object:
        return object()

    @server.action("GET", "/header")
    async def header(ctx: Context) -> Response:
        return Response(200, {}, headers={"x-name": "żółć"})

    async with client(server, database=sqlite_url) as http:
        for path in ("/api/object", "/api/header"):
            caplog.clear()
            response = await http.get(path, headers={"x-request-id": "r-2"})
            error_of(response, 500, "PANIC")
            [line] = errors_in(caplog)
            assert line.__dict__["request_id"] == "r-2"


async def test_a_database_failure_is_generic_outside_and_logged_once_with_its_cause(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.register(Member)
    async with client(server, database=database_url) as http:
        await server.raw_exec("ALTER TABLE members RENAME COLUMN team TO squad")
        for request in (
            http.get("/api/members", headers={"x-request-id": "r-3"}),
            http.post("/api/members", json={"mail": "a", "shirtNumber": 1}, headers={"x-request-id": "r-3"}),
        ):
            caplog.clear()
            response = await request
            assert error_of(response, 500, "DATABASE_ERROR") == {
                "code": "DATABASE_ERROR",
                "message": "the database could not complete the request",
            }
            [line] = errors_in(caplog)
            assert line.__dict__["request_id"] == "r-3"
            assert "team" in caplog.text


async def test_the_text_and_details_of_a_5xx_stay_inside(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = Unavailable("primary db-7.internal is down", [{"field": "host", "message": "db-7"}])
    async with client(failing(error), database=sqlite_url) as http:
        response = await http.get("/api/members")
        assert error_of(response, 503, "UNAVAILABLE") == {
            "code": "UNAVAILABLE",
            "message": "the service is temporarily unavailable",
            "retryable": True,
        }
    assert "db-7.internal" in caplog.text


async def test_an_abort_says_what_the_application_wants_it_to_say(sqlite_url: str) -> None:
    server = Server()

    @server.action("GET", "/down")
    async def down(ctx: Context) -> None:
        ctx.abort(503, "PRINTER_DOWN", "the printer is on fire", {"floor": 3})

    async with client(server, database=sqlite_url) as http:
        assert error_of(await http.get("/api/down"), 503, "PRINTER_DOWN") == {
            "code": "PRINTER_DOWN",
            "message": "the printer is on fire",
            "details": {"floor": 3},
        }


async def test_a_4xx_is_no_error_in_the_log(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.register(Member)
    async with client(server, database=sqlite_url) as http:
        await http.post("/api/members", json={})
        await http.get("/api/members/none")
        await http.put("/api/members")
    assert errors_in(caplog) == []


async def test_a_request_over_its_time_is_a_504_and_leaves_nothing_behind(database_url: str) -> None:
    server = Server(query_timeout=0.2)
    server.register(Member)
    ended: list[str] = []

    @server.pipeline.service.middleware(operations=["create"])
    async def slow(ctx: Context, next: Next) -> None:
        async with ctx.transaction():
            await next()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

    async with client(server, database=database_url) as http, asyncio.timeout(20):
        refused = await http.post("/api/members", json={"mail": "a", "shirtNumber": 1})
        error = error_of(refused, 504, "TIMEOUT")
        assert (error["message"], error["retryable"]) == ("the request took too long", True)
        assert ended == ["ended"]
        assert await total(http, "/api/members") == 0


async def test_a_request_over_its_time_is_one_line_in_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(query_timeout=0.2)

    @server.action("POST", "/wait/{name}")
    async def wait(ctx: Context) -> None:
        await asyncio.Event().wait()

    async with client(server, database=database_url) as http, asyncio.timeout(20):
        refused = await http.post("/api/wait/a%0Ab")

    assert error_of(refused, 504, "TIMEOUT")["message"] == "the request took too long"
    [line] = errors_in(caplog)
    assert line.getMessage() == (
        "504 TIMEOUT: POST /api/wait/a\\nb: the request took too long (query_timeout of 0.2 s)"
    )
    assert line.exc_info is None


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) "
    "SELECT count(*) AS c FROM n",
    "postgres": "SELECT pg_sleep(60)",
}


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_slow_statement_is_stopped_and_the_server_goes_on(
    database_url: str, in_transaction: bool
) -> None:
    server = Server(query_timeout=0.5, sqlite_readers=1, pool_size=1, read_pool_size=1)
    server.register(Member)

    @server.action("GET", "/slow")
    async def slow(ctx: Context) -> Any:
        statement = SLOW["sqlite" if database_url.startswith("sqlite") else "postgres"]
        if not in_transaction:
            return await ctx.raw_query(statement)
        async with ctx.transaction():
            return await ctx.raw_query(statement)

    async with client(server, database=database_url) as http, asyncio.timeout(30):
        error_of(await http.get("/api/slow"), 504, "TIMEOUT")
        # The only connection is free again: nobody waits for the statement that was given up.
        await created(http, "/api/members", mail="a", shirtNumber=1)
        assert await total(http, "/api/members") == 1


async def test_a_statement_over_its_time_names_the_setting_in_the_log_and_not_to_the_client(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(statement_timeout=0.2)

    @server.action("GET", "/slow")
    async def slow(ctx: Context) -> Any:
        return await ctx.raw_query(SLOW["sqlite" if database_url.startswith("sqlite") else "postgres"])

    async with client(server, database=database_url) as http, asyncio.timeout(30):
        refused = [await http.get("/api/slow"), await http.get("/api/slow")]  # two, so that somebody waits

    assert "statement_timeout" not in "".join(answer.text for answer in refused)
    assert {record.exc_info for record in errors_in(caplog)} == {None}
    for line in errors_in(caplog):
        assert line.getMessage() == (
            "504 TIMEOUT: GET /api/slow: the statement took too long (statement_timeout)"
        )


async def test_a_timeout_error_of_the_application_is_its_own(sqlite_url: str) -> None:
    async with client(failing(TimeoutError("theirs")), database=sqlite_url) as http:
        error_of(await http.get("/api/members"), 500, "PANIC")
