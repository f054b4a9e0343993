"""`auth.Tokens`: C9 in one process, and C11."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import jwt as pyjwt
import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Server, field
from maniflex.background.expired_rows import ExpiredRows
from maniflex.middleware import auth
from maniflex.middleware.auth.credential_store import RefreshToken
from maniflex.testing import FakeClock, client
from tests.catalogue.auth.kit import EC_KEY, NOW, SECRET, Post, app, serving
from tests.catalogue.auth.revoker import PlainRevoker
from tests.catalogue.auth.signing_in import PASSWORD, bearing, login, refresh, sign_in, token_app
from tests.kit.http import data_of, error_of
from tests.kit.notes import Note
from tests.kit.stored_bytes import stored_bytes


async def test_login_gives_tokens_that_work(database_url: str) -> None:
    """A18, A19."""
    server, _ = token_app(audience="app")
    async with serving(server, database_url) as http:
        pair = await sign_in(http)
        assert set(pair) == {"access_token", "refresh_token", "token_type", "expires_in"}
        assert (pair["token_type"], pair["expires_in"]) == ("Bearer", 900)
        me = data_of(await http.get("/api/me", headers=bearing(pair)))
        assert (me["user_id"], me["tenant_id"], me["roles"]) == ("ada@example.com", "acme", ["member"])
        assert me["scopes"] == ["read", "write"]
        claims = pyjwt.decode(pair["access_token"], options={"verify_signature": False})
        assert {"iss", "sub", "aud", "exp", "iat", "jti", "roles", "scope", "tenant"} <= set(claims)
        assert isinstance(claims["iat"], float)
        new = data_of(await refresh(http, pair["refresh_token"]))
        assert data_of(await http.get("/api/me", headers=bearing(new)))["roles"] == ["member"]
        assert new["refresh_token"] != pair["refresh_token"]


async def test_wrong_credentials_are_told_apart_by_nothing(database_url: str) -> None:
    server, _ = token_app()
    async with serving(server, database_url) as http:
        bodies = [
            {"email": email, "password": "wrong"} for email in ("ada@example.com", "nobody@example.com")
        ]
        answers = [await http.post("/api/auth/login", json=body) for body in bodies]
        assert {answer.text for answer in answers} == {answers[0].text}
        error_of(answers[0], 401, "INVALID_CREDENTIALS")
        assert answers[0].headers["www-authenticate"]
        error_of(await http.post("/api/auth/login", json={"email": "x"}), 422, "VALIDATION_FAILED")


async def test_login_and_refresh_pass_global_guards_of_identity(database_url: str) -> None:
    """§16b: exempt from authenticators and CSRF by themselves, whatever credentials a client sends along."""
    tokens = auth.Tokens(SECRET, issuer="us")
    server = app(auth.allow_public_read(), tokens.bearer(), auth.csrf())
    tokens.mount(server, login=login)
    async with serving(server, database_url) as http:
        http.headers["Authorization"] = "Bearer expired"
        pair = await sign_in(http)
        data_of(await refresh(http, pair["refresh_token"]))
        error_of(await http.post("/api/auth/logout"), 401, "INVALID_TOKEN")


async def test_c11_of_two_uses_at_once_one_wins(database_url: str) -> None:
    """C11."""
    server, _ = token_app()
    async with serving(server, database_url) as http:
        pair = await sign_in(http)
        answers = await asyncio.gather(*(refresh(http, pair["refresh_token"]) for _ in range(8)))
        winners = [answer for answer in answers if answer.status_code == 200]
        assert len(winners) == 1
        for answer in answers:
            if answer not in winners:
                error_of(answer, 401, "INVALID_REFRESH_TOKEN")
        data_of(await refresh(http, data_of(winners[0])["refresh_token"]))


async def test_c11_a_token_used_again_after_the_grace_ends_its_family(database_url: str) -> None:
    """C11: and with a revoker, its access tokens."""
    revoker, clock = PlainRevoker(), FakeClock(NOW)
    server, _ = token_app(revoker=revoker)
    async with serving(server, database_url, clock) as http:
        first, other = await sign_in(http), await sign_in(http)
        second = data_of(await refresh(http, first["refresh_token"]))
        clock.advance(timedelta(seconds=10))
        error_of(await refresh(http, first["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        data_of(await http.get("/api/me", headers=bearing(second)))
        clock.advance(timedelta(seconds=1))
        error_of(await refresh(http, first["refresh_token"]), 401, "REFRESH_TOKEN_REUSED")
        error_of(await refresh(http, second["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        for pair in (first, second):
            error_of(await http.get("/api/me", headers=bearing(pair)), 401, "TOKEN_REVOKED")
        data_of(await refresh(http, other["refresh_token"]))


async def test_uses_beside_the_end_of_a_family_leave_nothing_alive(database_url: str) -> None:
    """A use that is under way while its family ends must not give a token that works."""
    server, _ = token_app(reuse_grace=0)
    clock = FakeClock(NOW)
    async with serving(server, database_url, clock) as http:
        for _ in range(10):
            first = await sign_in(http)
            second = data_of(await refresh(http, first["refresh_token"]))
            clock.advance(timedelta(minutes=2))
            reused, used = await asyncio.gather(
                refresh(http, first["refresh_token"]), refresh(http, second["refresh_token"])
            )
            error_of(reused, 401, "REFRESH_TOKEN_REUSED")
            if used.status_code == 200:
                third = data_of(used)["refresh_token"]
                assert (await refresh(http, third)).status_code == 401


async def test_unknown_and_expired_tokens(database_url: str) -> None:
    clock = FakeClock(NOW)
    server, _ = token_app(refresh_ttl=60)
    async with serving(server, database_url, clock) as http:
        pair = await sign_in(http)
        for text in ("", "x", "x" * 5000, pair["access_token"], "é\x01"):
            error_of(await refresh(http, text), 401, "INVALID_REFRESH_TOKEN")
        for body in (None, 7, ["x"]):
            error_of(await refresh(http, body), 422, "VALIDATION_FAILED")
        clock.advance(timedelta(seconds=60))
        error_of(await refresh(http, pair["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")


async def test_c11_no_token_is_in_the_database_or_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C11."""
    server, _ = token_app(revoker=PlainRevoker())
    with caplog.at_level(logging.DEBUG):
        async with serving(server, database_url) as http:
            pair = await sign_in(http)
            new = data_of(await refresh(http, pair["refresh_token"]))
            await refresh(http, pair["refresh_token"])
            await http.post("/api/auth/logout", headers=bearing(new))
            content = await stored_bytes(database_url)

    assert b"ada@example.com" in content
    for text in (pair["refresh_token"], new["refresh_token"], pair["access_token"], PASSWORD):
        assert text.encode() not in content
        assert text not in caplog.text


