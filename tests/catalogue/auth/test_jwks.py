"""`auth.jwks` against a real key server: C8."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import timedelta
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from maniflex import DeclarationError
from maniflex.middleware import auth
from maniflex.middleware.auth.bearer import Bearer
from maniflex.testing import FakeClock
from tests.catalogue.auth.key_server import key_server, published
from tests.catalogue.auth.kit import (
    EC_KEY,
    ED_KEY,
    NOW,
    RSA_KEY,
    SECRET,
    app,
    later,
    serving,
)
from tests.kit.http import data_of, error_of

SECOND_KEY = rsa.generate_private_key(65537, 2048)


def with_kid(key: Any, kid: Any, algorithm: str = "RS256", **claims: Any) -> dict[str, str]:
    headers = {} if kid is None else {"kid": kid}
    payload = {"sub": "ada", "exp": later(hours=20), "iss": "us", **claims}
    return {"Authorization": f"Bearer {pyjwt.encode(payload, key, algorithm, headers=headers)}"}


async def test_c8_rotated_keys_work_and_unknown_ids_fetch_once(database_url: str) -> None:
    """C8."""
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url, clock) as http:
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one")))
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one", x=1)))
            assert keys.fetches == 1

            keys.keys = [published(RSA_KEY, "one"), published(SECOND_KEY, "two")]
            data_of(await http.get("/api/me", headers=with_kid(SECOND_KEY, "two")))
            assert keys.fetches == 2

            for _ in range(1000):
                random = with_kid(SECRET, secrets.token_hex(8), "HS256")
                error_of(await http.get("/api/me", headers=random), 401, "INVALID_TOKEN")
            assert keys.fetches == 2

            clock.advance(timedelta(seconds=300))
            both = [http.get("/api/me", headers=with_kid(SECRET, str(n), "HS256")) for n in range(20)]
            assert {answer.status_code for answer in await asyncio.gather(*both)} == {401}
            assert keys.fetches == 3


async def test_c8_known_keys_work_while_the_key_server_is_away(database_url: str) -> None:
    """C8: also when they are older than `cache_ttl`."""
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        server = app(auth.jwks(keys.url, issuer="us"))
        async with serving(server, database_url, clock) as http:
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one")))
    async with serving(server, database_url, clock) as http:  # nobody listens at the address any more
        for number in range(5):
            clock.advance(timedelta(hours=2))
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one", n=number)))
        error_of(await http.get("/api/me", headers=with_kid(SECOND_KEY, "two")), 401, "INVALID_TOKEN")


async def test_a_remembered_token_dies_with_the_key_it_was_checked_by(sqlite_url: str) -> None:
    """No new token has to arrive: the first request after `cache_ttl` fetches the keys."""
    clock = FakeClock(NOW)
    options: tuple[Any, ...] = (
        {},
        {"revoker": auth.MemoryRevoker(clock=clock)},
        {"verify": lambda ctx, claims, info: None},
    )
    for more in options:
        with key_server(published(RSA_KEY, "one"), published(SECOND_KEY, "two")) as keys:
            server = app(auth.jwks(keys.url, issuer="us", cache_ttl=600, **more))
            async with serving(server, sqlite_url, clock) as http:
                old, new = with_kid(RSA_KEY, "one", jti="1"), with_kid(SECOND_KEY, "two", jti="2")
                for headers in (old, new):
                    data_of(await http.get("/api/me", headers=headers))
                keys.keys = [published(SECOND_KEY, "two")]
                clock.advance(timedelta(seconds=599))
                data_of(await http.get("/api/me", headers=old))
                assert keys.fetches == 1
                clock.advance(timedelta(seconds=1))
                error_of(await http.get("/api/me", headers=old), 401, "INVALID_TOKEN")
                data_of(await http.get("/api/me", headers=new))


async def test_a_key_set_that_is_empty_takes_all_keys_back(sqlite_url: str) -> None:
    """It is no failure of the address, while which the known keys go on counting."""
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        server = app(auth.jwks(keys.url, issuer="us", cache_ttl=600))
        async with serving(server, sqlite_url, clock) as http:
            old = with_kid(RSA_KEY, "one")
            data_of(await http.get("/api/me", headers=old))
            keys.keys = []
            clock.advance(timedelta(seconds=600))
            for headers in (old, with_kid(RSA_KEY, "one", jti="2")):
                error_of(await http.get("/api/me", headers=headers), 503, "JWKS_UNAVAILABLE")
            keys.keys = [published(SECOND_KEY, "two")]
            clock.advance(timedelta(seconds=60))
            data_of(await http.get("/api/me", headers=with_kid(SECOND_KEY, "two")))
            error_of(await http.get("/api/me", headers=old), 401, "INVALID_TOKEN")


async def test_a_token_that_is_checked_while_its_key_is_taken_back_is_not_remembered() -> None:
    bearer = Bearer(SECRET)
    memory = bearer._memory

    async def claims(ctx: Any, token: bytes) -> dict[str, Any]:
        memory.clear()  # what a fetch does that finds the key gone
        return {"sub": "ada", "exp": later(hours=1)}

    bearer._claims = claims  # type: ignore[method-assign]
    await bearer._check(None, b"token")  # type: ignore[arg-type]
    assert len(memory) == 0


async def test_a_silent_key_server_keeps_known_tokens_waiting_once(sqlite_url: str) -> None:
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        async with serving(app(auth.jwks(keys.url, issuer="us")), sqlite_url, clock) as http:
            known = with_kid(RSA_KEY, "one")
            data_of(await http.get("/api/me", headers=known))
            clock.advance(timedelta(hours=2))
            keys.gate.clear()
            try:
                data_of(await asyncio.wait_for(http.get("/api/me", headers=known), 5))
                data_of(await asyncio.wait_for(http.get("/api/me", headers=known), 0.5))
            finally:
                keys.gate.set()


async def test_no_key_at_all_is_503_and_soon_tried_again(database_url: str) -> None:
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        keys.status = 404
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url, clock) as http:
            for _ in range(3):
                answer = await http.get("/api/me", headers=with_kid(RSA_KEY, "one"))
                assert error_of(answer, 503, "JWKS_UNAVAILABLE")["retryable"] is True
                assert int(answer.headers["retry-after"]) >= 1
            assert keys.fetches == 1
            keys.status = 200
            clock.advance(timedelta(seconds=5))
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one")))


async def test_a_request_with_a_known_key_does_not_wait_for_a_fetch(database_url: str) -> None:
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one")) as keys:
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url, clock) as http:
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "one")))
            keys.gate.clear()
            clock.advance(timedelta(hours=2))
            waiting = asyncio.create_task(http.get("/api/me", headers=with_kid(SECOND_KEY, "two")))
            known = await http.get("/api/me", headers=with_kid(RSA_KEY, "one", x=1))
            assert (known.status_code, waiting.done()) == (200, False)
            keys.gate.set()
            error_of(await waiting, 401, "INVALID_TOKEN")
            assert keys.fetches == 2


async def test_a_key_that_is_gone_takes_its_tokens_along(database_url: str) -> None:
    clock = FakeClock(NOW)
    with key_server(published(RSA_KEY, "one"), published(SECOND_KEY, "two")) as keys:
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url, clock) as http:
            old = with_kid(RSA_KEY, "one")
            data_of(await http.get("/api/me", headers=old))
            keys.keys = [published(SECOND_KEY, "two")]
            error_of(await http.get("/api/me", headers=with_kid(RSA_KEY, "three")), 401, "INVALID_TOKEN")
            error_of(await http.get("/api/me", headers=old), 401, "INVALID_TOKEN")


async def test_only_public_signing_keys_are_used(database_url: str) -> None:
    symmetric = {
        "kty": "oct",
        "k": "YS1zZWNyZXQtb2YtbW9yZS10aGFuLTMyLWJ5dGVzLWxvbmc",
        "kid": "s",
        "use": "sig",
    }
    small = rsa.generate_private_key(65537, 1024)
    keys_listed = [
        symmetric,
        published(SECOND_KEY, "enc", use="enc"),
        published(small, "small"),
        published(SECOND_KEY, "ops", key_ops=["encrypt"]),
        published(SECOND_KEY, "only512", alg="RS512"),
        published(SECOND_KEY, "hs", alg="HS256"),
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kty": 7},
        "nothing",
        published(EC_KEY, "ec", "EC"),
        published(ED_KEY, "ed", "OKP"),
        published(RSA_KEY, "one"),
    ]
    with key_server(*keys_listed) as keys:  # type: ignore[arg-type]
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url) as http:
            good = [(RSA_KEY, "one", "PS256"), (EC_KEY, "ec", "ES256"), (ED_KEY, "ed", "EdDSA")]
            for key, kid, algorithm in [*good, (SECOND_KEY, "only512", "RS512")]:
                data_of(await http.get("/api/me", headers=with_kid(key, kid, algorithm)))
            bad: list[tuple[Any, Any, str]] = [
                (b"a-secret-of-more-than-32-bytes-long", "s", "HS256"),
                (SECOND_KEY, "enc", "RS256"),
                (small, "small", "RS256"),
                (SECOND_KEY, "ops", "RS256"),
                (SECOND_KEY, "only512", "RS256"),
                (SECOND_KEY, "hs", "RS256"),
                (RSA_KEY, None, "RS256"),
                (RSA_KEY, "ec", "RS256"),
            ]
            for key, kid, algorithm in bad:
                answer = await http.get("/api/me", headers=with_kid(key, kid, algorithm))
                error_of(answer, 401, "INVALID_TOKEN")


async def test_a_token_without_an_id_is_checked_with_the_only_key(database_url: str) -> None:
    with key_server(published(RSA_KEY, "one")) as keys:
        async with serving(app(auth.jwks(keys.url, issuer="us")), database_url) as http:
            data_of(await http.get("/api/me", headers=with_kid(RSA_KEY, None)))


@pytest.mark.parametrize(
    "lie",
    [
        {"status": 302, "headers": {"Location": "/elsewhere"}},
        {"body": b"x" * (1024 * 1024 + 1)},
        {"body": b"[]"},
        {"body": b'{"keys": {}}'},
        {"body": b'{"keys": []}'},
        {"body": b"[" * 100_000},
    ],
)
async def test_what_is_no_key_set_is_not_taken_for_one(lie: dict[str, Any], sqlite_url: str) -> None:
    with key_server(published(RSA_KEY, "one")) as keys:
        for name, value in lie.items():
            setattr(keys, name, value)
        async with serving(app(auth.jwks(keys.url, issuer="us")), sqlite_url) as http:
            answer = await http.get("/api/me", headers=with_kid(RSA_KEY, "one"))
            error_of(answer, 503, "JWKS_UNAVAILABLE")
        assert keys.fetches == 1


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("http://example.com/keys", {}, "url must be https"),
        ("ftp://127.0.0.1/keys", {}, "url is written https"),
        ("file:///etc/passwd", {}, "url is written https"),
        ("https://[", {}, "url is no address"),
        ("https://example.com", {"cache_ttl": 0}, "durations above zero"),
        ("https://example.com", {"algorithms": ["HS256"]}, "'HS256' is no algorithm of a published key"),
    ],
)
def test_a_wrong_argument_stops_the_start(url: str, options: Any, text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        app(auth.jwks(url, issuer="us", **options)).seal()

    assert text in str(caught.value)


def test_without_issuer_and_audience_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        app(auth.jwks("https://example.com/keys")).seal()

    assert "neither issuer nor audience" in caplog.text
