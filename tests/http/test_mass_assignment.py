"""What a client may not set stays as it is, whatever the client calls it."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, serving, total


class Account(Model):
    email: str = field(immutable=True)
    name: str = field(min_length=2, max_length=5)
    nick: str | None = field(default=None)
    age: int = field(default=1, min=0, max=150)
    password: str = field(default="secret-0", writeonly=True)
    role: str = field(default="guest", readonly=True, alias="accessRole", column="role_col")
    risk: int = field(default=0, hidden=True)
    owner: str = field(default="", readonly=True)


ADA = {"email": "ada@example.com", "name": "Ada"}
FORGED: dict[str, Any] = {
    "id": "chosen",
    "created_at": "2001-01-01T00:00:00Z",
    "updated_at": "2001-01-01T00:00:00Z",
    "accessRole": "admin",
    "role": "admin",
    "role_col": "admin",
    "risk": 99,
    "owner": "eve",
    "unknown": {"a": 1},
}


async def stored(server: Server, record_id: str) -> Account:
    return await server.db(Account).read(record_id)


def accounts() -> Server:
    server = Server()
    server.register(Account)
    return server


async def test_what_a_client_may_not_set_is_ignored_on_create(database_url: str) -> None:
    server = accounts()
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/accounts", **ADA, **FORGED)
        assert record["id"] != "chosen"
        assert record["created_at"] > "2020"
        assert record["updated_at"] > "2020"
        assert (record["accessRole"], record["owner"]) == ("guest", "")
        row = await stored(server, record["id"])
        assert (row.risk, row.role) == (0, "guest")


async def test_what_a_client_may_not_set_is_ignored_on_update(database_url: str) -> None:
    server = accounts()
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/accounts", **ADA)
        one = f"/api/accounts/{record['id']}"
        changed = data_of(await http.patch(one, json={**FORGED, "email": "eve@example.com", "name": "Eve"}))
        assert changed == {**record, "name": "Eve", "updated_at": changed["updated_at"]}
        assert changed["updated_at"] > record["updated_at"]
        row = await stored(server, record["id"])
        assert (row.risk, row.role, row.email) == (0, "guest", "ada@example.com")
        assert (await http.get("/api/accounts/chosen")).status_code == 404


async def test_a_patch_of_nothing_but_closed_fields_changes_nothing(database_url: str) -> None:
    async with serving(database_url, Account) as http:
        record = await created(http, "/api/accounts", **ADA)
        assert data_of(await http.patch(f"/api/accounts/{record['id']}", json=FORGED)) == record


async def test_secrets_are_written_where_allowed_and_shown_nowhere(database_url: str) -> None:
    server = accounts()
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/accounts", **ADA, password="s3cret-value")
        one = f"/api/accounts/{record['id']}"
        assert (await stored(server, record["id"])).password == "s3cret-value"
        changed = await http.patch(one, json={"password": "an0ther-value"})
        for response in (changed, await http.get(one), await http.get("/api/accounts")):
            assert "password" not in response.text
            assert "risk" not in response.text
            assert "role_col" not in response.text
        assert (await stored(server, record["id"])).password == "an0ther-value"


async def test_null_in_a_closed_field_is_ignored_too(database_url: str) -> None:
    async with serving(database_url, Account) as http:
        record = await created(http, "/api/accounts", **ADA, risk=None, owner=None, id=None)
        same = await http.patch(f"/api/accounts/{record['id']}", json={"email": None, "accessRole": None})
        assert data_of(same) == record


async def test_omitted_null_and_empty_are_three_things_on_patch(database_url: str) -> None:
    async with serving(database_url, Account) as http:
        record = await created(http, "/api/accounts", **ADA, nick="Countess")
        one = f"/api/accounts/{record['id']}"
        assert data_of(await http.patch(one, json={"age": 36}))["nick"] == "Countess"
        assert data_of(await http.patch(one, json={"nick": ""}))["nick"] == ""
        assert data_of(await http.patch(one, json={"nick": None}))["nick"] is None
        assert offenders(await http.patch(one, json={"name": None})) == {"name": "not_null"}
        assert offenders(await http.patch(one, json={"name": ""})) == {"name": "min_length"}
        assert data_of(await http.get(one))["name"] == "Ada"


async def test_every_offending_field_is_named_at_once_by_its_api_name(database_url: str) -> None:
    class Badge(Model):
        label: str = field(alias="badgeLabel", column="lbl", max_length=3)
        level: int = field(alias="badgeLevel", min=1)
        code: str = field(pattern="^[a-z]+$")
        note: str

    async with serving(database_url, Badge) as http:
        wrong = {"badgeLabel": "long", "badgeLevel": 0, "code": "A1", "label": "abc", "lbl": "abc"}
        response = await http.post("/api/badges", json=wrong)
        assert offenders(response) == {
            "badgeLabel": "max_length",
            "badgeLevel": "min",
            "code": "pattern",
            "note": "required",
        }
        assert "A1" not in response.text
        assert await total(http, "/api/badges") == 0


async def test_lengths_count_characters_rather_than_bytes(database_url: str) -> None:
    async with serving(database_url, Account) as http:
        assert (await created(http, "/api/accounts", email="a", name="😀😀😀😀😀"))["name"] == "😀😀😀😀😀"
        assert (await created(http, "/api/accounts", email="b", name="مرحبا"))["name"] == "مرحبا"
        assert offenders(await http.post("/api/accounts", json={"email": "c", "name": "😀" * 6})) == {
            "name": "max_length"
        }


PLACES = [(step, at) for step in ("auth", "deserialize", "validate", "service") for at in ("before", "after")]


@pytest.mark.parametrize(("step", "at"), [*PLACES, ("db", "before")])
async def test_values_stamped_by_the_server_survive_the_stripping_of_what_clients_sent(
    sqlite_url: str, step: str, at: str
) -> None:
    async def stamp(ctx: Context, next: Next) -> None:
        ctx.set_field("owner", "server")
        ctx.set_field("risk", 7)
        ctx.set_field("role", "member")
        await next()

    server = accounts()
    getattr(server.pipeline, step).register(stamp, operations=["create", "update"], at=at)
    async with client(server, database=sqlite_url) as http:
        record = await created(http, "/api/accounts", **ADA, owner="eve", risk=1)
        assert (record["owner"], record["accessRole"]) == ("server", "member")
        assert (await stored(server, record["id"])).risk == 7
        await server.db(Account).update(record["id"], owner="", risk=0)
        changed = data_of(await http.patch(f"/api/accounts/{record['id']}", json={"owner": "eve"}))
        assert changed["owner"] == "server"
        assert (await stored(server, record["id"])).risk == 7


async def test_not_even_middleware_can_choose_the_id(database_url: str) -> None:
    async def choose(ctx: Context, next: Next) -> None:
        ctx.set_field("id", "chosen")
        await next()

    server = accounts()
    server.pipeline.service.register(choose, operations=["create", "update"])
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/accounts", json=ADA), 500, "PANIC")
        assert await total(http, "/api/accounts") == 0


async def test_stamped_values_obey_the_rules_of_the_field(database_url: str) -> None:
    async def stamp(ctx: Context, next: Next) -> None:
        ctx.set_field("age", 200)
        await next()

    server = accounts()
    server.pipeline.service.register(stamp, operations=["create", "update"])
    async with client(server, database=database_url) as http:
        assert offenders(await http.post("/api/accounts", json=ADA)) == {"age": "max"}
        assert await total(http, "/api/accounts") == 0


async def test_an_id_put_on_the_record_by_middleware_is_not_stored(database_url: str) -> None:
    server = accounts()

    @server.pipeline.service.middleware(operations=[Operation.CREATE])
    async def choose(ctx: Context, next: Next) -> None:
        ctx.record.id = "chosen"
        await next()

    async with client(server, database=database_url) as http:
        record = await created(http, "/api/accounts", **ADA)
        assert record["id"] != "chosen"
        assert (await http.get("/api/accounts/chosen")).status_code == 404
