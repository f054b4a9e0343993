"""Passwords, tokens, keys and signing secrets are in the clear in no row, no log line and no other answer."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt as pyjwt
import pytest

from maniflex.config import sqlite_path
from tests.kit.http import data_of
from tests.kit.postgres import fetch_value
from tests.kit.processes import Served, serve_process
from tests.kit.stored_bytes import stored_bytes

SIGNING_SECRET = "signing-secret-of-at-least-32-bytes"
CSRF_SECRET = "csrf-secret-of-at-least-thirty-two-bytes"
FIXED_KEY = "fixed-key-of-an-old-script"
PASSWORD, WRONG_PASSWORD = "correct horse battery", "incorrect horse battery"
EMAIL = "ada@example.com"
OWN_TABLES = {"refresh_token", "api_key", "rate_limit", "revoked_token", "revoked_user", "cache_entry"}

APP = f"""
import os

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.config import Trace
from maniflex.middleware import auth, db


class Account(Model, export=True, aggregate=True):
    email: str = field(unique=True, filterable=True, sortable=True, max_length=60)
    password: str = field(writeonly=True, min_length=8, max_length=200)


class Note(Model):
    text: str


server = Server(
    os.environ["TEST_DATABASE"], log_level="DEBUG", trace=Trace(enabled=True, bodies=True, skips=True)
)
server.register(Account, Note)
tokens = auth.Tokens(
    {SIGNING_SECRET!r},
    issuer="us",
    refresh=os.environ["TEST_REFRESH"],
    reuse_grace=0,
    revoker=auth.SqlRevoker(),
)
keys = auth.ApiKeys()


def check(username: str, password: str) -> AuthInfo | None:
    return None


server.pipeline.auth.register(auth.allow_public_write(), models=[Account], operations="create")
server.pipeline.auth.register(auth.allow_anonymous(), models=[Note], operations="list")
server.pipeline.auth.register(tokens.bearer())
server.pipeline.auth.register(auth.api_keys(keys={{{FIXED_KEY!r}: AuthInfo(user_id="script")}}, store=keys))
server.pipeline.auth.register(auth.basic(check))
server.pipeline.auth.register(auth.csrf(secret={CSRF_SECRET!r}))
server.pipeline.db.register(db.rate_limit_field("email", 50, 60))
server.pipeline.db.register(db.cache_query(), models=[Account])


@server.pipeline.service.middleware(models=[Account], operations=["create", "update"])
async def hash_password(ctx: Context, next: Next) -> None:
    if ctx.field("password"):
        ctx.set_field("password", await auth.hash_password(ctx.field("password")))
    await next()


