"""How often a login may be tried: C13, A20."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.errors import DatabaseError
from maniflex.middleware import auth, stores
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, app, serving
from tests.catalogue.auth.signing_in import PASSWORD, login, token_app
from tests.kit.http import data_of, error_of
from tests.kit.processes import free_port


async def test_c13_login_is_limited_by_account_and_address(database_url: str) -> None:
    """C13: 429 soon, for unknown accounts too, with one body; the limits come back with time."""
    clock = FakeClock(NOW)
    server, _ = token_app()
    async with serving(server, database_url, clock) as http:
        kinds: list[list[httpx.Response]] = []
        for email in ("Ada@example.com", "nobody@example.com"):
            body = {"email": email, "password": "wrong"}
            kinds.append([await http.post("/api/auth/login", json=body) for _ in range(200)])
            clock.advance(timedelta(minutes=1))
        for answers in kinds:
            assert [a.status_code for a in answers].count(401) == 10
            assert {a.status_code for a in answers[10:]} == {429}
        assert len({answer.text for answers in kinds for answer in answers}) == 2
        refused = kinds[0][-1]
        assert error_of(refused, 429, "RATE_LIMITED")["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1
        again = {"email": " ada@EXAMPLE.com ", "password": PASSWORD}
        data_of(await http.post("/api/auth/login", json=again))  # ten in fifteen minutes: one has come back
        error_of(await http.post("/api/auth/login", json=again), 429, "RATE_LIMITED")
        clock.advance(timedelta(seconds=90))
        data_of(await http.post("/api/auth/login", json=again))


async def test_many_accounts_from_one_address_are_limited(database_url: str) -> None:
    server, _ = token_app()
    async with serving(server, database_url) as http:
        forged = {"X-Forwarded-For": "1.2.3.4"}
        bodies = [{"email": f"{n}@example.com", "password": "wrong"} for n in range(25)]
        answers = [await http.post("/api/auth/login", json=body, headers=forged) for body in bodies]
        assert [answer.status_code for answer in answers] == [401] * 20 + [429] * 5


async def log_in_from(server: Server, address: str, password: str = PASSWORD) -> int:
    transport = httpx.ASGITransport(app=server, client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        body = {"email": "ada@example.com", "password": password}
        return (await http.post("/api/auth/login", json=body)).status_code


async def test_strangers_cannot_keep_an_owner_out(database_url: str) -> None:
    """What all networks may try for an account does not count where its owner has signed in before."""
    clock = FakeClock(NOW)
    server, _ = token_app()
    async with serving(server, database_url, clock):
        assert await log_in_from(server, "2001:db8::1") == 200
        tries = [await log_in_from(server, f"198.51.100.{n // 10}", "wrong") for n in range(110)]
        assert tries == [401] * 99 + [429] * 11
        assert await log_in_from(server, "203.0.113.9") == 429
        assert await log_in_from(server, "2001:db8::ffff") == 200  # another address of the same network
        own = [await log_in_from(server, "2001:db8::1", "wrong") for _ in range(10)]
        assert own == [401] * 8 + [429] * 2
        clock.advance(timedelta(hours=1))
        assert await log_in_from(server, "203.0.113.9") == 200


async def test_attempts_are_counted_elsewhere_on_request(database_url: str) -> None:
    """A20: in another place than the database; a place that is away refuses the login."""
    for backend, statuses in (
        (stores.MemoryRateLimit(), [401, 401, 429]),
        (stores.RedisRateLimit(f"redis://127.0.0.1:{free_port()}"), [503, 503, 503]),
    ):
        tokens, server = auth.Tokens(SECRET, issuer="us"), app()
        tokens.mount(server, login=login, limits=auth.LoginLimits("100/60", "2/60", backend=backend))
        async with serving(server, database_url) as http:
            body = {"email": "ada@example.com", "password": "wrong"}
            answers = [await http.post("/api/auth/login", json=body) for _ in range(3)]
            assert [answer.status_code for answer in answers] == statuses
            with pytest.raises(DatabaseError):  # there is no such table
                await server.raw_query("SELECT 1 FROM rate_limit")
    error_of(answers[0], 503, "RATE_LIMIT_UNAVAILABLE")


async def test_an_account_is_kept_as_a_digest(database_url: str) -> None:
    server, _ = token_app()
    async with serving(server, database_url) as http:
        await http.post("/api/auth/login", json={"email": "ada@example.com", "password": "wrong"})
        rows = await server.raw_query("SELECT * FROM rate_limit")
        assert len(rows) == 3
        assert "ada" not in str(rows)


class Account(Model):
    email: str = field(unique=True, filterable=True)
    password: str = field(writeonly=True)


async def test_c13_unknown_accounts_take_as_long_as_wrong_passwords(database_url: str) -> None:
    """C13: similar medians."""
    server = Server()
    server.register(Account)
    tokens = auth.Tokens(SECRET, issuer="us")

    async def check(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
        accounts = await ctx.db(Account).list({"email": credentials.email})
        stored = accounts[0].password if accounts else None
        if not await auth.verify_password(credentials.password, stored):
            return None
        return AuthInfo(user_id=accounts[0].id)

    tokens.mount(server, login=check, limits=auth.LoginLimits("1000/60", "1000/60"))
    async with serving(server, database_url) as http:
        await server.db(Account).create(email="ada", password=await auth.hash_password(PASSWORD))
        durations: dict[str, list[float]] = {"ada": [], "nobody": []}
        for _ in range(9):
            for email, times in durations.items():
                start = time.process_time()
                answer = await http.post("/api/auth/login", json={"email": email, "password": "wrong"})
                times.append(time.process_time() - start)
                error_of(answer, 401, "INVALID_CREDENTIALS")
        known, unknown = (statistics.median(times) for times in durations.values())
        assert 0.5 < known / unknown < 2
        data_of(await http.post("/api/auth/login", json={"email": "ada", "password": PASSWORD}))
