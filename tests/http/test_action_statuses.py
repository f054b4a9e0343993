"""Actions that declare their statuses: answered, described, and told in the log when they answer others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from openapi_spec_validator import validate

from maniflex import Context, DeclarationError, Model, Response, Server
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Order(Model, table="as_orders"):
    title: str


@dataclass
class Ticket:
    number: int


def a_server() -> Server:
    server = Server("sqlite:///:memory:")
    server.register(Order)

    @server.action("POST", "/import", response=Order, status=201, responses={202: Ticket, 404: None})
    async def take_in(ctx: Context) -> Any:
        match ctx.query_param("way"):
            case "later":
                return Response(202, Ticket(7))
            case "other":
                return Response(203, {"odd": True})
            case "gone":
                ctx.abort(404, "NO_FILE", "there is no such file")
        return Order(title="tea")

    @server.action("POST", "/accept", status=202)
    async def accept(ctx: Context) -> None: ...

    @server.action("POST", "/empty", status=204)
    async def empty(ctx: Context) -> None: ...

    content = {"text/csv": {"schema": {"type": "string"}}}
    body = {"description": "Rows.", "required": True, "content": content}

    @server.action("POST", "/rows", request_body=body, response=int)
    async def rows(ctx: Context) -> int:
        return (await ctx.read_body()).count(b"\n")

    @server.action("POST", "/either", responses={200: Order, 201: Order})
    async def either(ctx: Context) -> Order:
        return Order(title="x")

    return server


async def test_what_a_handler_returns_is_answered_with_the_declared_status() -> None:
    async with client(a_server()) as http:
        assert data_of(await http.post("/api/import"), 201)["title"] == "tea"
        assert data_of(await http.post("/api/import?way=later"), 202) == {"number": 7}
        error_of(await http.post("/api/import?way=gone"), 404, "NO_FILE")
        accepted = await http.post("/api/accept")
        assert (accepted.status_code, accepted.content) == (202, b"")
        assert (await http.post("/api/empty")).status_code == 204
        assert (
            data_of(await http.post("/api/rows", content=b"a\nb\n", headers={"content-type": "text/csv"}))
            == 2
        )


async def test_the_description_has_every_status() -> None:
    document = await a_server().openapi()
    validate(document)
    taken = document["paths"]["/api/import"]["post"]["responses"]
    assert {"201", "202", "404"} <= taken.keys()
    assert not {"200", "204"} & taken.keys()
    schema = taken["202"]["content"]["application/json"]["schema"]["properties"]["data"]
    assert "Ticket" in str(schema) or "number" in str(schema)
    assert taken["404"]["$ref"].endswith("NotFound")
    assert [s for s in document["paths"]["/api/empty"]["post"]["responses"] if s < "3"] == ["204"]
    body = document["paths"]["/api/rows"]["post"]["requestBody"]
    assert (body["required"], [*body["content"]]) == (True, ["text/csv"])
    assert [s for s in document["paths"]["/api/either"]["post"]["responses"] if s < "3"] == ["200", "201"]


async def test_a_success_that_is_not_declared_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with client(a_server()) as http:
        for _ in range(3):
            assert (await http.post("/api/import?way=other")).status_code == 203
        assert (await http.post("/api/import")).status_code == 201
    told = [record.getMessage() for record in caplog.records if "do not declare" in record.getMessage()]
    assert told == ["action POST /import answered 203, which its status= and responses= do not declare"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"status": 404}, "status=404 is no status of a success"),
        ({"status": "201"}, "status='201' is no status"),
        ({"status": 204, "response": Order}, "status=204 has no body"),
        ({"responses": {99: None}}, "responses: 99 is no status"),
        ({"responses": {"404": None}}, "responses: '404' is no status"),
        ({"responses": [404]}, "responses= maps statuses to types, such as {404: None}"),
        ({"errors": ["404"]}, "errors: '404' is no status of a refusal"),
        ({"errors": [200]}, "errors: 200 is no status of a refusal"),
        ({"status": 201, "responses": {201: Order}}, "responses: 201 is status= already"),
        ({"responses": {404: Order}}, "404 is answered with an error envelope; write 404: None"),
        ({"responses": {202: object()}}, "responses[202]"),
        ({"request_body": {"type": "object"}}, "request_body= is a request body of OpenAPI"),
        ({"request": Ticket, "request_body": {"content": {}}}, "without request="),
    ],
)
def test_statuses_that_cannot_be_meant_stop_the_start(options: dict[str, Any], words: str) -> None:
    server = Server("sqlite:///:memory:")

    async def act(ctx: Context) -> None: ...

    def declare() -> None:
        server.action("POST", "/x", **options)(act)
        server.seal()

    with pytest.raises(DeclarationError) as stopped:
        declare()
    assert words in str(stopped.value)
