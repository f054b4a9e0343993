"""Middleware of the application says which codes it refuses with, and its routes are described with them."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Server
from maniflex.testing import client
from tests.kit.http import error_of


class Project(Model):
    name: str


class Member(Model):
    name: str


def limited() -> Server:
    server = Server()
    server.register(Project, Member)

    @server.pipeline.service.middleware(
        models=[Project],
        operations=[Operation.CREATE],
        errors={402: "PROJECT_LIMIT", 409: ["FROZEN", "BUSY"]},
    )
    async def count_projects(ctx: Context, next: Next) -> None:
        ctx.abort(402, "PROJECT_LIMIT", "upgrade to add more")

    return server


async def test_own_codes_are_described_where_they_come_from(database_url: str) -> None:
    async with client(limited(), database=database_url) as http:
        error_of(await http.post("/api/projects", json={"name": "x"}), 402, "PROJECT_LIMIT")
        document = (await http.get("/api/openapi.json")).json()

    paths = document["paths"]
    create = paths["/api/projects"]["post"]
    usual_form = create["responses"]["402"]["$ref"].rpartition("/")[2]
    assert document["components"]["responses"][usual_form]["content"]
    assert "`PROJECT_LIMIT`" in create["responses"]["402"]["description"]
    codes = create["x-error-codes"]
    assert codes["402"] == ["PROJECT_LIMIT"]
    assert {"FROZEN", "BUSY"} <= set(codes["409"])
    elsewhere = (paths["/api/projects"]["get"], paths["/api/members"]["post"])
    assert all("402" not in operation["responses"] for operation in elsewhere)


@pytest.mark.parametrize(
    ("errors", "problem"),
    [
        ({200: "FINE"}, "200 is no status of a refusal"),
        ({"402": "LIMIT"}, "'402' is no status of a refusal"),
        ({402: "no limit"}, "a code of 402 is written like"),
        ({402: []}, "a code of 402 is written like"),
        (["LIMIT"], "codes by status"),
    ],
)
def test_codes_that_cannot_be_described_are_refused(errors: Any, problem: str) -> None:
    async def refuse(ctx: Context, next: Next) -> None:
        await next()

    with pytest.raises(DeclarationError, match=problem):
        Server().pipeline.service.register(refuse, errors=errors)
