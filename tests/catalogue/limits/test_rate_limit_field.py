"""D19: a budget for each value of a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from maniflex import Context, DeclarationError
from maniflex.middleware import db
from maniflex.testing import FakeClock
from tests.catalogue.limits.shop import Note, asking, shop
from tests.kit.http import created, error_of, total

STEPS = [("deserialize", "after"), ("validate", "before"), ("db", "before")]


@pytest.mark.parametrize(("step", "at"), STEPS)
async def test_a_value_has_one_bucket_however_it_is_written(database_url: str, step: str, at: str) -> None:
    """C42: `A@x.org` and ` a@X.org` are one; whoever asks, and before validation."""
    server = shop()
    getattr(server.pipeline, step).register(db.rate_limit_field("email", 2, 60), at=at)
    async with asking(server, database_url) as http:
        await created(http, "/notes", e_mail="A@x.org")
        refused = await http.post("/notes", json={"e_mail": " a@X.org", "text": 5}, headers={"x-user": "a/b"})
        assert refused.status_code == 422
        assert refused.headers["ratelimit-remaining"] == "0"
        answer = await http.post("/notes", json={"e_mail": "a@x.ORG", "text": 5})
        error_of(answer, 429, "RATE_LIMITED")
        assert int(answer.headers["retry-after"]) == 30
        await created(http, "/notes", e_mail="b@x.org")
        assert await total(http, "/notes") == 2


async def test_absent_and_null_are_not_limited(database_url: str) -> None:
    server = shop()
    server.pipeline.deserialize.register(db.rate_limit_field("mail", 1, 60), at="after")
    async with asking(server, database_url) as http:
        for body in ({}, {"e_mail": None}, {}, {"e_mail": None}):
            note = await created(http, "/notes", **body)
        assert (await http.delete(f"/notes/{note['id']}")).status_code == 204
        assert (await http.post(f"/notes/{note['id']}/restore")).status_code == 200
        assert (await http.post("/tags", json={})).status_code == 201


async def test_values_are_stored_hashed(database_url: str) -> None:
    server = shop()
    server.pipeline.deserialize.register(db.rate_limit_field("email", 1, 60), at="after")
    async with asking(server, database_url) as http:
        await created(http, "/notes", e_mail="ada@x.org")
        [row] = await server.raw_query("SELECT * FROM rate_limit")
        assert len(row["id"]) == 64
        assert not any("ada" in str(value) for value in row.values())


@dataclass
class Credentials:
    email: str
    password: str = ""


async def test_in_an_action_the_handler_still_gets_the_body(database_url: str) -> None:
    server = shop()
    limit = db.rate_limit_field("email", 2, 60)

    @server.action("POST", "/login", request=Credentials, middleware=[limit])
    async def login(ctx: Context) -> str:
        return str(ctx.body.email)

    @server.action("POST", "/remind/{kind}", middleware=[db.rate_limit_field("email", 2, 60)])
    async def remind(ctx: Context) -> Any:
        return await ctx.bind_json() if ctx.header("content-type") else None

    async with asking(server, database_url) as http:
        answers = [await http.post("/login", json={"email": text}) for text in ("A@x", "a@x ", "a@X")]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[1].json()["data"] == "a@x "
        reminded = [await http.post(f"/remind/{n}", json={"email": "a@x"}) for n in range(3)]
        assert [one.status_code for one in reminded] == [200, 200, 429]
        assert reminded[0].json()["data"] == {"email": "a@x"}
        for _ in range(3):
            assert (await http.post("/remind/x")).status_code == 204
            assert (await http.post("/remind/x", json=["email"])).status_code == 200
        error_of(
            await http.post("/login", content=b"{", headers={"content-type": "application/json"}),
            400,
            "INVALID_JSON",
        )


def test_a_field_that_no_model_has_stops_the_start() -> None:
    server = shop()
    server.pipeline.db.register(db.rate_limit_field("emial", 2, 60))
    with pytest.raises(DeclarationError, match="no model has a field 'emial'; did you mean 'email'"):
        server.seal()


def test_wrong_arguments_stop_the_start() -> None:
    server = shop()
    server.pipeline.db.register(db.rate_limit_field("email", 0, -1), models=Note)
    with pytest.raises(DeclarationError, match=r"limit=0(.|\n)*window=-1"):
        server.seal()


async def test_a_field_and_a_caller_can_be_limited_together(database_url: str) -> None:
    server = shop()
    server.pipeline.deserialize.register(db.rate_limit_field("email", 5, 60), at="after")
    server.pipeline.auth.register(db.rate_limit(2, 60), operations="create")
    async with asking(server, database_url, FakeClock()) as http:
        answers = [await http.post("/notes", json={"e_mail": "a@x"}) for _ in range(3)]
        assert [one.status_code for one in answers] == [201, 201, 429]
        assert [one.headers["ratelimit-remaining"] for one in answers] == ["1", "0", "0"]
