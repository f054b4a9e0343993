"""Every credential that makes or changes another: what comes of it never has more than its maker.

Each maker asks for each thing, and what comes of it is used: it is never of another user or tenant, never has
a role or scope that the maker lacks, and never lasts longer than a maker that is a key itself.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Server
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, app, bearer, serving
from tests.kit.http import data_of, error_of

ROBOT = "a-key-of-sixteen-letters-or-more"
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
Headers = dict[str, str]
FULL: dict[str, Any] = {"roles": ["reader", "editor"], "scope": "read write", "org": "acme"}
PEOPLE: dict[str, Headers] = {
    "ada": bearer(**FULL),
    "ada, demoted": bearer(roles=["reader"], scope="read", org="acme"),
    "ada elsewhere": bearer(roles=["reader", "editor", "admin"], scope="read write", org="other"),
    "eve": bearer(sub="eve", roles=["reader", "editor"], scope="read write", org="acme"),
    "admin": bearer(sub="root", roles=["admin"], org="acme"),
    "operator": bearer(sub="operator", roles=["admin", "reader", "editor"], scope="read write"),
}
KEYS: dict[str, dict[str, Any]] = {
    "strong key": {"roles": ["reader", "editor"], "scopes": ["read", "write"]},
    "weak key": {},
    "reader key": {"roles": ["reader"], "scopes": ["read"]},
    "ending key": {"roles": ["reader", "editor"], "expires_at": (NOW + MINUTE).isoformat()},
}


def check_password(username: str, password: str) -> AuthInfo:
    return AuthInfo(user_id=username, roles=["reader"], tenant_id="acme")


def make_server(**options: Any) -> Server:
    keys = auth.ApiKeys(**options)
    server = app(
        auth.jwt(SECRET, tenant_claim="org"),
        auth.api_keys(store=keys),
        auth.api_keys("X-Robot", keys={ROBOT: AuthInfo(user_id="ada", tenant_id="acme", roles=["reader"])}),
        auth.basic(check_password),
    )
    keys.mount(server)
    return server


def wishes() -> Iterator[dict[str, Any]]:
    """What a new key may be asked to be."""
    for roles in ([], ["reader"], ["reader", "editor"], ["admin"]):
        yield {"roles": roles}
    for scopes in (["read"], ["read", "write"], ["all"]):
        yield {"scopes": scopes}
    for life in (timedelta(seconds=30), timedelta(hours=1), 400 * DAY):
        yield {"roles": ["reader"], "expires_at": (NOW + life).isoformat()}


async def make_keys(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """One key of each kind, made by Ada, and one of each other person."""
    keys = {}
    for name, wish in KEYS.items():
        answer = await http.post("/api/api_keys", json={"name": name, **wish}, headers=PEOPLE["ada"])
        keys[name] = data_of(answer, 201)
    for name in ("ada elsewhere", "eve", "operator"):
        answer = await http.post("/api/api_keys", json={"name": name}, headers=PEOPLE[name])
        keys[f"key of {name}"] = data_of(answer, 201)
    return keys


def makers(keys: dict[str, dict[str, Any]]) -> dict[str, Headers]:
    """Every credential that may try to make another."""
    basic = base64.b64encode(b"ada:x").decode()
    by_key = {name: {"X-API-Key": key["key"]} for name, key in keys.items()}
    return {**PEOPLE, **by_key, "robot": {"X-Robot": ROBOT}, "basic": {"Authorization": f"Basic {basic}"}}


def assert_no_more(maker: dict[str, Any], child: dict[str, Any], latest: datetime | None, pair: str) -> None:
    assert (child["user_id"], child["tenant_id"]) == (maker["user_id"], maker["tenant_id"]), pair
    assert set(child["roles"]) <= set(maker["roles"]), pair
    assert set(child["scopes"]) <= set(maker["scopes"]), pair
    if latest is not None:
        assert child["claims"].get("exp", float("inf")) <= latest.timestamp(), pair


@pytest.mark.parametrize(("made_by_keys", "max_ttl"), [(False, None), (True, None), (True, 30 * DAY)])
async def test_nothing_that_is_made_or_rotated_has_more_than_its_maker(
    made_by_keys: bool, max_ttl: timedelta | None, database_url: str
) -> None:
    statuses: Counter[str] = Counter()
    async with serving(make_server(made_by_keys=made_by_keys, max_ttl=max_ttl), database_url) as http:

        async def who(headers: Headers) -> dict[str, Any]:
            identity: dict[str, Any] = data_of(await http.get("/api/me", headers=headers))
            return identity

        async def judge(answer: httpx.Response, name: str, headers: Headers, pair: str) -> None:
            kind = "key" if "key" in name or name == "robot" else "person"
            statuses[f"{kind} {answer.is_success}"] += 1
            if not answer.is_success:
                assert answer.status_code in (403, 404, 409, 422), pair
                return
            assert kind == "person" or made_by_keys, pair
            maker = await who(headers)
            end = maker["claims"].get("exp") if kind == "key" else None
            ends = [datetime.fromtimestamp(end, NOW.tzinfo)] if end is not None else []
            latest = min([*ends, *([] if max_ttl is None else [NOW + max_ttl])], default=None)
            child = await who({"X-API-Key": answer.json()["data"]["key"]})
            assert_no_more(maker, child, latest, pair)

        credentials = makers(await make_keys(http))
        for wish in wishes():
            for name, headers in credentials.items():
                answer = await http.post("/api/api_keys", json={"name": "x", **wish}, headers=headers)
                await judge(answer, name, headers, f"{name} makes {wish}")
        for name in credentials:
            keys = await make_keys(http)  # anew: a rotation ends the secret a maker may have
            headers = makers(keys)[name]
            for target, key in keys.items():
                if target != name:
                    answer = await http.post(f"/api/api_keys/{key['id']}/rotate", headers=headers)
                    await judge(answer, name, headers, f"{name} rotates {target}")
    assert statuses["person True"] > 10
    assert (statuses["key True"] > 10) is made_by_keys
    assert min(statuses["person False"], statuses["key False"]) > 10


async def test_a_refreshed_token_has_what_its_family_began_with(database_url: str) -> None:
    tokens = auth.Tokens(SECRET, issuer="us")
    server = app(tokens.bearer())

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo:
        return AuthInfo("ada", roles=["reader"], scopes=["read"], tenant_id="acme")

    tokens.mount(server, login=log_in)
    clock = FakeClock(NOW)
    async with serving(server, database_url, clock) as http:
        body = {"email": "ada", "password": "x"}
        pair = data_of(await http.post("/api/auth/login", json=body))
        for _ in range(3):
            clock.advance(timedelta(minutes=10))
            forged = {"refresh_token": pair["refresh_token"], "roles": ["admin"], "tenant": "other"}
            pair = data_of(await http.post("/api/auth/refresh", json=forged))
            headers = {"Authorization": f"Bearer {pair['access_token']}"}
            me = data_of(await http.get("/api/me", headers=headers))
            assert (me["roles"], me["scopes"], me["tenant_id"]) == (["reader"], ["read"], "acme")
        await tokens.end_all("ada")
        spent = {"refresh_token": pair["refresh_token"]}
        error_of(await http.post("/api/auth/refresh", json=spent), 401, "INVALID_REFRESH_TOKEN")
