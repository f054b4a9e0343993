"""C9, C11 and C13 with two server processes on one database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.http import data_of, error_of
from tests.kit.processes import Served, serve_process

APP = """
import os

from maniflex import AuthInfo, Context, Server
from maniflex.middleware import auth

server = Server(os.environ["TEST_DATABASE"])
tokens = auth.Tokens("a secret of at least thirty-two bytes", issuer="us", revoker=auth.SqlRevoker())
server.pipeline.auth.register(tokens.bearer())


async def login(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    return None if credentials.password == "wrong" else AuthInfo(user_id=credentials.email)


address, account = os.environ["TEST_LIMITS"].split()
limits = auth.LoginLimits(address, account, per_pair=account)
tokens.mount(server, login=login, limits=limits)


@server.action("GET", "/me")
async def me(ctx: Context) -> str:
    return ctx.require_auth().user_id
"""


@contextmanager
def serve_two(
    directory: Path, database_url: str, limits: str = "100000/60 100000/60"
) -> Iterator[tuple[Served, Served]]:
    (directory / "app.py").write_text(APP)
    environment = {"TEST_DATABASE": database_url, "TEST_LIMITS": limits}
    with serve_process(directory, **environment) as one, serve_process(directory, **environment) as other:
        yield one, other


@pytest.fixture
def two(tmp_path: Path, database_url: str) -> Iterator[tuple[Served, Served]]:
    with serve_two(tmp_path, database_url) as servers:
        yield servers


def sign_in(http: httpx.Client, server: Served) -> dict[str, Any]:
    body = {"email": "ada", "password": "x"}
    data: dict[str, Any] = data_of(http.post(f"{server.url}/api/auth/login", json=body))
    return data


def bearing(pair: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {pair['access_token']}"}


def test_c9_signing_out_on_one_process_counts_on_the_other_at_once(two: tuple[Served, Served]) -> None:
    """C9 (2p)."""
    one, other = two
    with httpx.Client() as http:
        pair, second = sign_in(http, one), sign_in(http, other)
        for server in two:
            assert data_of(http.get(f"{server.url}/api/me", headers=bearing(pair))) == "ada"
        assert http.post(f"{one.url}/api/auth/logout", headers=bearing(pair)).status_code == 204
        error_of(http.get(f"{other.url}/api/me", headers=bearing(pair)), 401, "TOKEN_REVOKED")
        body = {"refresh_token": pair["refresh_token"]}
        error_of(http.post(f"{other.url}/api/auth/refresh", json=body), 401, "INVALID_REFRESH_TOKEN")

        assert http.post(f"{one.url}/api/auth/logout-all", headers=bearing(second)).status_code == 204
        new = sign_in(http, other)
        for server in two:
            error_of(http.get(f"{server.url}/api/me", headers=bearing(second)), 401, "TOKEN_REVOKED")
            assert data_of(http.get(f"{server.url}/api/me", headers=bearing(new))) == "ada"


def test_c11_of_uses_on_both_processes_one_wins(two: tuple[Served, Served]) -> None:
    """C11 (2p): twenty times, eight uses at once."""
    with httpx.Client() as http:
        for _ in range(20):
            token = sign_in(http, two[0])["refresh_token"]
            answers = asyncio.run(use_at_once(two, token))
            assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
            for answer in answers:
                if answer.status_code == 401:
                    error_of(answer, 401, "INVALID_REFRESH_TOKEN")


async def use_at_once(two: tuple[Served, Served], token: str) -> list[httpx.Response]:
    body = {"refresh_token": token}
    async with httpx.AsyncClient() as http:
        calls = [http.post(f"{server.url}/api/auth/refresh", json=body) for server in two * 4]
        return list(await asyncio.gather(*calls))


def attempt(server: Served, email: str) -> httpx.Response:
    body = {"email": email, "password": "wrong"}
    return httpx.post(f"{server.url}/api/auth/login", json=body, timeout=20)


def test_c13_both_processes_count_the_attempts_of_an_account(tmp_path: Path, database_url: str) -> None:
    """C13 (2p): two hundred guesses for an account in all its spellings, and restarts give none back."""
    spellings = ("ada@example.com", " Ada@Example.com", "ADA@EXAMPLE.COM ")
    began = time.monotonic()
    with serve_two(tmp_path, database_url, "100000/60 10/900") as two, ThreadPoolExecutor(8) as pool:
        calls = [(two[n % 2], spellings[n % 3]) for n in range(200)]
        answers = list(pool.map(attempt, *zip(*calls, strict=True)))
        most = 10 + int((time.monotonic() - began) // 90)
        wrong = [answer for answer in answers if answer.status_code == 401]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(wrong) + len(refused) == 200
        assert 10 <= len(wrong) <= most
        assert len({answer.text for answer in wrong}) == len({answer.text for answer in refused}) == 1
        assert all(1 <= int(answer.headers["retry-after"]) <= 90 for answer in refused)
        error_of(attempt(two[0], "bob@example.com"), 401, "INVALID_CREDENTIALS")
    with serve_two(tmp_path, database_url, "100000/60 10/900") as two:
        again = [attempt(server, spellings[0]).status_code for server in two * 2]
        assert again.count(401) <= int((time.monotonic() - began) // 90)


def test_c13_both_processes_count_the_attempts_from_an_address(tmp_path: Path, database_url: str) -> None:
    """C13 (2p): a password tried on many accounts."""
    with serve_two(tmp_path, database_url, "20/60 10/900") as two, ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        accounts = [f"{n}@example.com" for n in range(60)]
        statuses = [answer.status_code for answer in pool.map(attempt, two * 30, accounts)]
        most = 20 + int((time.monotonic() - began) // 3)
        assert 20 <= statuses.count(401) <= most
        assert statuses.count(429) == 60 - statuses.count(401)
