"""A reached model is as open by `include` as by its own list: exemptions stand with its authenticators."""

from __future__ import annotations

from typing import Any

import jwt as pyjwt
import pytest

from maniflex import Context, Model, Server, field, has_many
from maniflex.middleware import auth, response
from maniflex.testing import client
from tests.catalogue.auth.kit import SECRET, bearer
from tests.kit.http import error_of


class Room(Model):
    name: str = field(filterable=True)
    beds: list[Bed] = has_many()


class Bed(Model):
    size: int = field(default=1, filterable=True)
    room_id: str | None = field(default=None, filterable=True)


READS = ["list", "read"]
WAYS = ("/api/rooms?include=beds", "/api/rooms?filter=beds.size:gt:0", "/api/rooms/none?include=beds")


def rooms(*registrations: tuple[Any, dict[str, Any]]) -> Server:
    server = Server()
    server.register(Room, Bed)
    for entry, options in registrations:
        server.pipeline.auth.register(entry, **options)
    return server


def jwt_of_beds() -> tuple[Any, dict[str, Any]]:
    return auth.jwt(SECRET, issuer=None, allow_no_expiry=True), {"models": [Bed]}


@pytest.mark.parametrize(
    ("before", "is_open"),
    [
        ([(auth.allow_anonymous, {})], True),
        ([(auth.allow_anonymous, {"operations": READS})], True),
        ([(auth.allow_anonymous, {"operations": "list"})], True),
        ([(auth.allow_public_read, {})], True),
        ([(auth.allow_public_read, {"models": [Bed]})], True),
        ([(auth.allow_anonymous, {"models": [Bed]})], True),
        ([], False),
        ([(auth.allow_anonymous, {"models": [Room]})], False),
        ([(auth.allow_public_read, {"models": [Room]})], False),
        ([(auth.allow_anonymous, {"operations": "read"})], False),
        ([(auth.allow_anonymous, {"operations": "create"})], False),
    ],
)
async def test_an_include_is_as_open_as_the_list_of_what_it_includes(
    before: list[tuple[Any, dict[str, Any]]], is_open: bool, sqlite_url: str
) -> None:
    made = [(factory(), options) for factory, options in before]
    async with client(rooms(*made, jwt_of_beds()), database=sqlite_url) as http:
        assert ((await http.get("/api/beds")).status_code == 200) is is_open
        assert (await http.get("/api/rooms")).status_code == 200
        for path in WAYS:
            answer = await http.get(path)
            assert (answer.status_code != 401) is is_open, path
            known = await http.get(path, headers=signed_in())
            assert known.status_code in (200, 404), path
            bad = await http.get(path, headers=bearer("x"))
            error_of(bad, 401, "INVALID_TOKEN")


def signed_in() -> dict[str, str]:
    return {"Authorization": "Bearer " + pyjwt.encode({"sub": "ada"}, SECRET, "HS256")}


async def test_an_exemption_behind_the_authenticator_opens_nothing(sqlite_url: str) -> None:
    server = rooms(jwt_of_beds(), (auth.allow_anonymous(), {}))
    async with client(server, database=sqlite_url) as http:
        error_of(await http.get("/api/beds"), 401, "UNAUTHORIZED")
        error_of(await http.get("/api/rooms?include=beds"), 401, "UNAUTHORIZED")


async def test_a_key_in_a_body_is_as_open_as_the_list(sqlite_url: str) -> None:
    """Whether a record exists is told by its list, too."""
    server = rooms(
        (auth.allow_anonymous(), {"operations": READS}),
        (auth.jwt(SECRET, allow_no_expiry=True), {"models": [Room]}),
    )
    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/api/rooms")).status_code == 200
        refused = await http.post("/api/beds", json={"room_id": "none"})
        error_of(refused, 409, "CONFLICT")
        error_of(await http.post("/api/rooms", json={"name": "x"}), 401, "UNAUTHORIZED")


async def test_guards_behind_the_exemption_still_stand(sqlite_url: str) -> None:
    server = rooms(
        (auth.allow_anonymous(), {}), jwt_of_beds(), (auth.require_role("owner"), {"models": [Bed]})
    )
    async with client(server, database=sqlite_url) as http:
        for path in ("/api/beds", "/api/rooms?include=beds"):
            error_of(await http.get(path), 401, "UNAUTHORIZED")
            error_of(await http.get(path, headers=signed_in()), 403, "FORBIDDEN")


@pytest.mark.parametrize("value", ["1", lambda ctx: "1"])
async def test_a_header_of_an_action_is_on_refusals_of_its_auth_step_too(value: Any, sqlite_url: str) -> None:
    """R7."""
    server = Server()
    server.pipeline.auth.register(auth.jwt(SECRET, allow_no_expiry=True))
    middleware = [response.add_header("X-Shop", value), auth.require_role("admin")]

    @server.action("POST", "/act/{what}", middleware=middleware)
    async def act(ctx: Context) -> str:
        if ctx.url_param("what") == "abort":
            ctx.abort(409, "BUSY", "not now")
        if ctx.url_param("what") == "fail":
            raise RuntimeError("broken")
        return "done"

    @server.action("POST", "/other")
    async def other(ctx: Context) -> str:
        return "done"

    admin = {"Authorization": "Bearer " + pyjwt.encode({"sub": "a", "roles": ["admin"]}, SECRET, "HS256")}
    async with client(server, database=sqlite_url) as http:
        for path, headers, status in (
            ("do", {}, 401),
            ("do", bearer("x"), 401),
            ("do", signed_in(), 403),
            ("do", admin, 200),
            ("abort", admin, 409),
            ("fail", admin, 500),
        ):
            answer = await http.post(f"/api/act/{path}", headers=headers)
            assert answer.status_code == status
            assert answer.headers.get_list("x-shop") == ["1"], status
        assert "x-shop" not in (await http.post("/api/other", headers=admin)).headers
