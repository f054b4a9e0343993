"""A server on which people sign in, and its clients."""

from __future__ import annotations

from typing import Any

import httpx

from maniflex import AuthInfo, Context, Server
from maniflex.middleware import auth
from tests.catalogue.auth.kit import SECRET, app
from tests.kit.http import data_of

PASSWORD = "correct horse battery"


async def login(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    if credentials.password != PASSWORD:
        return None
    return AuthInfo(user_id=credentials.email, roles=["member"], scopes=["read", "write"], tenant_id="acme")


def token_app(**options: Any) -> tuple[Server, auth.Tokens]:
    tokens = auth.Tokens(SECRET, issuer="us", **options)
    server = app(tokens.bearer())
    tokens.mount(server, login=login)
    return server, tokens


async def sign_in(http: httpx.AsyncClient, email: str = "ada@example.com") -> dict[str, Any]:
    answer = await http.post("/api/auth/login", json={"email": email, "password": PASSWORD})
    assert answer.headers["cache-control"] == "no-store"
    data: dict[str, Any] = data_of(answer)
    return data


async def refresh(http: httpx.AsyncClient, token: Any) -> httpx.Response:
    return await http.post("/api/auth/refresh", json={"refresh_token": token})


def bearing(pair: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {pair['access_token']}"}