async def test_logout_ends_the_session_and_no_other(database_url: str) -> None:
    revoker = PlainRevoker()
    server, _ = token_app(revoker=revoker)
    async with serving(server, database_url) as http:
        here, there = await sign_in(http), await sign_in(http)
        assert (await http.post("/api/auth/logout", headers=bearing(here))).status_code == 204
        error_of(await http.get("/api/me", headers=bearing(here)), 401, "TOKEN_REVOKED")
        error_of(await refresh(http, here["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        data_of(await http.get("/api/me", headers=bearing(there)))
        data_of(await refresh(http, there["refresh_token"]))
        error_of(await http.post("/api/auth/logout"), 401, "UNAUTHORIZED")


async def test_c9_log_out_everywhere_and_in_again(database_url: str) -> None:
    """C9 in one process: within one second, by fractions."""
    revoker, clock = PlainRevoker(), FakeClock(NOW)
    server, _ = token_app(revoker=revoker)
    async with serving(server, database_url, clock) as http:
        pairs = [await sign_in(http) for _ in range(3)]
        others = await sign_in(http, "eve@example.com")
        clock.advance(timedelta(milliseconds=1))
        assert (await http.post("/api/auth/logout-all", headers=bearing(pairs[0]))).status_code == 204
        new = await sign_in(http)
        for pair in pairs:
            error_of(await http.get("/api/me", headers=bearing(pair)), 401, "TOKEN_REVOKED")
            error_of(await refresh(http, pair["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        for pair in (new, others):
            data_of(await http.get("/api/me", headers=bearing(pair)))
            data_of(await refresh(http, pair["refresh_token"]))


async def test_logout_while_the_revoker_is_away_is_503_and_ends_the_family(database_url: str) -> None:
    revoker = PlainRevoker()
    tokens = auth.Tokens(SECRET, issuer="us", revoker=revoker)
    server = app(tokens.bearer(revoker=None))
    tokens.mount(server, login=login)
    async with serving(server, database_url) as http:
        pair = await sign_in(http)
        revoker.is_away = True
        answer = await http.post("/api/auth/logout", headers=bearing(pair))
        error_of(answer, 503, "REVOCATION_UNAVAILABLE")
        error_of(await refresh(http, pair["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")


async def test_refresh_tokens_in_a_cookie(database_url: str) -> None:
    """A22."""
    tokens = auth.Tokens(SECRET, issuer="us", refresh="cookie")
    server = app(tokens.bearer(), auth.csrf())
    tokens.mount(server, login=login)
    async with serving(server, database_url) as http:
        answer = await http.post("/api/auth/login", json={"email": "a", "password": PASSWORD})
        assert "refresh_token" not in data_of(answer)
        [line] = answer.headers.get_list("set-cookie")
        pair, _, attributes = line.partition("; ")
        assert attributes == ("Path=/api/auth/refresh; Max-Age=2592000; Secure; HttpOnly; SameSite=Strict")
        http.cookies.clear()
        csrf = "0123456789abcdef0123"
        error_of(await http.post("/api/auth/refresh", headers={"Cookie": pair}), 403, "CSRF_TOKEN_MISSING")
        headers = {"Cookie": f"{pair}; csrf_token={csrf}", "X-CSRF-Token": csrf}
        new = await http.post("/api/auth/refresh", headers=headers)
        data_of(new)
        http.cookies.clear()
        twice = {**headers, "Cookie": f"{headers['Cookie']}; refresh_token=x"}
        error_of(await http.post("/api/auth/refresh", headers=twice), 401, "INVALID_REFRESH_TOKEN")
        out = await http.post("/api/auth/logout", headers=bearing(data_of(new)))
        assert out.headers["set-cookie"].startswith("refresh_token=; Path=/api/auth/refresh; Max-Age=0;")
        local = await http.post("http://localhost/api/auth/login", json={"email": "a", "password": PASSWORD})
        assert "Secure" not in local.headers["set-cookie"]


def test_a_refresh_cookie_needs_csrf() -> None:
    tokens = auth.Tokens(SECRET, issuer="us", refresh="cookie")
    server = app(tokens.bearer())
    tokens.mount(server, login=login)

    with pytest.raises(DeclarationError, match=r"auth\.csrf must cover POST /auth/refresh"):
        server.seal()


@dataclass
class PinRequest:
    card: str
    pin: int


async def test_a_login_of_another_form_in_plain_code(database_url: str) -> None:
    tokens = auth.Tokens(private_key=EC_KEY, key_id="k1", issuer="us", access_ttl=timedelta(minutes=1))
    server = app(tokens.bearer(leeway=5))

    def by_card(ctx: Context, request: PinRequest) -> AuthInfo | None:
        if request.pin == 666:
            raise OSError("no card reader")
        return AuthInfo(user_id=request.card) if request.pin == 1234 else None

    tokens.mount(server, login=by_card, path="/session", request=PinRequest, account="card")
    async with serving(server, database_url) as http:
        pair = data_of(await http.post("/api/session/login", json={"card": "c7", "pin": 1234}))
        assert pair["expires_in"] == 60
        assert pyjwt.get_unverified_header(pair["access_token"]) == {
            "alg": "ES256",
            "typ": "JWT",
            "kid": "k1",
        }
        assert data_of(await http.get("/api/me", headers=bearing(pair)))["user_id"] == "c7"
        error_of(await http.post("/api/session/login", json={"card": "c7", "pin": 666}), 500, "INTERNAL")


async def test_issuing_from_code(database_url: str) -> None:
    server, tokens = token_app()
    async with serving(server, database_url) as http:
        pair = await tokens.issue(AuthInfo(user_id="cli"), {"plan": "pro"})
        assert pair.access_token not in repr(pair)
        assert pair.refresh_token not in repr(pair)
        headers = {"Authorization": f"{pair.token_type} {pair.access_token}"}
        assert data_of(await http.get("/api/me", headers=headers))["claims"]["plan"] == "pro"
        new = data_of(await refresh(http, pair.refresh_token))
        assert data_of(await http.get("/api/me", headers=bearing(new)))["claims"]["plan"] == "pro"
        with pytest.raises(ValueError, match="set by the issuer"):
            await tokens.issue(AuthInfo(user_id="cli"), {"sub": "root"})
        with pytest.raises(ValueError, match="without a user_id"):
            await tokens.issue(AuthInfo())
        with pytest.raises(ValueError, match="no spaces"):
            await tokens.issue(AuthInfo(user_id="x", scopes=["a b"]))


async def test_expired_rows_are_swept(database_url: str) -> None:
    clock = FakeClock(NOW)
    server, tokens = token_app(refresh_ttl=60)
    async with client(server, database=database_url, clock=clock, background=True):
        [sweeper] = [one for one in server._lifecycle.running if isinstance(one, ExpiredRows)]
        for _ in range(3):
            await tokens.issue(AuthInfo(user_id="a"))
        clock.advance(timedelta(minutes=2))
        await tokens.issue(AuthInfo(user_id="a"))
        await sweeper.tick()
        assert await server.db(RefreshToken).count() == 1


@asynccontextmanager
async def sealed(server: Server) -> AsyncIterator[str]:
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    yield str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give either secret or private_key"),
        ({"secret": "", "issuer": "us"}, "the secret is empty"),
        ({"private_key": "x"}, "no private key in PEM form"),
        ({"private_key": EC_KEY.public_key()}, "private_key is not a private key"),
        ({"secret": SECRET, "access_ttl": 0}, "durations above zero"),
        ({"secret": SECRET, "reuse_grace": -1}, "reuse_grace"),
        ({"secret": SECRET, "refresh": "header"}, 'is neither "body" nor "cookie"'),
        ({"secret": SECRET, "issuer": ""}, "issuer is a text"),
    ],
)
async def test_a_wrong_argument_stops_the_start(options: dict[str, Any], text: str) -> None:
    tokens = auth.Tokens(**{"issuer": "us", **options})
    server = app()
    tokens.mount(server, login=login)
    async with sealed(server) as said:
        assert text in said
    async with sealed(app(tokens.bearer())) as said:
        assert text in said


async def test_wrong_arguments_of_mount_stop_the_start() -> None:
    tokens, server = auth.Tokens(SECRET, issuer="us"), app()
    tokens.mount(
        server,
        login=lambda ctx: None,  # type: ignore[arg-type, misc]
        request=PinRequest,
        limits=auth.LoginLimits("0/60", "many", backend=object()),  # type: ignore[arg-type]
    )
    async with sealed(server) as said:
        for text in ("login is called with", "no field 'email'", "per_address", "per_account", "no take()"):
            assert said.count(text) == 1
    with pytest.raises(DeclarationError, match="mounted already"):
        tokens.mount(server)
    with pytest.raises(DeclarationError, match="mount it on the server first"):
        await auth.Tokens(SECRET, issuer="us").issue(AuthInfo(user_id="x"))


def test_no_model_refers_to_the_table_of_tokens() -> None:
    server, _ = token_app()

    class Device(Model):
        refresh_token_id: str = field(relation="RefreshToken")

    server.register(Device)
    with pytest.raises(DeclarationError, match="no model refers to RefreshToken"):
        server.seal()


@pytest.mark.parametrize("revoker", [None, auth.SqlRevoker], ids=["without a revoker", "with one"])
async def test_a_deleted_user_gets_no_new_pair(database_url: str, revoker: Any) -> None:
    users = {"ada@example.com", "bob@example.com"}

    def verify(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
        if info.user_id not in users:
            raise ValueError("there is no such user")

    tokens = auth.Tokens(SECRET, issuer="us", revoker=revoker and revoker())
    server = app(tokens.bearer(verify=verify))
    tokens.mount(server, login=login)
    async with serving(server, database_url) as http:
        first = await sign_in(http)
        second = data_of(await refresh(http, first["refresh_token"]))
        other = await sign_in(http, "bob@example.com")
        users.remove("ada@example.com")

        error_of(await refresh(http, second["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        users.add("ada@example.com")  # somebody else of the same name begins a session of their own
        error_of(await refresh(http, second["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        data_of(await refresh(http, other["refresh_token"]))
        rows = await server.db(RefreshToken).list({"actor": "ada@example.com"})
        assert all(row.ended_at is not None or row.used_at is not None for row in rows)


async def test_a_new_pair_needs_the_consent_of_one_authenticator_only(database_url: str) -> None:
    def refuse(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
        raise ValueError("these routes are for robots")

    def accept(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
        assert "member" in info.roles

    tokens = auth.Tokens(SECRET, issuer="us")
    server = app()
    server.pipeline.auth.register(tokens.bearer(verify=refuse), models=[Note])
    server.pipeline.auth.register(tokens.bearer(verify=accept), models=[Post])
    tokens.mount(server, login=login)
    async with serving(server, database_url) as http:
        data_of(await refresh(http, (await sign_in(http))["refresh_token"]))


async def test_code_ends_every_session_of_a_user(database_url: str) -> None:
    tokens = auth.Tokens(SECRET, issuer="us", revoker=auth.SqlRevoker())
    server = app(tokens.bearer())
    tokens.mount(server, login=login)
    clock = FakeClock(NOW)
    async with serving(server, database_url, clock) as http:
        sessions = [await sign_in(http) for _ in range(2)]
        clock.advance(timedelta(seconds=1))
        await tokens.end_all(AuthInfo(user_id="ada@example.com", tenant_id="acme"))
        for pair in sessions:
            error_of(await refresh(http, pair["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
            error_of(await http.get("/api/posts", headers=bearing(pair)), 401, "TOKEN_REVOKED")
