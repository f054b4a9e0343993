"""Revoked tokens: C10, and signing out with tokens of another issuer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from maniflex import Context, DeclarationError, Next
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, app, bearer, later, serving
from tests.catalogue.auth.revoker import PlainRevoker
from tests.kit.http import data_of, error_of


async def test_a_revoked_token_stops_with_its_next_request(database_url: str) -> None:
    """A24."""
    revoker = PlainRevoker()
    async with serving(app(auth.jwt(SECRET, revoker=revoker)), database_url) as http:
        data_of(await http.get("/api/me", headers=bearer(jti="one")))
        await revoker.revoke_token("one", NOW + timedelta(hours=1))
        error_of(await http.get("/api/me", headers=bearer(jti="one")), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=bearer(jti="two")))
        error_of(await http.get("/api/me", headers=bearer()), 401, "TOKEN_NOT_REVOCABLE")


async def test_tokens_from_before_a_cutoff_are_revoked(database_url: str) -> None:
    revoker = PlainRevoker()
    await revoker.revoke_user("ada", NOW - timedelta(minutes=1), NOW + timedelta(hours=1))
    async with serving(app(auth.jwt(SECRET, revoker=revoker)), database_url) as http:
        old = bearer(jti="a", iat=later(minutes=-1, microseconds=-1))
        error_of(await http.get("/api/me", headers=old), 401, "TOKEN_REVOKED")
        error_of(await http.get("/api/me", headers=bearer(jti="b", iat=None)), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=bearer(jti="c", iat=later(minutes=-1))))
        data_of(await http.get("/api/me", headers=bearer(jti="d", iat=None, sub="eve")))


async def test_c10_a_revoker_that_is_away_is_503(database_url: str) -> None:
    """C10, A25: a bad token is 401 all the same, because it is never asked about."""
    revoker = PlainRevoker()
    async with serving(app(auth.jwt(SECRET, revoker=revoker)), database_url) as http:
        data_of(await http.get("/api/me", headers=bearer(jti="one")))
        revoker.is_away = True
        for _ in range(2):
            answer = await http.get("/api/me", headers=bearer(jti="one"))
            assert error_of(answer, 503, "REVOCATION_UNAVAILABLE")["retryable"] is True
            assert int(answer.headers["retry-after"]) >= 1
            assert "10.1.2.3" not in answer.text
        asked = revoker.questions
        error_of(await http.get("/api/me", headers=bearer("x")), 401, "INVALID_TOKEN")
        expired = bearer(jti="one", exp=later(hours=-1))
        error_of(await http.get("/api/me", headers=expired), 401, "TOKEN_EXPIRED")
        assert revoker.questions == asked


async def test_mounted_logout(database_url: str) -> None:
    """A28."""
    revoker, clock = PlainRevoker(), FakeClock(NOW)
    server = app(auth.jwt(SECRET, revoker=revoker))
    auth.mount_logout(server, revoker, keep=timedelta(hours=2))
    async with serving(server, database_url, clock) as http:
        one, two = bearer(jti="one"), bearer(jti="two")
        assert (await http.post("/api/logout", headers=one)).status_code == 204
        error_of(await http.get("/api/me", headers=one), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=two))
        assert revoker.tokens["one"] == NOW + timedelta(hours=1)
        clock.advance(timedelta(seconds=1))
        assert (await http.post("/api/logout-all", headers=two)).status_code == 204
        error_of(await http.get("/api/me", headers=two), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=bearer(jti="three", iat=clock.now().timestamp())))
        error_of(await http.post("/api/logout"), 401, "UNAUTHORIZED")


async def test_an_identity_without_a_token_id_cannot_sign_out_alone(database_url: str) -> None:
    revoker = PlainRevoker()
    server = app(auth.jwt(SECRET))
    auth.mount_logout(server, revoker, keep=3600)
    async with serving(server, database_url) as http:
        error_of(await http.post("/api/logout", headers=bearer()), 401, "TOKEN_NOT_REVOCABLE")
        revoker.is_away = True
        error_of(await http.post("/api/logout", headers=bearer(jti="x")), 503, "REVOCATION_UNAVAILABLE")
        error_of(await http.post("/api/logout-all", headers=bearer()), 503, "REVOCATION_UNAVAILABLE")


def test_logout_without_an_authenticator_stops_the_start() -> None:
    server = app()
    auth.mount_logout(server, PlainRevoker(), keep=0)

    with pytest.raises(DeclarationError, match="keep is a duration above zero"):
        server.seal()
    server = app()
    server.pipeline.auth.register(auth.jwt(SECRET), operations="list")
    auth.mount_logout(server, PlainRevoker(), keep=60)
    with pytest.raises(DeclarationError, match="no authenticator covers actions"):
        server.seal()


def test_logout_trusts_middleware_of_the_application() -> None:
    server = app()

    @server.pipeline.auth.middleware()
    async def own(ctx: Context, next: Next) -> None:
        await next()

    auth.mount_logout(server, PlainRevoker(), keep=60)
    server.seal()


def test_the_plain_revoker_is_one() -> None:
    assert isinstance(PlainRevoker(), auth.Revoker)
