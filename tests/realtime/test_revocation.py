"""Streams end with the leave that opened them: expiry, sign-out, reused refresh tokens, deleted API keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jwt as pyjwt
import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.middleware import auth
from maniflex.testing import FakeClock, client, sse, websocket
from maniflex.testing.streams import ConnectionEnded, HandshakeRefused, WebSocketClient
from tests.kit.http import data_of

SECRET = "a secret that is long enough for everybody"


class Memo(Model, events=True):
    """What streams tell of."""

    text: str = field(default="")


def sign_in(ctx: Context, credentials: Any) -> AuthInfo | None:
    return AuthInfo(credentials.email, tenant_id="red") if credentials.password == "right" else None


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[tuple[Server, httpx.AsyncClient, auth.Tokens]]:
    server = Server(url)
    server.register(Memo)
    tokens = auth.Tokens(SECRET, issuer="memo", reuse_grace=0, revoker=auth.SqlRevoker())
    keys = auth.ApiKeys()
    server.pipeline.auth.register(auth.api_keys(store=keys))
    server.pipeline.auth.register(tokens.bearer())
    tokens.mount(server, login=sign_in)
    keys.mount(server)
    server.realtime.enable()
    async with client(server, database=url) as http:
        yield server, http, tokens


async def log_in(http: httpx.AsyncClient, user: str = "ada") -> dict[str, Any]:
    body = {"email": user, "password": "right"}
    pair: dict[str, Any] = data_of(await http.post("/api/auth/login", json=body))
    return pair


def bearer(pair: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {pair['access_token']}"}


async def closed_with(ws: WebSocketClient) -> int:
    """The code of the end; no event comes before it."""
    while True:
        try:
            assert (await ws.receive())["op"] != "event"
        except ConnectionEnded as ended:
            return ended.code


@pytest.mark.parametrize("way", ["logout", "logout-all", "reuse", "end_all"])
async def test_a_session_that_ends_takes_its_streams_along(database_url: str, way: str) -> None:
    async with serving(database_url) as (server, http, tokens):
        ada, eve = await log_in(http), await log_in(http, "eve")
        query = {"access_token": ada["access_token"]}
        async with (
            websocket(server, query=query) as ws,
            sse(server, headers=bearer(ada)) as stream,
            websocket(server, headers=bearer(eve)) as other,
        ):
            for one in (ws, other):
                assert (await one.subscribe("*"))["op"] == "ack"
            match way:
                case "reuse":
                    fresh = {"refresh_token": ada["refresh_token"]}
                    assert (await http.post("/api/auth/refresh", json=fresh)).status_code == 200
                    assert (await http.post("/api/auth/refresh", json=fresh)).status_code == 401
                case "end_all":
                    await tokens.end_all("ada")
                case _:
                    answer = await http.post(f"/api/auth/{way}", headers=bearer(ada))
                    assert answer.status_code == 204, answer.text
            await server.db(Memo).create(text="afterwards")
            assert await closed_with(ws) == 4401
            assert (await stream.receive()).event == "revoked"
            assert (await other.receive())["data"]["data"]["text"] == "afterwards"
        with pytest.raises(HandshakeRefused) as refused:
            async with websocket(server, query=query):
                pass
        assert refused.value.status == 401
        again = await log_in(http)
        async with websocket(server, headers=bearer(again)) as ws:
            assert (await ws.subscribe("*"))["op"] == "ack"


async def test_an_api_key_that_is_deleted_ends_its_streams(database_url: str) -> None:
    async with serving(database_url) as (server, http, _):
        ada = await log_in(http)
        made = await http.post("/api/api_keys", json={"name": "mine"}, headers=bearer(ada))
        key = data_of(made, 201)
        async with websocket(server, headers={"x-api-key": key["key"]}) as ws:
            assert (await ws.subscribe("*"))["op"] == "ack"
            answer = await http.delete(f"/api/api_keys/{key['id']}", headers=bearer(ada))
            assert answer.status_code == 204, answer.text
            await server.db(Memo).create(text="afterwards")
            assert await closed_with(ws) == 4401


async def test_signing_out_of_another_issuer_ends_the_streams_of_the_token(database_url: str) -> None:
    server = Server(database_url)
    server.register(Memo)
    revoker = auth.SqlRevoker()
    server.pipeline.auth.register(auth.jwt(SECRET, revoker=revoker))
    auth.mount_logout(server, revoker, keep=timedelta(hours=1))
    server.realtime.enable()

    def token(name: str) -> str:
        now = datetime.now(UTC)
        claims = {"sub": "ada", "jti": name, "iat": now, "exp": now + timedelta(hours=1)}
        return pyjwt.encode(claims, SECRET, "HS256")

    async with client(server, database=database_url) as http:
        tokens = [token("one"), token("two")]
        headers = [{"authorization": f"Bearer {text}"} for text in tokens]
        async with (
            websocket(server, headers=headers[0]) as one,
            websocket(server, subprotocols=[f"access_token.{tokens[1]}"]) as two,
        ):
            for ws in (one, two):
                await ws.subscribe("*")
            assert (await http.post("/api/logout", headers=headers[0])).status_code == 204
            assert await closed_with(one) == 4401
            await server.db(Memo).create(text="still here")
            assert (await two.receive())["op"] == "event"
            await asyncio.sleep(1.1)  # tokens of the same second count as issued before
            assert (await http.post("/api/logout-all", headers=headers[1])).status_code == 204
            assert await closed_with(two) == 4401


async def test_a_token_ends_its_stream_in_the_second_it_expires(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    server = Server(database_url)
    server.register(Memo)
    server.pipeline.auth.register(auth.jwt(SECRET))
    server.realtime.enable()

    def token(user: str, minutes: float) -> str:
        claims = {"sub": user, "exp": clock.now() + timedelta(minutes=minutes)}
        return pyjwt.encode(claims, SECRET, "HS256")

    async with client(server, database=database_url, clock=clock):
        short = token("ada", 10)
        async with (
            websocket(server, query={"access_token": short}) as ends,
            websocket(server, query={"access_token": short}) as lasts,
            websocket(server, query={"access_token": token("eve", 20)}) as other,
        ):
            for ws in (ends, lasts, other):
                await ws.subscribe("*")
            await lasts.send({"op": "auth", "token": "garbage", "ref": 1})
            refusal = await lasts.receive()
            assert (refusal["code"], refusal["ref"]) == ("UNAUTHORIZED", 1)
            await lasts.send({"op": "auth", "token": token("ada", 60), "ref": 2})
            assert await lasts.receive() == {"op": "ack", "ref": 2}
            clock.advance(timedelta(minutes=9, seconds=59))
            await ends.send({"op": "ping"})
            while (await ends.receive())["op"] != "pong":
                pass
            clock.advance(timedelta(seconds=1))
            assert await closed_with(ends) == 4401
            await lasts.send({"op": "ping"})
            while (await lasts.receive())["op"] != "pong":
                pass
            await other.send({"op": "auth", "token": token("ada", 60)})
            assert await closed_with(other) == 4403
