"""`auth.ApiKeys`: C12."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from maniflex import DeclarationError, Model, Server, field
from maniflex.middleware import auth
from maniflex.middleware.auth.credential_store import ApiKey, digest_of
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, app, bearer, serving
from tests.kit.http import data_of, error_of
from tests.kit.stored_bytes import stored_bytes

ADA = bearer(roles=["editor", "reader"], scope="read write", org="acme")
EVE = bearer(sub="eve", org="acme")
STRANGER = bearer(org="other")
ADMIN = bearer(sub="root", roles=["admin"], org="acme")
OPERATOR = bearer(sub="operator", roles=["admin"])


def key_app(**options: Any) -> Server:
    keys = auth.ApiKeys(**options)
    server = app(auth.jwt(SECRET, tenant_claim="org"), auth.api_keys(store=keys))
    keys.mount(server)
    return server


async def make(http: httpx.AsyncClient, headers: dict[str, str] = ADA, **body: Any) -> dict[str, Any]:
    answer = await http.post("/api/api_keys", json={"name": "ci", **body}, headers=headers)
    assert answer.headers["cache-control"] == "no-store"
    data: dict[str, Any] = data_of(answer, 201)
    return data


async def me(http: httpx.AsyncClient, key: str) -> httpx.Response:
    return await http.get("/api/me", headers={"X-API-Key": key})


async def test_a_key_acts_for_its_maker_with_what_it_was_given(database_url: str) -> None:
    """A16."""
    async with serving(key_app(), database_url) as http:
        made = await make(http, roles=["reader"], scopes=["read"])
        prefix, key_id, secret = made["key"].split("_")
        assert (prefix, key_id, len(secret), secret.isalnum()) == ("mfx", made["id"], 43, True)
        who = data_of(await me(http, made["key"]))
        assert (who["user_id"], who["tenant_id"], who["roles"]) == ("ada", "acme", ["reader"])
        assert (who["scopes"], who["auth_method"]) == (["read"], "api_key")
        assert who["identity_type"] == "service_account"


@pytest.mark.parametrize("page", ["0", "-1", "0.0", "1.0", "1e3", "1_0", "x", "9" * 13, "9" * 5000])
async def test_a_page_that_is_none_is_refused(page: str) -> None:
    async with serving(key_app(), ":memory:") as http:
        error_of(await http.get(f"/api/api_keys?page={page}", headers=ADA), 400, "INVALID_QUERY")
        data_of(await http.get("/api/api_keys?page=1", headers=ADA))


async def test_c12_a_key_is_shown_once_and_kept_nowhere(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C12."""
    with caplog.at_level(logging.DEBUG):
        async with serving(key_app(), database_url) as http:
            made = await make(http)
            data_of(await me(http, made["key"]))
            rotated = data_of(await http.post(f"/api/api_keys/{made['id']}/rotate", headers=ADA))
            others = [
                await http.get("/api/api_keys", headers=ADA),
                await http.get(f"/api/api_keys/{made['id']}", headers=ADA),
                await http.get("/api/api_key", headers=ADA),
                await http.get("/api/api_key/export", headers=ADA),
                await http.get("/api/openapi.json"),
                await me(http, made["key"] + "x"),
                await http.delete(f"/api/api_keys/{made['id']}", headers=ADA),
            ]
            content = await stored_bytes(database_url)

    assert [answer.status_code for answer in others] == [200, 200, 404, 404, 200, 401, 204]
    for key in (made["key"], rotated["key"]):
        secret = key.rpartition("_")[2]
        assert not any(secret in answer.text for answer in others)
        assert not any(digest_of(secret) in answer.text for answer in others)
        assert secret.encode() not in content
        assert secret not in caplog.text
    assert digest_of(rotated["key"].rpartition("_")[2]).encode() in content


async def test_c12_rotation_with_overlap_and_revocation(database_url: str) -> None:
    """C12."""
    clock = FakeClock(NOW)
    async with serving(key_app(), database_url, clock) as http:
        made = await make(http)
        path = f"/api/api_keys/{made['id']}"
        rotated = data_of(await http.post(f"{path}/rotate", json={"overlap": 60}, headers=ADA))
        assert rotated["key"] != made["key"]
        for key in (made["key"], rotated["key"]):
            data_of(await me(http, key))
        clock.advance(timedelta(seconds=60))
        error_of(await me(http, made["key"]), 401, "UNAUTHORIZED")
        data_of(await me(http, rotated["key"]))
        at_once = data_of(await http.post(f"{path}/rotate", headers=ADA))
        error_of(await me(http, rotated["key"]), 401, "UNAUTHORIZED")
        assert (await http.delete(path, headers=ADA)).status_code == 204
        error_of(await me(http, at_once["key"]), 401, "UNAUTHORIZED")
        error_of(await http.post(f"{path}/rotate", headers=ADA), 409, "CONFLICT")
        assert data_of(await http.get(path, headers=ADA))["revoked_at"]
        for overlap in (-1, 1e9):
            body = {"overlap": overlap}
            error_of(await http.post(f"{path}/rotate", json=body, headers=ADA), 422, "VALIDATION_FAILED")


