"""The revokers that come with the package: C10 with a Redis that is away, A27."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from maniflex import DeclarationError
from maniflex.middleware import auth, stores
from maniflex.testing import FakeClock, client
from tests.catalogue.auth.kit import NOW, SECRET, app, bearer, serving
from tests.catalogue.stores.places import forget
from tests.kit.http import data_of, error_of
from tests.kit.processes import free_port
from tests.kit.statements import Counting


@pytest.fixture(params=["sql", "memory", "redis"])
async def revoker(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "redis":
        form = auth.RedisRevoker(request.getfixturevalue("redis_url"), f"test_{uuid4().hex}")
        yield form
        await forget(form)
    else:
        yield auth.SqlRevoker() if request.param == "sql" else auth.MemoryRevoker()


async def test_signing_out_with_each_revoker(revoker: Any, database_url: str) -> None:
    """A24, A28: by token and by user, until the deadline."""
    clock = FakeClock(NOW)
    server = app(auth.jwt(SECRET, revoker=revoker))
    auth.mount_logout(server, revoker, keep=timedelta(hours=2))
    async with serving(server, database_url, clock) as http:
        one, two, other = bearer(jti="one"), bearer(jti="two"), bearer(jti="three", sub="eve")
        assert (await http.post("/api/logout", headers=one)).status_code == 204
        error_of(await http.get("/api/me", headers=one), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=two))
        clock.advance(timedelta(seconds=1))
        assert (await http.post("/api/logout-all", headers=two)).status_code == 204
        error_of(await http.get("/api/me", headers=two), 401, "TOKEN_REVOKED")
        data_of(await http.get("/api/me", headers=other))
        data_of(await http.get("/api/me", headers=bearer(jti="four", iat=clock.now().timestamp())))


async def test_logout_brings_the_tables_of_its_revoker(database_url: str) -> None:
    server = app(auth.jwt(SECRET))
    auth.mount_logout(server, auth.SqlRevoker(), keep=60)
    async with serving(server, database_url) as http:
        assert (await http.post("/api/logout", headers=bearer(jti="one"))).status_code == 204
        assert len(await server.raw_query("SELECT id FROM revoked_token")) == 1


async def test_both_questions_are_one_statement(database_url: str) -> None:
    """A27: a request whose token was seen before asks the database once."""
    adapter = Counting(database_url)
    server = app(auth.jwt(SECRET, revoker=auth.SqlRevoker()))
    async with client(server, database=adapter, clock=FakeClock(NOW)) as http:  # type: ignore[arg-type]  # an adapter
        for _ in range(2):
            adapter.statements.clear()
            data_of(await http.get("/api/me", headers=bearer(jti="one")))
            [statement] = adapter.statements
            assert "revoked_token" in statement
            assert "revoked_user" in statement


async def test_c10_a_redis_that_is_away_is_503(database_url: str) -> None:
    """C10: nobody listens on the port; a bad token is 401 all the same."""
    port = free_port()
    revoker = auth.RedisRevoker(f"redis://127.0.0.1:{port}")
    server = app(auth.jwt(SECRET, revoker=revoker))
    auth.mount_logout(server, revoker, keep=60)
    async with serving(server, database_url) as http:
        for call in (
            http.get("/api/me", headers=bearer(jti="one")),
            http.post("/api/logout", headers=bearer(jti="one")),
        ):
            answer = await call
            assert error_of(answer, 503, "REVOCATION_UNAVAILABLE")["retryable"] is True
            assert int(answer.headers["retry-after"]) >= 1
            assert str(port) not in answer.text
        error_of(await http.get("/api/me", headers=bearer("x")), 401, "INVALID_TOKEN")
        error_of(await http.get("/api/me"), 401, "UNAUTHORIZED")


async def test_a_revoker_of_one_process_says_so_at_the_start(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A27."""
    with caplog.at_level(logging.WARNING):
        async with serving(app(auth.jwt(SECRET, revoker=auth.MemoryRevoker())), database_url):
            pass
    assert "other processes do not see what is revoked here" in caplog.text


@pytest.mark.parametrize(
    ("revoker", "text"),
    [
        (object(), r"has no revoke_token\(\); use auth\.SqlRevoker\(\)"),
        (auth.RedisRevoker("redis://localhost", "a b"), "is not made of plain names"),
        (auth.RedisRevoker("localhost"), "an address is written redis://"),
    ],
)
def test_what_is_no_revoker_stops_the_start(revoker: Any, text: str) -> None:
    tokens = auth.Tokens(SECRET, issuer="us", revoker=revoker)
    mounted, logout = app(), app(auth.jwt(SECRET))
    tokens.mount(mounted)
    auth.mount_logout(logout, revoker, keep=60)
    for server in (app(auth.jwt(SECRET, revoker=revoker)), app(tokens.bearer()), mounted, logout):
        with pytest.raises(DeclarationError, match=text):
            server.seal()


def test_there_is_one_protocol() -> None:
    assert auth.Revoker is stores.Revoker
    for form in (auth.SqlRevoker(), auth.MemoryRevoker(), auth.RedisRevoker()):
        assert isinstance(form, auth.Revoker)
