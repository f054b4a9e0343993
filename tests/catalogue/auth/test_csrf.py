"""`auth.csrf`: C15, and what a forged or planted request tries."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Operation
from maniflex.middleware import auth
from maniflex.pipeline.entry import Entry
from maniflex.storage import LocalStorage
from tests.catalogue.auth.kit import SECRET, Post, app, bearer, serving, token
from tests.kit.declarations import refusal_of
from tests.kit.http import data_of, error_of
from tests.kit.notes import Note

BODY = {"title": "x"}
KEY = "a-key-of-sixteen-letters-or-more"


async def post(
    http: httpx.AsyncClient, cookie: str | None, header: str | None, **headers: str
) -> httpx.Response:
    """A POST with this cookie and this header, and no other cookie."""
    http.cookies.clear()
    sent = {
        **({"Cookie": cookie} if cookie else {}),
        **({"X-CSRF-Token": header} if header else {}),
        **headers,
    }
    return await http.post("/api/posts", json=BODY, headers=sent)


def set_cookie(answer: httpx.Response) -> tuple[str, str]:
    """The cookie an answer sets, and its attributes."""
    [line] = answer.headers.get_list("set-cookie")
    pair, _, attributes = line.partition("; ")
    return pair, attributes


async def test_c15_double_submit(database_url: str) -> None:
    """C15."""
    async with serving(app(auth.csrf()), database_url) as http:
        first = await http.get("/api/posts")
        pair, attributes = set_cookie(first)
        name, _, value = pair.partition("=")
        assert (name, attributes) == ("csrf_token", "Path=/; SameSite=Lax")
        assert len(value) >= 43
        assert "set-cookie" not in (await http.get("/api/posts", headers={"Cookie": pair})).headers

        error_of(await post(http, pair, None), 403, "CSRF_TOKEN_MISSING")
        error_of(await post(http, None, value), 403, "CSRF_COOKIE_MISSING")
        error_of(await post(http, pair, value + "x"), 403, "CSRF_TOKEN_MISMATCH")
        error_of(await post(http, "csrf_token=", ""), 403, "CSRF_TOKEN_MISSING")
        error_of(await post(http, "csrf_token=a", "a"), 403, "CSRF_TOKEN_MISMATCH")
        error_of(
            await post(http, f"{pair}; csrf_token=planted-cookie-of-another", value),
            403,
            "CSRF_TOKEN_MISMATCH",
        )
        data_of(await post(http, pair, value), 201)


async def test_c15_a_bearer_header_needs_no_token(database_url: str) -> None:
    """C15, A42: a bearer or key header is exempt, a token in a cookie never is."""
    entries = [
        auth.csrf(),
        auth.jwt(SECRET, cookie="session"),
        auth.api_keys(keys={KEY: AuthInfo(user_id="r")}),
    ]
    async with serving(app(*entries), database_url) as http:
        data_of(await post(http, None, None, **bearer()), 201)
        data_of(await post(http, None, None, **{"X-API-Key": KEY}), 201)
        by_cookie = f"session={token()}"
        error_of(await post(http, by_cookie, None), 403, "CSRF_TOKEN_MISSING")
        for value in ("Bearer", "Bearer ", "Basic eDp5", "bearer"):
            answer = await post(http, by_cookie, None, Authorization=value)
            assert answer.status_code in (401, 403)
        error_of(await post(http, by_cookie, None, **{"X-API-Key": ""}), 403, "CSRF_TOKEN_MISSING")
        good = f"{by_cookie}; csrf_token=0123456789abcdef0123"
        data_of(await post(http, good, "0123456789abcdef0123"), 201)


async def test_bearer_is_asked_too_when_told_so(database_url: str) -> None:
    entries = [auth.csrf(enforce_bearer=True, origins=["https://app.example.com"]), auth.jwt(SECRET)]
    async with serving(app(*entries), database_url) as http:
        error_of(await post(http, None, None, **bearer()), 403, "CSRF_ORIGIN_REJECTED")
        answer = await post(http, None, None, Origin="https://app.example.com", **bearer())
        error_of(answer, 403, "CSRF_TOKEN_MISSING")


ORIGINS = ["https://app.example.com", "shop.example.com", "*.trusted.org", "localhost:3000"]


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"Origin": "https://app.example.com"}, True),
        ({"Origin": "HTTPS://APP.example.com"}, True),
        ({"Referer": "https://app.example.com/page?x=1"}, True),
        ({"Origin": "http://shop.example.com:8080"}, True),
        ({"Origin": "https://a.trusted.org"}, True),
        ({"Origin": "https://a.b.trusted.org"}, True),
        ({"Origin": "http://localhost:3000"}, True),
        ({"Origin": "https://evil"}, False),
        ({"Origin": "https://evil", "Referer": "https://app.example.com/"}, False),
        ({"Origin": "http://app.example.com"}, False),
        ({"Origin": "https://app.example.com:444"}, False),
        ({"Origin": "https://app.example.com.evil.org"}, False),
        ({"Origin": "https://trusted.org"}, False),
        ({"Origin": "https://eviltrusted.org"}, False),
        ({"Origin": "https://user@app.example.com"}, False),
        ({"Origin": "https://a.trusted.org@evil.org"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "http://localhost:4000"}, False),
        ({"Origin": "http://[::1"}, False),
        ({}, False),
    ],
)
async def test_c15_origins(headers: dict[str, str], passes: bool, sqlite_url: str) -> None:
    """C15, A44."""
    cookie = "0123456789abcdef0123"
    async with serving(app(auth.csrf(origins=ORIGINS)), sqlite_url) as http:
        answer = await post(http, f"csrf_token={cookie}", cookie, **headers)

    if passes:
        data_of(answer, 201)
    else:
        error_of(answer, 403, "CSRF_ORIGIN_REJECTED")


async def test_signed_tokens_belong_to_the_session(database_url: str) -> None:
    """A41."""
    entries = [auth.jwt(SECRET, cookie="session", csrf=False), auth.csrf("signed", secret="s" * 32)]
    server = app(*entries)

    @server.action("GET", "/csrf")
    async def csrf(ctx: Context) -> str:
        return auth.csrf_token(ctx)

    async with serving(server, database_url) as http:
        mine, others = (f"session={token(jti=jti)}" for jti in ("one", "two"))
        good = data_of(await http.get("/api/csrf", headers={"Cookie": mine}))
        assert good == hmac.new(b"s" * 32, b"one", sha256).hexdigest()
        data_of(await post(http, mine, good), 201)
        error_of(await post(http, others, good), 403, "CSRF_TOKEN_MISMATCH")
        error_of(await post(http, mine, None), 403, "CSRF_TOKEN_MISSING")
        error_of(await post(http, f"session={token()}", good), 403, "CSRF_NO_SESSION")
        assert "set-cookie" not in (await http.get("/api/posts", headers={"Cookie": mine})).headers


async def test_a_planted_cookie_does_not_pass_when_tokens_are_bound(database_url: str) -> None:
    """A43: with a secret, a token that an attacker got for another session is worth nothing."""
    entries: list[Entry] = [
        auth.allow_anonymous(),
        auth.jwt(SECRET, cookie="session"),
        auth.csrf(secret="s" * 32),
    ]
    async with serving(app(*entries), database_url) as http:
        session = f"session={token(jti='victim')}"
        planted, _ = set_cookie(
            await http.get("/api/posts", headers={"Cookie": f"session={token(jti='evil')}"})
        )
        http.cookies.clear()
        anonymous, _ = set_cookie(await http.get("/api/posts"))
        for cookie in (planted, anonymous, "csrf_token=0123456789abcdef0123", "csrf_token=.0123456789abcdef"):
            answer = await post(http, f"{session}; {cookie}", cookie.partition("=")[2])
            error_of(answer, 403, "CSRF_TOKEN_MISMATCH")
        own, _ = set_cookie(await http.get("/api/posts", headers={"Cookie": f"{session}; {planted}"}))
        data_of(await post(http, f"{session}; {own}", own.partition("=")[2]), 201)


async def test_under_https_the_cookie_is_secure_and_bound_to_the_host(database_url: str) -> None:
    async with serving(app(auth.csrf(same_site="strict")), database_url) as http:
        pair, attributes = set_cookie(await http.get("https://test/api/posts"))
        assert pair.startswith("__Host-csrf_token=")
        assert attributes == "Path=/; Secure; SameSite=Strict"
        sent = {"Cookie": pair, "X-CSRF-Token": pair.partition("=")[2]}
        http.cookies.clear()
        data_of(await http.post("https://test/api/posts", json=BODY, headers=sent), 201)
        planted = {**sent, "Cookie": pair.removeprefix("__Host-")}
        error_of(
            await http.post("https://test/api/posts", json=BODY, headers=planted), 403, "CSRF_COOKIE_MISSING"
        )


async def test_the_cookie_comes_with_refusals_too(database_url: str) -> None:
    async with serving(app(auth.csrf(), auth.jwt(SECRET)), database_url) as http:
        refused = await http.get("/api/posts")
        error_of(refused, 401, "UNAUTHORIZED")
        set_cookie(refused)


async def test_calls_from_code_need_no_token(database_url: str) -> None:
    server = app(auth.csrf())
    async with serving(server, database_url):
        assert (await server.execute("create", Post, body=BODY)).status == 201


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "triple"}, "mode='triple' is none of double_submit, signed"),
        ({"mode": "signed"}, "needs a secret"),
        ({"mode": "signed", "secret": ""}, "the secret is empty"),
        ({"token_bytes": 4}, "token_bytes"),
        ({"same_site": "maybe"}, "same_site='maybe'"),
        ({"header": "X CSRF"}, "plain names"),
        ({"origins": ["https://*.example.com"]}, "is no origin"),
        ({"origins": ["*"]}, "'*' is no origin"),
        ({"origins": [""]}, "'' is no origin"),
    ],
)
def test_a_wrong_argument_stops_the_start(options: dict[str, Any], text: str) -> None:
    assert text in str(refusal_of(app(auth.csrf(**options))))


def test_bound_tokens_stand_after_the_authenticator() -> None:
    server = app(auth.csrf(secret="s" * 32), auth.jwt(SECRET))

    assert "register it after the authenticators" in str(refusal_of(server))


def test_a_cookie_needs_csrf_on_every_unsafe_route() -> None:
    """A9."""
    server = app(auth.jwt(SECRET, cookie="session"))

    @server.action("POST", "/pay")
    async def pay(ctx: Context) -> None: ...

    said = str(refusal_of(server))
    for route in ("create of Post", "delete of Note", "POST /pay"):
        assert route in said
    assert "/me" not in said

    server.pipeline.auth.register(auth.csrf(), models=[Post, Note])
    assert "must cover POST /pay" in str(refusal_of(server))
    server.pipeline.auth.register(auth.csrf(), operations="action")
    server.seal()


@pytest.mark.parametrize("first", ["cookie", "key"])
@pytest.mark.parametrize("guard", ["before", "between", "after"])
async def test_only_the_credential_that_is_used_exempts_a_request(
    first: str, guard: str, sqlite_url: str
) -> None:
    """A header that nobody reads, or that comes after the cookie, could be junk beside a session."""
    by_key = auth.api_keys(keys={KEY: AuthInfo(user_id="robot")})
    by_cookie = auth.jwt(SECRET, cookie="session")
    entries: list[Entry] = [by_cookie, by_key] if first == "cookie" else [by_key, by_cookie]
    entries.insert({"before": 0, "between": 1, "after": 2}[guard], auth.csrf())
    server = app(*entries)
    async with serving(server, sqlite_url) as http:
        session = f"session={token()}"
        junk = await post(http, session, None, **{"X-API-Key": "junk", "Origin": "https://evil.example"})
        assert junk.status_code == (403 if first == "cookie" else 401)
        assert data_of(await http.get("/api/posts", headers={"Cookie": session})) == []
        good = await post(http, session, None, **{"X-API-Key": KEY})
        assert good.status_code == (403 if first == "cookie" else 201)
        data_of(await post(http, None, None, **{"X-API-Key": KEY}), 201)
        data_of(await post(http, session, None, **bearer()), 201)


async def test_a_header_that_no_authenticator_of_the_route_reads_exempts_nothing(sqlite_url: str) -> None:
    async def session(ctx: Context, next: Next) -> None:
        """Middleware of the application, with a session of its own."""
        ctx.auth = AuthInfo(user_id="ada")
        await next()

    server = app()
    server.pipeline.auth.register(session)
    server.pipeline.auth.register(auth.csrf())
    server.pipeline.auth.register(auth.api_keys(keys={KEY: AuthInfo(user_id="robot")}), models=[Note])
    server.pipeline.auth.register(auth.jwt(SECRET), models=[Note])
    async with serving(server, sqlite_url) as http:
        for headers in ({"X-API-Key": "junk"}, {"X-API-Key": KEY}, bearer("junk"), bearer()):
            error_of(await post(http, None, None, **headers), 403, "CSRF_TOKEN_MISSING")
        note = {"text": "x"}
        http.cookies.clear()
        for headers in ({"X-API-Key": "junk"}, bearer("junk")):
            assert (await http.post("/api/notes", json=note, headers=headers)).status_code == 401
        for headers in ({"X-API-Key": KEY}, bearer()):
            data_of(await http.post("/api/notes", json=note, headers=headers), 201)


async def test_own_middleware_that_reads_a_header_says_so(sqlite_url: str) -> None:
    async def by_header(ctx: Context, next: Next) -> None:
        if ctx.header("x-own") == "secret":
            ctx.auth, ctx.csrf_exempt = AuthInfo(user_id="ada"), True
        await next()

    server = app()
    server.pipeline.auth.register(by_header)
    server.pipeline.auth.register(auth.csrf())
    async with serving(server, sqlite_url) as http:
        data_of(await post(http, None, None, **{"X-Own": "secret"}), 201)
        error_of(await post(http, None, None, **{"X-Own": "junk"}), 403, "CSRF_TOKEN_MISSING")


def test_bound_tokens_are_judged_route_by_route() -> None:
    """An authenticator for another model may come later; one for the same routes may not."""
    server = app()
    server.pipeline.auth.register(auth.jwt(SECRET, cookie="session"), models=[Post])
    server.pipeline.auth.register(auth.csrf(secret="s" * 32), models=[Post])
    server.pipeline.auth.register(auth.jwt(SECRET), models=[Note])
    server.seal()

    server = app(auth.csrf(secret="s" * 32))
    server.pipeline.auth.register(auth.jwt(SECRET), models=[Note])
    said = str(refusal_of(server))
    assert "register it after the authenticators: auth.jwt comes later on" in said
    assert "create of Note" in said
    assert "Post" not in said

    server = app(auth.csrf(secret="s" * 32))

    @server.action("POST", "/pay", middleware=[auth.jwt(SECRET)])
    async def pay(ctx: Context) -> None: ...

    assert "auth.jwt comes later on POST /pay" in str(refusal_of(server))


def test_a_cookie_needs_csrf_on_the_routes_of_files_too(tmp_path: Path) -> None:
    server = app(auth.jwt(SECRET, cookie="session"), storage=LocalStorage(tmp_path))
    server.pipeline.auth.register(auth.csrf(), models=[Post, Note])
    said = str(refusal_of(server))
    for route in ("POST /files", "DELETE /files"):
        assert route in said
    server.pipeline.auth.register(auth.csrf(), operations=[*Operation.FILES, Operation.PRESIGN_UPLOAD])
    server.seal()


def test_no_key_is_read_from_the_cookies() -> None:
    for entry in (auth.api_keys("Cookie", {KEY: AuthInfo(user_id="r")}), auth.jwt(SECRET, header="cookie")):
        assert "sent by browsers unasked" in str(refusal_of(app(entry)))


def test_a_cookie_in_an_action_needs_csrf_there() -> None:
    server = app()

    @server.action("POST", "/pay", middleware=[auth.jwt(SECRET, cookie="session")])
    async def pay(ctx: Context) -> None: ...

    assert "must cover POST /pay" in str(refusal_of(server))


async def test_asking_for_a_token_without_csrf_is_an_error(database_url: str) -> None:
    server = app()

    @server.action("GET", "/csrf")
    async def csrf(ctx: Context) -> str:
        return auth.csrf_token(ctx)

    async with serving(server, database_url) as http:
        error_of(await http.get("/api/csrf"), 500, "PANIC")