async def test_of_two_rotations_at_once_one_wins(database_url: str) -> None:
    async with serving(key_app(), database_url) as http:
        made = await make(http)
        path = f"/api/api_keys/{made['id']}/rotate"
        answers = await asyncio.gather(*(http.post(path, headers=ADA) for _ in range(5)))
        working = [
            a
            for a in answers
            if a.status_code == 200 and (await me(http, a.json()["data"]["key"])).is_success
        ]
        assert len(working) == 1


async def test_a_key_has_at_most_what_its_maker_has(database_url: str) -> None:
    """A17."""
    async with serving(key_app(), database_url) as http:
        for body in ({"roles": ["admin"]}, {"roles": ["reader", "admin"]}, {"scopes": ["delete"]}):
            answer = await http.post("/api/api_keys", json={"name": "x", **body}, headers=ADA)
            error_of(answer, 403, "FORBIDDEN")
        weak = await make(http, roles=["reader"])
        headers = {"X-API-Key": weak["key"]}
        answer = await http.post("/api/api_keys", json={"name": "x", "roles": ["editor"]}, headers=headers)
        error_of(answer, 403, "FORBIDDEN")
        stored: dict[str, Any] = {"actor": "root", "tenant": "other", "digest": "0" * 64, "id": "x"}
        made = await make(http, **stored)
        assert (made["actor"], made["tenant"]) == ("ada", "acme")
        error_of(await http.post("/api/api_keys", json={"name": "x"}), 401, "UNAUTHORIZED")


