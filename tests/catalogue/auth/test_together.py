"""Several authenticators, exemptions and guards on one route: C5, C6, C7 and C14."""

from __future__ import annotations

import base64
import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, belongs_to, field
from maniflex.middleware import auth
from maniflex.pipeline.entry import Entry
from maniflex.testing import client
from tests.catalogue.auth.kit import (
    OTHER_SECRET,
    SECRET,
    Post,
    app,
    bearer,
    later,
    serving,
    stamp_author,
)
from tests.kit.declarations import refusal_of
from tests.kit.http import data_of, error_of
from tests.kit.notes import Note

KEY = "a-key-of-sixteen-letters-or-more"
SERVICE = AuthInfo(user_id="robot", roles=["service"])
GOOD_KEY = {"X-API-Key": KEY}


def basic_header(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def check(username: str, password: str) -> AuthInfo | None:
    return AuthInfo(user_id=username) if password == "right" else None


async def test_c5_either_credential_passes_and_the_first_one_decides(database_url: str) -> None:
    """C5 and §16b A1."""
    async with serving(app(auth.jwt(SECRET), auth.api_keys(keys={KEY: SERVICE})), database_url) as http:
        assert data_of(await http.get("/api/me", headers=bearer()))["user_id"] == "ada"
        robot = data_of(await http.get("/api/me", headers=GOOD_KEY))
        assert (robot["user_id"], robot["auth_method"]) == ("robot", "api_key")
        assert robot["identity_type"] == "service_account"
        error_of(await http.get("/api/me", headers={**bearer("x"), **GOOD_KEY}), 401, "INVALID_TOKEN")
        both = await http.get("/api/me", headers={**bearer(), "X-API-Key": "wrong"})
        assert data_of(both)["user_id"] == "ada"
        error_of(await http.get("/api/me", headers={"X-API-Key": "wrong"}), 401, "UNAUTHORIZED")
        nothing = await http.get("/api/me")
        error_of(nothing, 401, "UNAUTHORIZED")
        assert nothing.headers["www-authenticate"]


@pytest.mark.parametrize("reverse", [False, True])
async def test_two_schemes_of_one_header_are_told_apart(reverse: bool, database_url: str) -> None:
    entries: list[Entry] = [auth.jwt(SECRET), auth.basic(check)]
    async with serving(app(*(reversed(entries) if reverse else entries)), database_url) as http:
        assert data_of(await http.get("/api/me", headers=bearer()))["auth_method"] == "jwt"
        assert (
            data_of(await http.get("/api/me", headers=basic_header("eve", "right")))["auth_method"] == "basic"
        )
        for headers in (basic_header("eve", "wrong"), {"Authorization": "Digest x"}, bearer("x")):
            assert (await http.get("/api/me", headers=headers)).status_code == 401


async def test_an_unknown_scheme_is_401_though_a_later_authenticator_reads_another_header(
    database_url: str,
) -> None:
    entries = [auth.allow_anonymous(), auth.jwt(SECRET), auth.api_keys(keys={KEY: SERVICE})]
    async with serving(app(*entries), database_url) as http:
        assert (await http.get("/api/me", headers=basic_header("eve", "right"))).status_code == 401
        assert (await http.get("/api/me")).status_code == 204


async def test_an_identity_of_the_applications_own_is_kept_unless_a_credential_is_sent(
    database_url: str,
) -> None:
    """A2."""
    server = Server()

    @server.pipeline.auth.middleware()
    async def own(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id=ctx.header("x-user") or "")
        await next()

    server.register(Post)
    server.pipeline.auth.register(auth.jwt(SECRET))

    @server.action("GET", "/me")
    async def me(ctx: Context) -> str:
        return ctx.require_auth().user_id

    async with serving(server, database_url) as http:
        assert data_of(await http.get("/api/me", headers={"X-User": "own"})) == "own"
        assert data_of(await http.get("/api/me", headers={"X-User": "own", **bearer()})) == "ada"
        error_of(await http.get("/api/me", headers={"X-User": "own", **bearer("x")}), 401, "INVALID_TOKEN")
        error_of(await http.get("/api/me"), 401, "UNAUTHORIZED")


# -- exemptions


async def test_c6_an_exempted_list_is_open_and_still_checks_tokens(database_url: str) -> None:
    """C6: other scheme, empty `Bearer` and an expired token are 401 there too."""
    server = app()
    server.pipeline.auth.register(auth.allow_anonymous(), models=Post, operations=[Operation.LIST])
    server.pipeline.auth.register(auth.jwt(SECRET))
    server.pipeline.service.register(stamp_author, models=Post, operations=[Operation.CREATE])

    @server.pipeline.service.middleware(models=Post, operations=[Operation.LIST])
    async def drafts(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("author", "" if ctx.auth is None else ctx.auth.user_id)
        await next()

    async with serving(server, database_url) as http:
        data_of(await http.post("/api/posts", json={"title": "draft"}, headers=bearer()), 201)
        assert data_of(await http.get("/api/posts")) == []
        assert len(data_of(await http.get("/api/posts", headers=bearer()))) == 1
        expired = bearer(exp=later(hours=-1))
        error_of(await http.get("/api/posts", headers=expired), 401, "TOKEN_EXPIRED")
        for value in ("Bearer", "Basic eDp5", "x"):
            assert (await http.get("/api/posts", headers={"Authorization": value})).status_code == 401
        assert (await http.head("/api/posts")).status_code == 200
        error_of(await http.post("/api/posts", json={"title": "x"}), 401, "UNAUTHORIZED")
        error_of(await http.get("/api/notes"), 401, "UNAUTHORIZED")


async def test_c6_an_exemption_after_the_authenticator_has_no_effect_and_says_so(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C6, P55."""
    with caplog.at_level(logging.WARNING):
        async with serving(app(auth.jwt(SECRET), auth.allow_anonymous()), database_url) as http:
            error_of(await http.get("/api/posts"), 401, "UNAUTHORIZED")

    assert "it stands after auth.jwt, so it has no effect" in caplog.text


async def test_an_exemption_between_two_authenticators_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        app(auth.jwt(SECRET), auth.allow_anonymous(), auth.api_keys(keys={KEY: SERVICE})).seal()

    assert "no effect" not in caplog.text


async def test_c7_public_reads_need_no_authenticator_and_everything_else_needs_an_identity(
    database_url: str,
) -> None:
    """C7."""
    async with serving(app(auth.allow_public_read()), database_url) as http:
        data_of(await http.get("/api/posts"))
        refused = await http.post("/api/posts", json={"title": "x"})
        error_of(refused, 401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"]
        for method, path in (("PATCH", "/api/posts/x"), ("DELETE", "/api/posts/x"), ("GET", "/api/me")):
            error_of(await http.request(method, path), 401, "UNAUTHORIZED")


async def test_public_reads_with_an_authenticator(database_url: str) -> None:
    server = app()
    server.pipeline.auth.register(auth.allow_public_read(), models=Post)
    server.pipeline.auth.register(auth.jwt(SECRET))
    async with serving(server, database_url) as http:
        post = data_of(await http.post("/api/posts", json={"title": "x"}, headers=bearer()), 201)
        for path in ("/api/posts", f"/api/posts/{post['id']}"):
            data_of(await http.get(path))
            assert (await http.head(path)).status_code == 200
        error_of(await http.get("/api/posts", headers=bearer("x")), 401, "INVALID_TOKEN")
        error_of(await http.delete(f"/api/posts/{post['id']}"), 401, "UNAUTHORIZED")
        error_of(await http.get("/api/notes"), 401, "UNAUTHORIZED")


async def test_public_writes_are_open_where_they_are_named(database_url: str) -> None:
    """A39."""
    server = app()
    server.pipeline.auth.register(auth.allow_public_write(), models=Post, operations=Operation.CREATE)
    server.pipeline.auth.register(auth.jwt(SECRET))
    async with serving(server, database_url) as http:
        post = data_of(await http.post("/api/posts", json={"title": "x"}), 201)
        error_of(await http.get("/api/posts"), 401, "UNAUTHORIZED")
        error_of(await http.patch(f"/api/posts/{post['id']}", json={}), 401, "UNAUTHORIZED")
        error_of(await http.post("/api/notes", json={"text": "x"}), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("scope", [{}, {"models": Post}, {"operations": ["create"]}])
def test_public_writes_need_models_and_operations(scope: dict[str, Any]) -> None:
    server = app()
    server.pipeline.auth.register(auth.allow_public_write(), **scope)

    assert "it needs models= and operations=" in str(refusal_of(server))


def test_an_exemption_for_operations_it_does_nothing_for_stops_the_start() -> None:
    server = app()
    server.pipeline.auth.register(auth.allow_public_read(), operations="create")
    server.pipeline.auth.register(auth.allow_public_write(), models=Post, operations="list")

    assert str(refusal_of(server)).count("it does nothing for") == 2


class Author(Model):
    name: str = field(filterable=True, sortable=True)


class Book(Model):
    title: str
    author_id: str = field(filterable=True)
    author: Author = belongs_to()


async def test_an_exempted_route_does_not_open_the_models_it_reaches(database_url: str) -> None:
    """`/authors` needs a token, so `/books?include=author` does, though `/books` does not."""
    server = Server()
    server.register(Author, Book)
    server.pipeline.auth.register(auth.allow_anonymous(), models=Book)
    server.pipeline.auth.register(auth.jwt(SECRET))
    async with serving(server, database_url) as http:
        author = data_of(await http.post("/api/authors", json={"name": "Ada"}, headers=bearer()), 201)
        book = {"title": "x", "author_id": author["id"]}
        error_of(await http.post("/api/books", json=book), 401, "UNAUTHORIZED")
        data_of(await http.post("/api/books", json=book, headers=bearer()), 201)
        data_of(await http.get("/api/books"))
        for query in ("include=author", "filter=author.name:eq:Ada", "sort=author.name:asc"):
            error_of(await http.get(f"/api/books?{query}"), 401, "UNAUTHORIZED")
            data_of(await http.get(f"/api/books?{query}", headers=bearer()))


async def test_a_route_and_what_it_reaches_under_one_exemption(database_url: str) -> None:
    server = Server()
    server.register(Author, Book)
    server.pipeline.auth.register(auth.allow_public_read())
    server.pipeline.auth.register(auth.jwt(SECRET))
    async with serving(server, database_url) as http:
        data_of(await http.get("/api/books?include=author"))


async def test_an_exemption_in_an_action_opens_that_action(database_url: str) -> None:
    server = app(auth.allow_public_read(), auth.jwt(SECRET))

    @server.action("POST", "/ping", middleware=[auth.allow_anonymous()])
    async def ping(ctx: Context) -> str:
        return "nobody" if ctx.auth is None else ctx.auth.user_id

    async with serving(server, database_url) as http:
        assert data_of(await http.post("/api/ping")) == "nobody"
        assert data_of(await http.post("/api/ping", headers=bearer())) == "ada"
        error_of(await http.post("/api/ping", headers=bearer("x")), 401, "INVALID_TOKEN")
        error_of(await http.get("/api/me"), 401, "UNAUTHORIZED")


# -- guards


async def test_c14_roles(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """C14: anonymous 401, wrong role 403, right role 200; without a role nobody passes."""
    server = app(auth.allow_anonymous(), auth.jwt(SECRET))
    server.pipeline.auth.register(auth.require_role("admin", "editor"), models=Post)
    server.pipeline.auth.register(auth.require_role(), models=Note)
    with caplog.at_level(logging.WARNING):
        async with serving(server, database_url) as http:
            anonymous = await http.get("/api/posts")
            error_of(anonymous, 401, "UNAUTHORIZED")
            assert anonymous.headers["www-authenticate"]
            error_of(await http.get("/api/posts", headers=bearer(roles=["Admin"])), 403, "FORBIDDEN")
            data_of(await http.get("/api/posts", headers=bearer(roles=["x", "editor"])))
            error_of(await http.get("/api/notes"), 401, "UNAUTHORIZED")
            error_of(await http.get("/api/notes", headers=bearer(roles=["admin"])), 403, "FORBIDDEN")

    assert "no role is named, so nobody passes" in caplog.text


async def test_scopes_and_plain_identity(database_url: str) -> None:
    server = app(auth.allow_anonymous(), auth.jwt(SECRET))
    server.pipeline.auth.register(auth.require_scope("posts:read", "posts:list"), models=Post)
    server.pipeline.auth.register(auth.require_auth(), models=Note)
    async with serving(server, database_url) as http:
        error_of(await http.get("/api/posts"), 401, "UNAUTHORIZED")
        one = await http.get("/api/posts", headers=bearer(scope="posts:read"))
        error_of(one, 403, "FORBIDDEN")
        assert one.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
        data_of(await http.get("/api/posts", headers=bearer(scope="posts:list x posts:read")))
        error_of(await http.get("/api/notes"), 401, "UNAUTHORIZED")
        data_of(await http.get("/api/notes", headers=bearer()))


async def test_c14_a_blocked_operation_is_405_for_everybody(database_url: str) -> None:
    """C14: `Allow` lists what is left, and OPTIONS leaves blocked methods out."""
    server = app(auth.jwt(SECRET), auth.block_operation("delete", Operation.LIST))
    async with serving(server, database_url) as http:
        for headers in ({}, bearer(), bearer("x")):
            answer = await http.delete("/api/posts/x", headers=headers)
            error_of(answer, 405, "METHOD_BLOCKED")
            assert answer.headers["allow"] == "GET, HEAD, OPTIONS, PATCH"
        listed = await http.get("/api/posts", headers=bearer())
        error_of(listed, 405, "METHOD_BLOCKED")
        assert listed.headers["allow"] == "OPTIONS, POST"
        assert (await http.head("/api/posts")).status_code == 405
        post = data_of(await http.post("/api/posts", json={"title": "x"}, headers=bearer()), 201)
        assert (await http.head(f"/api/posts/{post['id']}", headers=bearer())).status_code == 200
        options = [await http.options(p, headers=bearer()) for p in ("/api/posts", "/api/posts/x")]
        assert [o.headers["allow"] for o in options] == ["OPTIONS, POST", "GET, HEAD, OPTIONS, PATCH"]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (auth.block_operation(), "name the operations to block"),
        (auth.block_operation("remove"), "there is no operation 'remove'"),
        (auth.require_role("a", ""), "roles are texts"),
        (auth.require_scope(), "name the scopes"),
        (auth.require_scope('a"b'), "a scope has neither spaces nor quotes"),
        (auth.api_keys(), "it needs keys= or store="),
        (auth.api_keys(keys={"": SERVICE}), "a key is empty"),
        (auth.api_keys(keys={KEY: AuthInfo()}), "AuthInfo with a user_id"),
        (auth.api_keys("X Key", {KEY: SERVICE}), "is no name of a header"),
        (auth.basic(lambda name: None), "check is called with (username, password)"),  # type: ignore[arg-type, misc]
        (auth.basic(check, realm='a"b'), "realm is plain text"),
    ],
)
def test_a_wrong_argument_stops_the_start(entry: Entry, text: str) -> None:
    assert text in str(refusal_of(app(entry)))


# -- keys and passwords with every request


async def test_keys_are_told_apart_and_never_in_the_query_string(database_url: str) -> None:
    from hashlib import sha256

    hidden = "another-key-that-only-its-digest-tells"
    keys = {KEY: SERVICE, f"sha256:{sha256(hidden.encode()).hexdigest()}": AuthInfo(user_id="second")}
    entry = auth.api_keys("X-Key", keys)
    async with serving(app(entry), database_url) as http:
        assert data_of(await http.get("/api/me", headers={"X-Key": hidden}))["user_id"] == "second"
        assert data_of(await http.get("/api/me", headers={"X-Key": KEY}))["user_id"] == "robot"
        wrong: Sequence[Any] = ["", " ", "x" * 2000, "é", list(keys)[1], KEY + "x"]
        for value in wrong:
            answer = await http.get("/api/me", headers={b"x-key": value.encode()})
            error_of(answer, 401, "UNAUTHORIZED")
        twice = await http.get("/api/me", headers=[("X-Key", KEY), ("X-Key", KEY)])
        error_of(twice, 401, "UNAUTHORIZED")
        error_of(await http.get(f"/api/me?X-Key={KEY}&api_key={KEY}"), 401, "UNAUTHORIZED")

    assert KEY not in str(vars(entry))


def test_a_short_key_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        app(auth.api_keys(keys={"short": SERVICE})).seal()

    assert "shorter than 16 characters" in caplog.text


async def test_basic_refuses_everything_with_one_text(database_url: str) -> None:
    def plain(username: str, password: str) -> AuthInfo | None:
        if username == "boom":
            raise OSError("no directory")
        return AuthInfo(user_id=username, roles=["x"]) if password == "pass:word" else None

    async with serving(app(auth.basic(plain, realm="house")), database_url) as http:
        me = data_of(await http.get("/api/me", headers=basic_header("zoë", "pass:word")))
        assert (me["user_id"], me["auth_method"]) == ("zoë", "basic")
        bad = ["!!!", base64.b64encode(b"no colon").decode(), "", base64.b64encode(b"\xff:\xff").decode()]
        bad += [basic_header("zoë", "wrong")["Authorization"][6:], "YTpi YTpi"]
        answers = [await http.get("/api/me", headers={"Authorization": f"Basic {text}"}) for text in bad]
        assert {(a.status_code, a.text) for a in answers} == {(401, answers[0].text)}
        assert answers[0].headers["www-authenticate"] == 'Basic realm="house", charset="UTF-8"'
        error_of(await http.get("/api/me", headers=basic_header("boom", "x")), 500, "INTERNAL")


async def test_passwords() -> None:
    """A48."""
    hashed = await auth.hash_password("correct horse")
    old = await auth.hash_password("correct horse", algorithm="bcrypt")

    assert hashed.startswith("$argon2id$")
    assert await auth.verify_password("correct horse", hashed)
    assert await auth.verify_password("correct horse", old)
    for stored in (hashed, old, None, "", "correct horse", "$argon2id$x", "$2b$x"):
        assert not await auth.verify_password("wrong", stored)
    assert not await auth.verify_password("correct horse", "correct horse")
    assert not await auth.verify_password(hashed, hashed)
    assert (await auth.needs_rehash(hashed), await auth.needs_rehash(old)) == (False, True)
    long = "é" * 40
    truncated = await auth.hash_password(long[:36], algorithm="bcrypt")
    assert await auth.verify_password(long, truncated)
    with pytest.raises(ValueError, match="72 bytes"):
        await auth.hash_password(long, algorithm="bcrypt")
    with pytest.raises(ValueError, match="no password algorithm"):
        await auth.hash_password("x", algorithm="md5")


async def test_an_unknown_account_takes_as_long_as_a_wrong_password() -> None:
    import time

    hashed = await auth.hash_password("correct horse")
    durations: dict[str | None, list[float]] = {hashed: [], None: []}
    for _ in range(7):
        for stored, times in durations.items():
            start = time.process_time()
            await auth.verify_password("wrong", stored)
            times.append(time.process_time() - start)

    known, unknown = (min(times) for times in durations.values())
    assert 0.5 < known / unknown < 2


async def test_a_token_for_another_secret_is_never_asked_twice(database_url: str) -> None:
    """Two issuers on one header: the first decides."""
    async with serving(app(auth.jwt(SECRET), auth.jwt(OTHER_SECRET)), database_url) as http:
        error_of(await http.get("/api/me", headers=bearer(key=OTHER_SECRET)), 401, "INVALID_TOKEN")


def test_importing_the_entries_loads_no_optional_library() -> None:
    """X2."""
    program = "import sys; from maniflex.middleware import auth; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert {"jwt", "cryptography", "argon2", "bcrypt", "redis"} & set(loaded.stdout.split()) == set()


async def test_a_401_names_every_scheme_that_the_route_takes(sqlite_url: str) -> None:
    def check(username: str, password: str) -> None: ...

    keys = auth.api_keys(keys={"a-key-of-sixteen-letters-or-more": AuthInfo(user_id="robot")})
    server = app(auth.jwt(SECRET), keys, auth.basic(check))
    server.pipeline.auth.register(auth.require_role("admin"))
    guarded = app(auth.allow_anonymous(), auth.jwt(SECRET), keys, auth.require_auth())
    async with serving(server, sqlite_url) as http:
        answer = await http.get("/api/posts")
        challenge = 'Bearer, ApiKey, Basic realm="maniflex", charset="UTF-8"'
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, challenge)
    async with serving(guarded, sqlite_url) as http:
        assert (await http.get("/api/posts")).headers["www-authenticate"] == "Bearer, ApiKey"


@pytest.mark.parametrize(
    "guard",
    [auth.require_auth(), auth.require_role("admin"), auth.require_scope("notes")],
    ids=["identity", "role", "scope"],
)
async def test_a_guard_of_all_routes_leaves_the_way_to_sign_in_open(guard: Any) -> None:
    """Nobody is known there yet; the same guard still keeps everything else."""
    server = Server()
    server.register(Note)
    tokens = auth.Tokens(SECRET, issuer="notes")

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
        return AuthInfo(user_id="ada", roles=["admin"], scopes=["notes"])

    tokens.mount(server, login=log_in)
    server.pipeline.auth.register(tokens.bearer())
    server.pipeline.auth.register(guard)
    async with client(server) as http:
        error_of(await http.get("/api/notes"), 401, "UNAUTHORIZED")
        error_of(await http.post("/api/auth/logout"), 401, "UNAUTHORIZED")
        pair = data_of(await http.post("/api/auth/login", json={"email": "ada", "password": "x"}))
        pair = data_of(
            await http.post("/api/auth/refresh", json={"refresh_token": pair["refresh_token"]}),
        )
        headers = {"authorization": f"Bearer {pair['access_token']}"}
        assert (await http.get("/api/notes", headers=headers)).status_code == 200
        login = (await http.get("/api/openapi.json")).json()["paths"]["/api/auth/login"]["post"]
        assert "403" not in login["responses"]


async def test_an_exemption_that_a_guard_of_all_routes_undoes_is_told_at_the_start(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.register(Note)
    register = server.pipeline.auth.register
    register(auth.allow_public_write(), models=[Note], operations=["create"])
    register(auth.jwt(SECRET))
    register(auth.require_auth())

    @server.action("POST", "/sign_up", middleware=[auth.allow_anonymous()])
    async def sign_up(ctx: Context) -> None: ...

    async with serving(server, sqlite_url) as http:
        error_of(await http.post("/api/sign_up"), 401, "UNAUTHORIZED")
    told = "auth.require_auth is for all routes and refuses anonymous callers here too; give it models="
    assert f"pipeline.auth: auth.allow_public_write: {told}" in caplog.text
    assert f"action POST /sign_up: auth.allow_anonymous: {told}" in caplog.text
    caplog.clear()

    optional = Server()  # a guard of some models beside an exemption of all routes is meant
    optional.register(Note)
    for entry in (auth.allow_anonymous(), auth.jwt(SECRET)):
        optional.pipeline.auth.register(entry)
    optional.pipeline.auth.register(auth.require_auth(), models=[Note])
    async with serving(optional, sqlite_url):
        assert "refuses anonymous callers" not in caplog.text
