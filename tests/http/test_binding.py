"""Bodies of actions: what they are bound to, and what an answer made of pydantic models shows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel, Field

from maniflex import Context, Model, Server, field
from maniflex.testing import client


class Member(Model):
    name: str = field(min_length=2)
    role: str = field(default="user", readonly=True)
    key: str = field(default="k", hidden=True)


class Payment(BaseModel):
    amount: Decimal


class Profile(BaseModel):
    name: str = Field(serialization_alias="fullName")
    password: str = Field(exclude=True)


class Envelope(BaseModel):
    member: Member
    others: list[Member]


async def test_a_model_as_request_takes_nothing_a_client_may_not_set(database_url: str) -> None:
    server = Server()
    server.register(Member)

    @server.action("POST", "/signup", request=Member)
    async def signup(ctx: Context) -> Member:
        return await ctx.db(Member).create(ctx.body)

    async with client(server, database=database_url) as http:
        answer = await http.post(
            "/api/signup", json={"name": "Eve", "role": "admin", "key": "stolen", "id": "chosen"}
        )
        assert answer.status_code == 200, answer.text
        stored = await server.db(Member).read(answer.json()["data"]["id"])
        refused = await http.post("/api/signup", json={"name": "E"})

    assert (stored.role, stored.key) == ("user", "k")
    assert stored.id != "chosen"
    assert refused.status_code == 422
    assert [(d["field"], d["code"]) for d in refused.json()["error"]["details"]] == [("name", "min_length")]


async def test_decimals_of_an_action_body_keep_their_digits() -> None:
    server = Server()

    @server.action("POST", "/pay", request=Payment)
    async def pay(ctx: Context) -> dict[str, Any]:
        return {"amount": ctx.body.amount}

    async with client(server) as http:
        sent = b'{"amount": 1234567890123456789.123456789}'
        answer = await http.post("/api/pay", content=sent, headers={"content-type": "application/json"})

    assert answer.json()["data"]["amount"] == "1234567890123456789.123456789"


async def test_what_a_pydantic_model_excludes_does_not_leave() -> None:
    server = Server()

    @server.action("GET", "/profile")
    async def profile(ctx: Context) -> Profile:
        return Profile(name="Ada", password="hunter2")

    async with client(server) as http:
        assert (await http.get("/api/profile")).json() == {"data": {"fullName": "Ada"}}


async def test_records_inside_a_pydantic_model_keep_their_secrets() -> None:
    server = Server()
    server.register(Member)

    @server.action("GET", "/team")
    async def team(ctx: Context) -> Envelope:
        return Envelope(member=Member(name="Ada"), others=[Member(name="Bob")])

    async with client(server) as http:
        data = (await http.get("/api/team")).json()["data"]

    assert [set(m) for m in (data["member"], *data["others"])] == [
        {"id", "name", "role", "created_at", "updated_at"}
    ] * 2
