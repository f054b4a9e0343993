"""The codes of the catalogue by status, and for each a request that gets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import httpx

from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import OTHER_SECRET, bearer, later, token
from tests.catalogue.auth.signing_in import PASSWORD
from tests.catalogue.described.everything import APP, Everything
from tests.kit.http import data_of

CODES: dict[int, tuple[str, ...]] = {
    400: ("IDEMPOTENCY_KEY_REQUIRED", "IDEMPOTENCY_KEY_INVALID"),
    401: (
        *("UNAUTHORIZED", "INVALID_TOKEN", "TOKEN_EXPIRED", "TOKEN_NOT_YET_VALID", "TOKEN_FUTURE_ISSUED"),
        *("TOKEN_MISSING_EXPIRY", "TOKEN_REVOKED", "TOKEN_NOT_REVOCABLE", "INVALID_CREDENTIALS"),
        *("INVALID_REFRESH_TOKEN", "REFRESH_TOKEN_REUSED"),
    ),
    403: (
        *("FORBIDDEN", "FIELD_FORBIDDEN", "CSRF_ORIGIN_REJECTED", "CSRF_TOKEN_MISSING"),
        *("CSRF_COOKIE_MISSING", "CSRF_NO_SESSION", "CSRF_TOKEN_MISMATCH"),
        *("CORS_ORIGIN_DENIED", "CORS_HEADER_DENIED"),
    ),
    405: ("METHOD_BLOCKED", "CORS_METHOD_DENIED"),
    409: ("CONFLICT", "IDEMPOTENCY_IN_PROGRESS", "IDEMPOTENCY_NOT_REPLAYABLE"),
    422: ("VALIDATION_FAILED", "MISSING_LOCALE", "INVALID_TRANSITION", "IDEMPOTENCY_KEY_REUSED"),
    429: ("RATE_LIMITED",),
    500: ("HASH_ERROR", "WORKFLOW_HOOK_ERROR"),
    503: (
        *("REVOCATION_UNAVAILABLE", "JWKS_UNAVAILABLE", "RATE_LIMIT_UNAVAILABLE"),
        "IDEMPOTENCY_UNAVAILABLE",
    ),
}

_NUMBERS = count(1)
_LONG = "x" * 300


@dataclass
class Client:
    """What the requests are made with."""

    http: httpx.AsyncClient
    world: Everything
    clock: FakeClock

    async def invoice(self, **values: Any) -> dict[str, Any]:
        record: dict[str, Any] = data_of(await self.create(**values), 201)
        return record

    async def create(self, key: str | None = None, /, **values: Any) -> httpx.Response:
        number = str(next(_NUMBERS))
        sent = {"Idempotency-Key": key or f"key {number}".replace(" ", "-")}
        content = {"number": number, **values}
        return await self.http.post("/api/invoices", headers={**known(), **sent}, json=content)

    async def account(self, **values: Any) -> httpx.Response:
        content = {"email": f"{next(_NUMBERS)}@example.com", "password": "secret", **values}
        return await self.http.post("/api/accounts", headers=known(), json=content)


def known(**claims: Any) -> dict[str, str]:
    """The headers of a caller with a good token."""
    return bearer(**{"jti": "one", "tenant": "acme", **claims})


Asked = tuple[str, str, httpx.Response]  # method and path of the route, and its answer
Ask = Callable[[Client], Awaitable[Asked]]
ASKS: dict[str, Ask] = {}


def gets(code: str) -> Callable[[Ask], Ask]:
    def note(ask: Ask) -> Ask:
        ASKS[code] = ask
        return ask

    return note


def with_token(code: str, **claims: Any) -> None:
    async def ask(client: Client) -> Asked:
        return "get", "/api/invoices", await client.http.get("/api/invoices", headers=known(**claims))

    ASKS[code] = ask


with_token("TOKEN_EXPIRED", exp=later(hours=-1))
with_token("TOKEN_NOT_YET_VALID", nbf=later(minutes=5))
with_token("TOKEN_FUTURE_ISSUED", iat=later(minutes=5))
with_token("TOKEN_MISSING_EXPIRY", exp=None)
with_token("TOKEN_NOT_REVOCABLE", jti=None)
with_token("INVALID_TOKEN", key=OTHER_SECRET)


@gets("UNAUTHORIZED")
async def _(client: Client) -> Asked:
    return "get", "/api/invoices", await client.http.get("/api/invoices")


@gets("TOKEN_REVOKED")
async def _(client: Client) -> Asked:
    client.world.revoker.tokens["gone"] = client.clock.now() + timedelta(days=1)
    return "get", "/api/invoices", await client.http.get("/api/invoices", headers=known(jti="gone"))


@gets("REVOCATION_UNAVAILABLE")
async def _(client: Client) -> Asked:
    client.world.revoker.is_away = True
    answer = await client.http.get("/api/invoices", headers=known())
    client.world.revoker.is_away = False
    return "get", "/api/invoices", answer


@gets("JWKS_UNAVAILABLE")
async def _(client: Client) -> Asked:
    return "get", "/api/parcels", await client.http.get("/api/parcels", headers=known(iss="us"))


@gets("INVALID_CREDENTIALS")
async def _(client: Client) -> Asked:
    wrong = {"email": "ada@example.com", "password": "wrong"}
    return "post", "/api/auth/login", await client.http.post("/api/auth/login", json=wrong)


@gets("INVALID_REFRESH_TOKEN")
async def _(client: Client) -> Asked:
    answer = await client.http.post("/api/auth/refresh", json={"refresh_token": "unknown"})
    return "post", "/api/auth/refresh", answer


@gets("REFRESH_TOKEN_REUSED")
async def _(client: Client) -> Asked:
    right = {"email": "ada@example.com", "password": PASSWORD}
    pair = data_of(await client.http.post("/api/auth/login", json=right))
    used = {"refresh_token": pair["refresh_token"]}
    assert (await client.http.post("/api/auth/refresh", json=used)).status_code == 200
    client.clock.advance(timedelta(seconds=11))
    return "post", "/api/auth/refresh", await client.http.post("/api/auth/refresh", json=used)


@gets("FORBIDDEN")
async def _(client: Client) -> Asked:
    record = await client.invoice()
    answer = await client.http.delete(f"/api/invoices/{record['id']}", headers=known())
    return "delete", "/api/invoices/{id}", answer


@gets("FIELD_FORBIDDEN")
async def _(client: Client) -> Asked:
    return "post", "/api/invoices", await client.create(approved=True)


async def comment(client: Client, cookies: str = "", **headers: str) -> Asked:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    all_cookies = f"session={token(jti='one')}{cookies}"
    answer = await client.http.post(
        "/api/comments", headers={"origin": APP, **named, "cookie": all_cookies}, json={"text": "x"}
    )
    return "post", "/api/comments", answer


@gets("CSRF_ORIGIN_REJECTED")
async def _(client: Client) -> Asked:
    return await comment(client, origin="https://evil.example")


@gets("CSRF_TOKEN_MISSING")
async def _(client: Client) -> Asked:
    return await comment(client)


@gets("CSRF_COOKIE_MISSING")
async def _(client: Client) -> Asked:
    return await comment(client, x_csrf_token="x" * 40)


@gets("CSRF_TOKEN_MISMATCH")
async def _(client: Client) -> Asked:
    return await comment(client, cookies=f"; csrf_token={'y' * 40}", x_csrf_token="x" * 40)


@gets("CSRF_NO_SESSION")
async def _(client: Client) -> Asked:
    headers = {"cookie": f"session={token()}", "x-csrf-token": "x"}
    return "post", "/api/letters", await client.http.post("/api/letters", headers=headers, json={"text": "x"})


async def preflight(client: Client, origin: str, method: str, header: str) -> Asked:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": header,
    }
    return "options", "/api/invoices", await client.http.options("/api/invoices", headers=headers)


@gets("CORS_ORIGIN_DENIED")
async def _(client: Client) -> Asked:
    return await preflight(client, "https://evil.example", "GET", "authorization")


@gets("CORS_HEADER_DENIED")
async def _(client: Client) -> Asked:
    return await preflight(client, APP, "GET", "x-own")


@gets("CORS_METHOD_DENIED")
async def _(client: Client) -> Asked:
    return await preflight(client, APP, "DELETE", "authorization")


@gets("METHOD_BLOCKED")
async def _(client: Client) -> Asked:
    answer = await client.http.delete("/api/accounts/1", headers=known())
    return "delete", "/api/accounts/{id}", answer


@gets("CONFLICT")
async def _(client: Client) -> Asked:
    email = f"{next(_NUMBERS)}@example.com"
    assert (await client.account(email=email)).status_code == 201
    return "post", "/api/accounts", await client.account(email=email)


@gets("IDEMPOTENCY_KEY_REQUIRED")
async def _(client: Client) -> Asked:
    return "post", "/api/invoices", await client.http.post("/api/invoices", headers=known(), json={})


@gets("IDEMPOTENCY_KEY_INVALID")
async def _(client: Client) -> Asked:
    return "post", "/api/invoices", await client.create(_LONG)


@gets("IDEMPOTENCY_KEY_REUSED")
async def _(client: Client) -> Asked:
    assert (await client.create("twice")).status_code == 201
    return "post", "/api/invoices", await client.create("twice")


@gets("IDEMPOTENCY_UNAVAILABLE")
async def _(client: Client) -> Asked:
    client.world.keys.is_away = True
    answer = await client.create()
    client.world.keys.is_away = False
    return "post", "/api/invoices", answer


async def tokens_of(client: Client) -> dict[str, str]:
    right = {"email": "ada@example.com", "password": PASSWORD}
    pair = data_of(await client.http.post("/api/auth/login", json=right))
    return {"authorization": f"Bearer {pair['access_token']}"}


@gets("IDEMPOTENCY_IN_PROGRESS")
async def _(client: Client) -> Asked:
    headers = {**await tokens_of(client), "idempotency-key": "twin"}
    return "post", "/api/twin", await client.http.post("/api/twin", headers=headers, json={})


@gets("IDEMPOTENCY_NOT_REPLAYABLE")
async def _(client: Client) -> Asked:
    headers = {**await tokens_of(client), "idempotency-key": "cookie"}
    assert (await client.http.post("/api/cookie", headers=headers)).status_code == 200
    client.http.cookies.clear()
    return "post", "/api/cookie", await client.http.post("/api/cookie", headers=headers)


@gets("VALIDATION_FAILED")
async def _(client: Client) -> Asked:
    return "post", "/api/invoices", await client.create(note=_LONG)


async def patch(client: Client, record: dict[str, Any], **changes: Any) -> Asked:
    answer = await client.http.patch(f"/api/invoices/{record['id']}", headers=known(), json=changes)
    return "patch", "/api/invoices/{id}", answer


@gets("MISSING_LOCALE")
async def _(client: Client) -> Asked:
    content = {"text": "x", "motto": {"de": "Hallo"}}
    return "post", "/api/plains", await client.http.post("/api/plains", json=content)


@gets("INVALID_TRANSITION")
async def _(client: Client) -> Asked:
    return await patch(client, await client.invoice(), status="paid")


@gets("WORKFLOW_HOOK_ERROR")
async def _(client: Client) -> Asked:
    return await patch(client, await client.invoice(), status="sent", note="boom")


@gets("HASH_ERROR")
async def _(client: Client) -> Asked:
    return "post", "/api/accounts", await client.account(password="boom")


async def list_accounts(client: Client) -> Asked:
    return "get", "/api/accounts", await client.http.get("/api/accounts")


@gets("RATE_LIMITED")
async def _(client: Client) -> Asked:
    client.world.budget.is_empty = True
    asked = await list_accounts(client)
    client.world.budget.is_empty = False
    client.clock.advance(timedelta(seconds=60))
    return asked


@gets("RATE_LIMIT_UNAVAILABLE")
async def _(client: Client) -> Asked:
    client.world.budget.is_away = True
    asked = await list_accounts(client)
    client.world.budget.is_away = False
    return asked