async def rotate(http: httpx.AsyncClient, key: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    return await http.post(f"/api/api_keys/{key['id']}/rotate", headers=headers)


async def create(http: httpx.AsyncClient, headers: dict[str, str], **body: Any) -> httpx.Response:
    return await http.post("/api/api_keys", json={"name": "x", **body}, headers=headers)


async def test_a_key_makes_and_rotates_no_key_unless_that_is_declared(database_url: str) -> None:
    """Not itself either: who has a copy of it could lock its owner out of it."""
    async with serving(key_app(), database_url) as http:
        boss, weak = await make(http, roles=["editor"]), await make(http)
        for maker in (boss, weak):
            headers = {"X-API-Key": maker["key"]}
            error_of(await create(http, headers), 403, "FORBIDDEN")
            for target in (boss, weak):
                error_of(await rotate(http, target, headers), 403, "FORBIDDEN")
        assert "key" in data_of(await rotate(http, boss, ADA))


async def test_others_keys_are_revoked_and_never_shown(database_url: str) -> None:
    async with serving(key_app(), database_url) as http:
        made = await make(http, roles=["reader"])
        for headers in (ADMIN, OPERATOR, bearer(sub="root", roles=["admin", "reader"], org="acme")):
            error_of(await rotate(http, made, headers), 403, "FORBIDDEN")
        data_of(await me(http, made["key"]))
        assert (await http.delete(f"/api/api_keys/{made['id']}", headers=ADMIN)).status_code == 204


async def test_what_is_rotated_could_be_made_now(database_url: str) -> None:
    """A maker that has lost a role since gets no new secret with it; the key itself stays as it is."""
    async with serving(key_app(), database_url) as http:
        roles, scopes = await make(http, roles=["editor"]), await make(http, scopes=["write"])
        for demoted in (bearer(roles=["reader"], scope="read", org="acme"), bearer(org="acme")):
            for key in (roles, scopes):
                error_of(await rotate(http, key, demoted), 403, "FORBIDDEN")
        for key in (roles, scopes):
            data_of(await me(http, key["key"]))
            data_of(await rotate(http, key, ADA))


async def test_a_key_that_makes_keys_makes_none_that_is_stronger_or_lasts_longer(database_url: str) -> None:
    clock = FakeClock(NOW)
    soon = (NOW + timedelta(seconds=2)).isoformat()
    async with serving(key_app(made_by_keys=True), database_url, clock) as http:
        lasting = await make(http, roles=["reader"])
        ending = await make(http, roles=["reader"], expires_at=soon)
        headers = {"X-API-Key": ending["key"]}
        child = data_of(await create(http, headers, roles=["reader"]), 201)
        assert datetime.fromisoformat(child["expires_at"]) == NOW + timedelta(seconds=2)
        later = (NOW + timedelta(seconds=3)).isoformat()
        error_of(await create(http, headers, expires_at=later), 422, "VALIDATION_FAILED")
        error_of(await create(http, headers, roles=["editor"]), 403, "FORBIDDEN")
        error_of(await rotate(http, lasting, headers), 403, "FORBIDDEN")
        data_of(await rotate(http, child, headers))
        clock.advance(timedelta(seconds=2))
        error_of(await me(http, child["key"]), 401, "UNAUTHORIZED")


async def test_an_old_secret_makes_none_that_outlives_it(database_url: str) -> None:
    """The secret that a rotation lets count for a while ends with that while."""
    async with serving(key_app(made_by_keys=True), database_url) as http:
        made = await make(http)
        body = {"overlap": 60}
        new = data_of(await http.post(f"/api/api_keys/{made['id']}/rotate", json=body, headers=ADA))
        child = data_of(await create(http, {"X-API-Key": made["key"]}), 201)
        assert datetime.fromisoformat(child["expires_at"]) == NOW + timedelta(minutes=1)
        error_of(await rotate(http, made, {"X-API-Key": made["key"]}), 403, "FORBIDDEN")
        data_of(await rotate(http, made, {"X-API-Key": new["key"]}))


async def test_a_key_from_before_max_ttl_is_not_rotated(sqlite_url: str) -> None:
    async with serving(key_app(), sqlite_url) as http:
        lasting = await make(http)
    async with serving(key_app(max_ttl=timedelta(days=1)), sqlite_url) as http:
        error_of(await rotate(http, lasting, ADA), 403, "FORBIDDEN")


async def test_callers_see_their_own_keys(database_url: str) -> None:
    """A17: actor and tenant; the admin role sees those of its tenant, or all when it has none."""
    async with serving(key_app(), database_url) as http:
        made = await make(http)
        path = f"/api/api_keys/{made['id']}"
        foreign = await make(http, STRANGER)
        for headers in (EVE, STRANGER):
            for method, place in (("GET", path), ("DELETE", path), ("POST", f"{path}/rotate")):
                error_of(await http.request(method, place, headers=headers), 404, "NOT_FOUND")
        assert data_of(await http.get("/api/api_keys", headers=EVE)) == []
        seen = {
            name: {key["id"] for key in data_of(await http.get("/api/api_keys", headers=headers))}
            for name, headers in {"ada": ADA, "admin": ADMIN, "operator": OPERATOR}.items()
        }
        assert seen == {"ada": {made["id"]}, "admin": {made["id"]}, "operator": {made["id"], foreign["id"]}}
        data_of(await me(http, made["key"]))
        assert (await http.delete(path, headers=OPERATOR)).status_code == 204
        error_of(await me(http, made["key"]), 401, "UNAUTHORIZED")


async def test_keys_expire(database_url: str) -> None:
    clock = FakeClock(NOW)
    async with serving(key_app(max_ttl=timedelta(days=1)), database_url, clock) as http:
        usual = await make(http)
        short = await make(http, expires_at=(NOW + timedelta(minutes=1)).isoformat())
        assert datetime.fromisoformat(usual["expires_at"]) == NOW + timedelta(days=1)
        for wish in (NOW, NOW + timedelta(days=2), NOW.replace(tzinfo=None) + timedelta(hours=1)):
            body = {"name": "x", "expires_at": wish.isoformat()}
            answer = await http.post("/api/api_keys", json=body, headers=ADA)
            error_of(answer, 422, "VALIDATION_FAILED")
        clock.advance(timedelta(minutes=1))
        error_of(await me(http, short["key"]), 401, "UNAUTHORIZED")
        data_of(await me(http, usual["key"]))
        clock.advance(timedelta(days=1))
        error_of(await me(http, usual["key"]), 401, "UNAUTHORIZED")


async def test_the_time_of_use_is_written_at_most_once_a_minute(database_url: str) -> None:
    clock = FakeClock(NOW)
    server = key_app()
    async with serving(server, database_url, clock) as http:
        made = await make(http)

        async def used() -> datetime | None:
            key: ApiKey = await server.db(ApiKey).read(made["id"])
            return key.last_used_at

        assert await used() is None
        await me(http, made["key"])
        assert await used() == NOW
        clock.advance(timedelta(seconds=59))
        await me(http, made["key"])
        assert await used() == NOW
        clock.advance(timedelta(seconds=1))
        await me(http, made["key"])
        assert await used() == NOW + timedelta(minutes=1)


async def test_texts_that_are_no_keys(database_url: str) -> None:
    async with serving(key_app(), database_url) as http:
        made = await make(http)
        prefix, key_id, secret = made["key"].split("_")
        texts = [f"{prefix}_{key_id}_{secret[:-1]}", f"x_{key_id}_{secret}", f"{prefix}_{key_id}_", secret]
        texts += [
            f"{prefix}_{key_id.upper()}_{secret}",
            f"{prefix}__{secret}",
            f"{prefix}_{key_id}_{'0' * 43}",
        ]
        texts += [made["key"] + " x", f"{prefix}_{'0' * 36}_{secret}", "mfx_%00_x"]
        for text in texts:
            error_of(await me(http, text), 401, "UNAUTHORIZED")


def test_keys_that_are_not_mounted_stop_the_start() -> None:
    server = app(auth.api_keys(store=auth.ApiKeys(prefix="My_Key", max_ttl=0)))

    with pytest.raises(DeclarationError) as caught:
        server.seal()
    for text in ("its store is not mounted", "the prefix of keys", "max_ttl"):
        assert text in str(caught.value)


def test_no_model_refers_to_the_table_of_keys() -> None:
    server = key_app()

    class Robot(Model):
        api_key_id: str = field(relation="ApiKey")

    server.register(Robot)
    with pytest.raises(DeclarationError, match="no model refers to ApiKey"):
        server.seal()