async def login(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    if credentials.email == "broken":
        raise RuntimeError("the directory is away")
    accounts = await ctx.unscoped().db(Account).list({{"email": credentials.email}})
    stored = accounts[0].password if accounts else None
    if not await auth.verify_password(credentials.password, stored):
        return None
    return AuthInfo(user_id=accounts[0].id, roles=["admin"])


tokens.mount(server, login=login)
keys.mount(server)


@server.action("GET", "/fail", middleware=[auth.require_auth()])
async def fail(ctx: Context) -> None:
    raise RuntimeError("on purpose")
"""


@dataclass
class Client:
    """A client that remembers every answer, and which one first showed each secret."""

    http: httpx.Client
    url: str
    answers: list[tuple[str, str]] = field(default_factory=list)
    shown_in: dict[str, int | None] = field(default_factory=dict)  # a secret, and the answer that gave it

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.note(self.http.request(method, f"{self.url}{path}", **options))

    def send_alone(self, path: str, headers: dict[str, str]) -> httpx.Response:
        """A GET with these headers and nothing that the client has otherwise."""
        return self.note(httpx.get(f"{self.url}{path}", headers=headers, timeout=30))

    def note(self, answer: httpx.Response) -> httpx.Response:
        what = f"{answer.request.method} {answer.request.url.path} {answer.status_code}"
        headers = "\n".join(f"{name}: {value}" for name, value in answer.headers.multi_items())
        self.answers.append((what, f"{headers}\n{answer.text}"))
        return answer

    def keep_secret(self, *secrets: str, shown: bool = False) -> None:
        """From now on these are secrets; `shown`: the last answer had the right to show them."""
        for secret in secrets:
            assert len(secret) >= 16
            self.shown_in[secret] = len(self.answers) - 1 if shown else None

    def sign_in(self, mode: str) -> str:
        answer = self.send("POST", "/api/auth/login", json={"email": EMAIL, "password": PASSWORD})
        return self.note_pair(answer, mode)

    def refresh(self, mode: str, token: str) -> httpx.Response:
        if mode == "body":
            return self.send("POST", "/api/auth/refresh", json={"refresh_token": token})
        headers = {"X-CSRF-Token": self.http.cookies["csrf_token"]}
        cookie = f"refresh_token={token}; csrf_token={headers['X-CSRF-Token']}"
        return self.send("POST", "/api/auth/refresh", headers={**headers, "Cookie": cookie})

    def note_pair(self, answer: httpx.Response, mode: str) -> str:
        """Keep the tokens of an answer secret, and use the access token; gives the refresh token."""
        data = data_of(answer)
        token: str = data["refresh_token"] if mode == "body" else answer.cookies["refresh_token"]
        self.keep_secret(data["access_token"], data["access_token"].split(".")[2], token, shown=True)
        self.http.headers["Authorization"] = f"Bearer {data['access_token']}"
        return token

    def note_key(self, answer: httpx.Response) -> str:
        key: str = data_of(answer, answer.status_code)["key"]
        self.keep_secret(key, key.split("_")[2], shown=True)
        return key


@pytest.mark.parametrize("mode", ["body", "cookie"])
def test_no_secret_is_in_the_clear_anywhere(mode: str, tmp_path: Path, database_url: str) -> None:
    """Issue 10, the secret matrix: rows of every table, the log at DEBUG, every answer, the description."""
    with serving_client(tmp_path, database_url, mode) as (client, served):
        use_everything(client, mode)
        rows, log = stored_rows(database_url), served.output
    leaks = [
        f"{secret[:9]}… in {place}"
        for secret, shown_in in client.shown_in.items()
        for form in forms_of(secret)
        for place, text in [
            ("a row", rows),
            ("the log", log),
            *((what, text) for number, (what, text) in enumerate(client.answers) if number != shown_in),
        ]
        if form in text
    ]
    assert leaks == []
    assert EMAIL in rows  # what is no secret is found, so a secret would be
    assert "$argon2id$" in rows
    assert "/api/auth/login" in log
    assert "on purpose" in log
    assert len(client.shown_in) > 20
    statuses = {int(what.split()[-1]) for what, _ in client.answers}
    assert statuses >= {200, 201, 204, 400, 401, 403, 404, 409, 422, 500}


@contextmanager
def serving_client(directory: Path, database_url: str, mode: str) -> Iterator[tuple[Client, Served]]:
    (directory / "app.py").write_text(APP)
    environment = {"TEST_DATABASE": database_url, "TEST_REFRESH": mode}
    with serve_process(directory, **environment) as served, httpx.Client(timeout=30) as http:
        client = Client(http, served.url)
        client.keep_secret(SIGNING_SECRET, CSRF_SECRET, FIXED_KEY, PASSWORD, WRONG_PASSWORD)
        yield client, served


def use_everything(client: Client, mode: str) -> None:
    make_account(client)
    use_tokens(client, mode)
    use_keys(client)
    read_everything(client)
    send_bad_credentials(client)
    client.send("POST", "/api/auth/logout-all")
    client.send("GET", "/api/notes")


def make_account(client: Client) -> None:
    account = {"email": EMAIL, "password": PASSWORD}
    assert client.send("GET", "/api/accounts").status_code == 401
    assert client.send("GET", "/api/notes").status_code == 200
    client.keep_secret(*client.http.cookies.values(), shown=True)  # the token of the CSRF cookie
    client.http.headers["X-CSRF-Token"] = client.http.cookies["csrf_token"]
    for body in (account, account, {"email": "x" * 70, "password": PASSWORD}, {"email": [PASSWORD]}):
        client.send("POST", "/api/accounts", json=body)
    client.send("POST", "/api/accounts", content=f'{{"password": "{PASSWORD}", "email": ')
    client.send("POST", "/api/accounts", json=account, headers={"X-CSRF-Token": "x" * 40})
    client.send("GET", f"/api/accounts?filter=password:eq:{PASSWORD[:7]}")


def use_tokens(client: Client, mode: str) -> None:
    for email in (EMAIL, "nobody@example.com", "broken"):
        client.send("POST", "/api/auth/login", json={"email": email, "password": WRONG_PASSWORD})
    client.send("POST", "/api/auth/login", content=f'["{PASSWORD}"')
    client.send("POST", "/api/auth/login", json={"email": EMAIL, "password": {"is": PASSWORD}})
    client.sign_in(mode)
    assert client.send("POST", "/api/auth/logout").status_code == 204
    assert client.send("GET", "/api/notes").status_code == 401
    old = client.sign_in(mode)
    client.note_pair(client.refresh(mode, old), mode)
    client.refresh(mode, "x" * 300)
    client.refresh(mode, old)
    assert client.send("GET", "/api/notes").status_code == 401  # the family has ended
    client.sign_in(mode)
    client.send("GET", "/api/fail")


def use_keys(client: Client) -> None:
    answer = client.send("POST", "/api/api_keys", json={"name": "script", "roles": ["admin"]})
    key, key_id = client.note_key(answer), data_of(answer, 201)["id"]
    new = client.note_key(client.send("POST", f"/api/api_keys/{key_id}/rotate", json={"overlap": 60}))
    client.send("POST", "/api/api_keys", json={"name": "script", "roles": ["root"]})
    client.send("GET", "/api/api_keys")
    client.send("GET", f"/api/api_keys/{key_id}")
    for one, status in ((key, 200), (new, 200), (f"{new}x", 401), (FIXED_KEY, 200)):
        assert client.send_alone("/api/notes", {"X-API-Key": one}).status_code == status
    client.send("DELETE", f"/api/api_keys/{key_id}")


def read_everything(client: Client) -> None:
    client.send("PATCH", f"/api/accounts/{first_id(client)}", json={"password": PASSWORD + " staple"})
    for path in (
        *("/openapi.json", "/docs", "/api/accounts", "/api/accounts", "/api/accounts/export?format=csv"),
        *("/api/accounts/aggregate?count=*", "/api/accounts?select=password", "/api/nowhere", "/metrics"),
        f"/api/accounts/{first_id(client)}",
    ):
        client.send("GET", path)


def first_id(client: Client) -> str:
    found: str = data_of(client.send("GET", "/api/accounts"))[0]["id"]
    return found


def send_bad_credentials(client: Client) -> None:
    expired = {"sub": "ada", "iss": "us", "iat": time.time() - 60, "exp": time.time() - 30, "jti": "x"}
    for text in (
        f"Bearer {pyjwt.encode(expired, SIGNING_SECRET)}",
        f"Bearer {pyjwt.encode(expired, WRONG_PASSWORD + SIGNING_SECRET)}",
        f"Bearer {WRONG_PASSWORD.replace(' ', '-')}.x.y",
        "Basic " + base64.b64encode(f"{EMAIL}:{WRONG_PASSWORD}".encode()).decode(),
        "Basic " + WRONG_PASSWORD.replace(" ", "-"),
    ):
        client.keep_secret(text.partition(" ")[2])
        assert client.send_alone("/api/notes", {"Authorization": text}).status_code == 401


def forms_of(secret: str) -> set[str]:
    """A secret as it could stand in a text: as it is, in hexadecimal, in base64 wherever it begins."""
    raw = secret.encode()
    shifted = (base64.b64encode(b"\0" * shift + raw).decode()[4:-4] for shift in range(3))
    return {secret, raw.hex(), *(form for form in shifted if len(form) >= 16)}


def stored_rows(url: str) -> str:
    """Every row of every table, as the database tells it, and the bytes of its files."""
    files = asyncio.run(stored_bytes(url)).decode("latin-1")
    if url.startswith("postgres"):
        return f"{asyncio.run(postgres_rows(url))}\n{files}"
    path = Path(sqlite_path(url))
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert {*tables} > OWN_TABLES
        rows = [row for table in tables for row in connection.execute(f'SELECT * FROM "{table}"')]
    return f"{rows!r}\n{files}"


async def postgres_rows(url: str) -> str:
    tables = await fetch_value(
        url, "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'public'"
    )
    assert {*tables} > OWN_TABLES
    texts = [
        await fetch_value(url, f"SELECT string_agg(t::text, E'\\n') FROM \"{table}\" t") for table in tables
    ]
    return "\n".join(filter(None, texts))
