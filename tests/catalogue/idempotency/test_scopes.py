"""D7: a key that was used inside one scope is of no use in another."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.middleware import auth, db, idempotency, response
from maniflex.testing import client
from tests.kit.http import data_of


class Bill(Model):
    tenant_id: str = field(filterable=True)
    number: int = 0


async def test_one_caller_in_two_tenants_has_two_keys(database_url: str) -> None:
    server = Server(database=database_url)
    server.register(Bill)
    server.pipeline.auth.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-org")))
    server.pipeline.deserialize.register(idempotency.keys(), models=[Bill], operations=["create"], at="after")
    async with client(server) as http:
        answers = [
            await http.post("/api/bills", json={"number": 7}, headers={"x-org": org, "Idempotency-Key": "k"})
            for org in ("a", "b", "a")
        ]

    tenants = [data_of(answer, 201)["tenant_id"] for answer in answers]
    replays = [answer.headers.get("idempotent-replayed") for answer in answers]
    assert (tenants, replays) == (["a", "b", "a"], [None, None, "true"])


class Shelf(Model, table="shelves"):
    name: str = ""


def by_header(server: Server) -> None:
    server.pipeline.auth.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-org"), shared=[Shelf]))


def by_policy(server: Server) -> None:
    def own(ctx: Context, bill: Any) -> bool:
        return bool(bill.tenant_id == ctx.header("x-org"))

    policy = auth.enforce(own, where=lambda ctx: {"tenant_id": ctx.header("x-org")})
    server.pipeline.db.register(policy, models=[Bill])


async def sign_in(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ann", roles=(ctx.header("x-roles") or "").split())
    await next()


@pytest.mark.parametrize("bind", [by_header, by_policy])
async def test_one_account_in_two_tenants_has_two_keys_in_an_action(bind: Any) -> None:
    server = Server()
    server.register(Bill, Shelf)
    server.pipeline.auth.register(sign_in)
    bind(server)

    @server.action("POST", "/bill", middleware=[idempotency.keys()])
    async def bill(ctx: Context) -> Bill:
        return await ctx.db(Bill).create(number=7, tenant_id=ctx.header("x-org"))

    @server.action("POST", "/ping", middleware=[idempotency.keys()])
    async def ping(ctx: Context) -> str:
        return "pong"

    server.pipeline.deserialize.register(idempotency.keys(), models=[Shelf], at="after")
    async with client(server) as http:
        for path in ("/api/bill", "/api/shelves"):
            answers = [
                await http.post(path, json={}, headers={"x-org": org, "Idempotency-Key": "k"})
                for org in ("red", "blue", "red", "blue")
            ]
            assert len({data_of(one, one.status_code)["id"] for one in answers}) == 2, path
            assert [one.headers.get("idempotent-replayed") for one in answers] == [None, None, "true", "true"]
        assert sorted(one.tenant_id for one in await server.db(Bill).list()) == ["blue", "red"]
        # Who has no tenant may call what touches no bound rows.
        pings = [await http.post("/api/ping", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [one.headers.get("idempotent-replayed") for one in pings] == [None, "true"]


async def test_one_account_in_two_tenants_has_two_keys_for_files(tmp_path: Any) -> None:
    server = Server(storage=f"file://{tmp_path}/files", files_middleware=[sign_in, idempotency.keys()])
    server.register(Bill, Shelf)
    by_header(server)
    async with client(server) as http:
        keys = []
        for org in ("red", "blue", "red"):
            answer = await http.post(
                "/api/files",
                files={"file": ("a.txt", b"hello")},
                headers={"x-org": org, "Idempotency-Key": "k"},
            )
            keys.append(data_of(answer, 201)["key"])
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("path", ["/api/bills", "/api/bill"])
async def test_a_replay_leaves_out_what_is_hidden_since(path: str) -> None:
    """The caller has lost the role that showed the number."""
    server = Server()
    server.register(Bill)
    server.pipeline.auth.register(sign_in)
    hide = response.redact_field("number", when=lambda ctx: not ctx.has_role("boss"))
    server.pipeline.response.register(hide, models=[Bill])
    server.pipeline.deserialize.register(idempotency.keys(), models=[Bill], at="after")

    @server.action("POST", "/bill", middleware=[idempotency.keys()])
    async def bill(ctx: Context) -> dict[str, Any]:
        return {"made": [await ctx.db(Bill).create(number=4711, tenant_id="t")], "pages": 3}

    async with client(server) as http:
        body, key = {"number": 4711, "tenant_id": "t"}, {"Idempotency-Key": "k"}
        first = await http.post(path, json=body, headers={**key, "x-roles": "boss"})
        again = await http.post(path, json=body, headers={**key, "x-roles": "boss"})
        later = await http.post(path, json=body, headers=key)
    assert first.content == again.content
    assert "4711" in first.text
    assert later.headers["idempotent-replayed"] == "true"
    assert later.status_code == first.status_code
    assert "number" not in later.text
    assert "tenant_id" in later.text
    assert ("pages" in later.text) is (path == "/api/bill")
