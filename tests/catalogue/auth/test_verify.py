"""`auth.verify`: one question about callers for every authenticator, and what ends the sessions of a user."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, NotFound, Server, field
from maniflex.middleware import auth, service
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, Post, serving
from tests.catalogue.auth.kit import app as plain_app
from tests.kit.doctor import codes_of, declared
from tests.kit.http import data_of, error_of
from tests.kit.notes import Note

ROBOT = "a-key-of-sixteen-letters-or-more"
PASSWORD = "correct horse battery"
ISSUED = frozenset({"token", "stored key"})  # credentials that the server itself gave out


class User(Model, operations=["read", "update"]):
    """A user; tests give its password as it is stored."""

    name: str = field(unique=True, filterable=True)
    password: str = field(default=PASSWORD, writeonly=True)
    roles: list[str] = field(default_factory=list)
    disabled: bool = False


async def read_user(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
    """The question an application would ask: is the user still there, and what may it do now?"""
    try:
        user = await ctx.unscoped().db(User).read(info.user_id)
    except NotFound:
        raise ValueError("the account was deleted") from None
    if user.disabled:
        raise ValueError("the account is disabled")
    info.roles = user.roles


def keep_text(plain: str) -> str:
    """A hasher that costs no time."""
    return plain


class House:
    """A server with every authenticator there is, its tokens, and one credential of each kind."""

    def __init__(self, *, checks: bool = True, **options: Any) -> None:
        self.tokens = auth.Tokens(SECRET, issuer="us", **options)
        self.keys = auth.ApiKeys()
        self.server = plain_app(
            self.tokens.bearer(),
            auth.api_keys(store=self.keys),
            auth.api_keys("X-Robot", keys={ROBOT: AuthInfo(user_id=USER_ID, roles=["member"])}),
            auth.basic(self.check_password),
        )
        if checks:
            self.server.pipeline.auth.register(auth.verify(read_user))
        self.server.register(User)
        self.tokens.mount(self.server, login=self.log_in)
        self.keys.mount(self.server)
        ends = service.hash_field("password", keep_text, ends=self.tokens)
        self.server.pipeline.service.register(ends, models=[User])

    async def check_password(self, username: str, password: str) -> AuthInfo | None:
        users = await self.server.db(User).list({"name": username})
        if not users or users[0].password != password:
            return None
        return AuthInfo(user_id=users[0].id, roles=users[0].roles, tenant_id="acme")

    async def log_in(self, ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
        return await self.check_password(credentials.email, credentials.password)

    async def credentials(self, http: httpx.AsyncClient) -> dict[str, dict[str, str]]:
        """Headers with every kind of credential of Ada."""
        await self.server.db(User).create(User(id=USER_ID, name="ada", roles=["member", "writer"]))
        self.pair = await self.sign_in(http)
        headers = {"Authorization": f"Bearer {self.pair['access_token']}"}
        body = {"name": "ci", "roles": ["member"]}
        made = data_of(await http.post("/api/api_keys", json=body, headers=headers), 201)
        basic = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        return {
            "token": headers,
            "stored key": {"X-API-Key": made["key"]},
            "key of the code": {"X-Robot": ROBOT},
            "basic": {"Authorization": f"Basic {basic}"},
        }

    async def sign_in(self, http: httpx.AsyncClient) -> dict[str, Any]:
        body = {"email": "ada", "password": PASSWORD}
        pair: dict[str, Any] = data_of(await http.post("/api/auth/login", json=body))
        return pair

    async def refresh(self, http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/api/auth/refresh", json={"refresh_token": self.pair["refresh_token"]})


USER_ID = "018f4d3a-0000-7000-8000-00000000ada1"


@pytest.mark.parametrize("change", ["disabled", "deleted"])
async def test_every_authenticator_refuses_a_user_that_is_disabled_or_deleted(
    change: str, database_url: str
) -> None:
    house = House()
    async with serving(house.server, database_url) as http:
        credentials = await house.credentials(http)
        for headers in credentials.values():
            assert data_of(await http.get("/api/me", headers=headers))["user_id"] == USER_ID
        if change == "disabled":
            await house.server.db(User).update(USER_ID, disabled=True)
        else:
            await house.server.db(User).delete(USER_ID)
        for name, headers in credentials.items():
            answer = await http.get("/api/me", headers=headers)
            assert (name, answer.status_code) == (name, 401)
            assert "www-authenticate" in answer.headers
            refused = await http.post("/api/posts", json={"title": "x"}, headers=headers)
            assert refused.status_code == 401
        error_of(await house.refresh(http), 401, "INVALID_REFRESH_TOKEN")


async def test_a_token_has_the_roles_of_now_and_a_key_at_most_its_own(sqlite_url: str) -> None:
    house = House()
    async with serving(house.server, sqlite_url) as http:
        credentials = await house.credentials(http)

        async def roles(name: str) -> list[str]:
            who = data_of(await http.get("/api/me", headers=credentials[name]))
            return list(who["roles"])

        await house.server.db(User).update(USER_ID, roles=["member", "boss"])
        assert await roles("token") == ["member", "boss"]
        assert await roles("stored key") == await roles("key of the code") == ["member"]
        await house.server.db(User).update(USER_ID, roles=["boss"])
        assert await roles("stored key") == await roles("key of the code") == []


@pytest.mark.parametrize("name", ["user_id", "tenant_id"])
async def test_verify_cannot_hand_a_key_to_another_user_or_tenant(name: str, sqlite_url: str) -> None:
    def move(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
        setattr(info, name, "other")

    keys = auth.api_keys(keys={ROBOT: AuthInfo(user_id="robot", tenant_id="acme")})
    async with serving(plain_app(keys, auth.verify(move)), sqlite_url) as http:
        error_of(await http.get("/api/me", headers={"X-API-Key": ROBOT}), 401, "UNAUTHORIZED")


async def test_false_and_an_empty_user_refuse_the_caller_and_an_error_is_no_yes(sqlite_url: str) -> None:
    def decide(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> object:
        match ctx.header("x-case"):
            case "false":
                return False
            case "nobody":
                info.user_id = ""
            case "error":
                raise RuntimeError("the directory is away")
            case "one text":
                info.roles = "nonadmin"
        return None

    keys = auth.api_keys(keys={ROBOT: AuthInfo(user_id="robot")})
    async with serving(plain_app(keys, auth.verify(decide)), sqlite_url) as http:
        headers = {"X-API-Key": ROBOT}
        expected = {"false": 401, "nobody": 401, "error": 500, "one text": 500, "fine": 200}
        for case, status in expected.items():
            answer = await http.get("/api/me", headers={**headers, "X-Case": case})
            assert (case, answer.status_code) == (case, status)


async def test_an_authenticator_can_ask_in_addition_or_nobody(sqlite_url: str) -> None:
    asked: list[str] = []

    def note(name: str) -> Any:
        def check(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
            asked.append(name)

        return check

    server = plain_app(
        auth.api_keys(keys={ROBOT: AuthInfo(user_id="robot")}, verify=note("own")),
        auth.api_keys("X-Quiet", keys={ROBOT: AuthInfo(user_id="quiet")}, verify=False),
        auth.verify(note("server")),
    )

    @server.action("GET", "/guarded", middleware=[auth.jwt(SECRET, verify=note("action"))])
    async def guarded(ctx: Context) -> None: ...

    async with serving(server, sqlite_url) as http:
        data_of(await http.get("/api/me", headers={"X-API-Key": ROBOT}))
        assert asked == ["server", "own"]
        data_of(await http.get("/api/me", headers={"X-Quiet": ROBOT}))
        assert asked == ["server", "own"]


def test_verify_that_could_not_work_stops_the_start() -> None:
    for entries, options, text in (
        ([auth.verify(len)], {}, "verify is called with (ctx, claims, info)"),  # type: ignore[arg-type]
        ([auth.verify(read_user)], {}, "no authenticator would ask it"),
        ([auth.verify(read_user), auth.jwt(SECRET)], {"models": [Note]}, "it is asked on every route"),
        ([auth.api_keys(keys={ROBOT: AuthInfo("x")}, verify=True)], {}, "verify is called with"),  # type: ignore[arg-type]
    ):
        server = Server()
        server.register(Post, Note)
        for entry in entries:
            server.pipeline.auth.register(entry, **options)  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match=text.replace("(", r"\(").replace(")", r"\)")):
            server.seal()


# -- ending


async def test_end_all_ends_sessions_and_keys_without_a_verify(database_url: str) -> None:
    house = House(checks=False, revoker=auth.SqlRevoker())
    clock = FakeClock(NOW)
    async with serving(house.server, database_url, clock) as http:
        credentials = await house.credentials(http)
        clock.advance(timedelta(seconds=1))
        await house.tokens.end_all(AuthInfo(user_id=USER_ID, tenant_id="acme"))
        for name in ISSUED:
            answer = await http.get("/api/me", headers=credentials[name])
            assert (name, answer.status_code) == (name, 401)
        error_of(await house.refresh(http), 401, "INVALID_REFRESH_TOKEN")
        await house.sign_in(http)


async def test_a_key_ends_with_the_sessions_of_its_maker(database_url: str) -> None:
    tokens, keys = auth.Tokens(SECRET, issuer="us", revoker=auth.SqlRevoker()), auth.ApiKeys()
    server = plain_app(tokens.bearer(), auth.api_keys(store=keys))

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo:
        return AuthInfo(user_id="ada", tenant_id="acme")

    tokens.mount(server, login=log_in)
    keys.mount(server)
    clock = FakeClock(NOW)
    async with serving(server, database_url, clock) as http:
        body = {"email": "ada", "password": PASSWORD}
        pair = data_of(await http.post("/api/auth/login", json=body))
        headers = {"Authorization": f"Bearer {pair['access_token']}"}
        made = data_of(await http.post("/api/api_keys", json={"name": "ci"}, headers=headers), 201)
        assert (await http.get("/api/me", headers={"X-API-Key": made["key"]})).status_code == 200
        clock.advance(timedelta(seconds=1))
        assert (await http.post("/api/auth/logout-all", headers=headers)).status_code == 204
        assert (await http.get("/api/me", headers={"X-API-Key": made["key"]})).status_code == 401


async def test_end_all_stays_in_the_tenant_unless_it_is_given_a_user_id(database_url: str) -> None:
    """Two tenants may have users of the same id; `logout-all` of one must not reach the other."""
    tokens = auth.Tokens(SECRET, issuer="us", revoker=auth.SqlRevoker())
    keys = auth.ApiKeys()
    server = plain_app(tokens.bearer(), auth.api_keys(store=keys))

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo:
        return AuthInfo(user_id="ada", tenant_id=credentials.email)

    tokens.mount(server, login=log_in)
    keys.mount(server)
    clock = FakeClock(NOW)
    async with serving(server, database_url, clock) as http:

        async def credentials(tenant: str) -> tuple[dict[str, str], dict[str, str], str]:
            body = {"email": tenant, "password": "x"}
            pair = data_of(await http.post("/api/auth/login", json=body))
            headers = {"Authorization": f"Bearer {pair['access_token']}"}
            made = data_of(await http.post("/api/api_keys", json={"name": "x"}, headers=headers), 201)
            return headers, {"X-API-Key": made["key"]}, pair["refresh_token"]

        async def work(token: dict[str, str], key: dict[str, str], refresh: str) -> list[int]:
            answers = [await http.get("/api/me", headers=headers) for headers in (token, key)]
            answers.append(await http.post("/api/auth/refresh", json={"refresh_token": refresh}))
            return [answer.status_code for answer in answers]

        red, blue, none, other = [await credentials(tenant) for tenant in ("red", "blue", "", "other")]
        clock.advance(timedelta(seconds=1))
        assert (await http.post("/api/auth/logout-all", headers=red[0])).status_code == 204
        assert (await http.post("/api/auth/logout-all", headers=none[0])).status_code == 204
        assert await work(*red) == await work(*none) == [401, 401, 401]
        assert await work(*blue) == [200, 200, 200]
        await tokens.end_all("ada")
        assert await work(*other) == [401, 401, 401]


async def rolled_back(house: House, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something in a transaction that is given up."""
    with contextlib.suppress(RuntimeError):
        async with house.server.transaction():
            await work()
            raise RuntimeError("given up")


async def test_end_all_in_an_open_transaction_counts_when_it_commits(database_url: str) -> None:
    house = House(checks=False, revoker=auth.SqlRevoker())
    clock = FakeClock(NOW)
    async with serving(house.server, database_url, clock) as http:
        credentials = await house.credentials(http)
        clock.advance(timedelta(seconds=1))
        await rolled_back(house, lambda: house.tokens.end_all(USER_ID))
        for name in ISSUED:
            data_of(await http.get("/api/me", headers=credentials[name]))
        async with house.server.transaction():
            await house.tokens.end_all(USER_ID)
        for name in ISSUED:
            answer = await http.get("/api/me", headers=credentials[name])
            assert (name, answer.status_code) == (name, 401)


def change_row(house: House, how: str) -> Any:
    """A change of Ada's row, by one of the ways there are."""
    records = house.server.db(User)
    match how:
        case "code":
            return records.update(USER_ID, password="another password")
        case "in process":
            body = {"password": "another password"}
            return house.server.execute("update", User, USER_ID, body=body, auth=AuthInfo("admin"))
        case "delete":
            return records.delete(USER_ID)
        case _:
            return records.update(USER_ID, name="ada2")


@pytest.mark.parametrize(
    ("how", "ends"), [("code", True), ("in process", True), ("delete", True), ("another field", False)]
)
async def test_a_password_change_ends_every_session_and_key(how: str, ends: bool, database_url: str) -> None:
    house = House(checks=False, revoker=auth.SqlRevoker())
    clock = FakeClock(NOW)
    async with serving(house.server, database_url, clock) as http:
        credentials = await house.credentials(http)
        clock.advance(timedelta(seconds=1))
        await change_row(house, how)
        answers = [await http.get("/api/me", headers=credentials[name]) for name in ISSUED]
        answers.append(await house.refresh(http))
    assert {answer.status_code for answer in answers} == {401 if ends else 200}


async def test_a_password_change_that_is_rolled_back_ends_nothing(database_url: str) -> None:
    house = House(checks=False, revoker=auth.SqlRevoker())
    async with serving(house.server, database_url) as http:
        credentials = await house.credentials(http)
        await rolled_back(house, lambda: change_row(house, "code"))
        for name in ISSUED:
            data_of(await http.get("/api/me", headers=credentials[name]))


async def test_a_hash_that_a_login_renews_ends_no_session(sqlite_url: str) -> None:
    house = House(checks=False)

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
        await house.server.db(User).update(USER_ID, password=f"{credentials.password}, hashed anew")
        return AuthInfo(user_id=USER_ID)

    tokens = auth.Tokens(SECRET, issuer="us")
    tokens.mount(house.server, login=log_in, path="/renewing")
    async with serving(house.server, sqlite_url) as http:
        credentials = await house.credentials(http)
        body = {"email": "ada", "password": "x"}
        data_of(await http.post("/api/renewing/login", json=body))
        data_of(await http.get("/api/me", headers=credentials["stored key"]))
        data_of(await house.refresh(http))


async def test_a_user_without_routes_is_signed_out_too(sqlite_url: str) -> None:
    class Account(Model, headless=True):
        owner: str
        password: str = field(writeonly=True)

    house = House(checks=False)
    house.server.register(Account)
    entry = service.hash_field("password", ends=house.tokens, user_field="owner")
    house.server.pipeline.service.register(entry, models=[Account])
    async with serving(house.server, sqlite_url) as http:
        credentials = await house.credentials(http)
        account = await house.server.db(Account).create(owner=USER_ID, password="first")
        data_of(await http.get("/api/me", headers=credentials["stored key"]))
        await house.server.db(Account).update(account.id, password="second")
        error_of(await http.get("/api/me", headers=credentials["stored key"]), 401, "UNAUTHORIZED")


class Person(Model, headless=True):
    number: int = 0
    code: UUID = field(default_factory=uuid4)
    password: str = field(default="first", writeonly=True)


@pytest.mark.parametrize("name", ["number", "code"])
async def test_the_id_of_a_user_may_be_a_number_or_a_uuid(database_url: str, name: str) -> None:
    house = House(checks=False)
    house.server.register(Person)
    entry = service.hash_field("password", keep_text, ends=house.tokens, user_field=name)
    house.server.pipeline.service.register(entry, models=[Person])
    async with serving(house.server, database_url) as http:
        person = await house.server.db(Person).create()
        pair = await house.tokens.issue(AuthInfo(user_id=str(getattr(person, name))))
        headers = {"Authorization": f"Bearer {pair.access_token}"}
        made = data_of(await http.post("/api/api_keys", json={"name": "ci"}, headers=headers), 201)
        await house.server.db(Person).update(person.id, password="second")
        error_of(await http.get("/api/me", headers={"X-API-Key": made["key"]}), 401, "UNAUTHORIZED")
        refreshed = await http.post("/api/auth/refresh", json={"refresh_token": pair.refresh_token})
        assert refreshed.status_code == 401


def test_ends_that_could_not_work_stops_the_start() -> None:
    for ends, options, text in (
        (auth.Tokens(SECRET, issuer="us"), {}, "are not mounted"),
        ("tokens", {}, "is no auth.Tokens"),
        (None, {"user_field": "nam"}, "no field 'nam'"),
        (None, {"user_field": "roles"}, "roles cannot hold the id of a user"),
    ):
        tokens = auth.Tokens(SECRET, issuer="us")
        server = plain_app(tokens.bearer())
        server.register(User)
        tokens.mount(server)
        entry = service.hash_field("password", ends=tokens if ends is None else ends, **options)  # type: ignore[arg-type]
        server.pipeline.service.register(entry, models=[User])
        with pytest.raises(DeclarationError, match=text):
            server.seal()


# -- identities


@pytest.mark.parametrize("name", ["roles", "scopes"])
def test_one_text_is_no_list_of_roles_or_scopes(name: str) -> None:
    for wrong in ("nonadmin", b"admin", ["admin", 1]):
        with pytest.raises(TypeError, match=name):
            AuthInfo(user_id="ada", **{name: wrong})  # type: ignore[arg-type]
    names = ["admin"]
    info = AuthInfo(user_id="ada", **{name: names})  # type: ignore[arg-type]
    names.append("boss")
    assert list(getattr(info, name)) == ["admin"]


async def test_keys_of_the_code_share_nothing_between_requests(sqlite_url: str) -> None:
    robot = AuthInfo(user_id="robot", roles=["member"], claims={"teams": ["red"]})
    server = plain_app(auth.api_keys(keys={ROBOT: robot}))

    @server.action("POST", "/grow")
    async def grow(ctx: Context) -> Any:
        info = ctx.require_auth()
        info.roles.append("admin")  # type: ignore[attr-defined]
        info.claims["teams"].append("blue")
        return [list(info.roles), info.claims["teams"]]

    async with serving(server, sqlite_url) as http:
        for _ in range(2):
            answer = await http.post("/api/grow", headers={"X-API-Key": ROBOT})
            assert data_of(answer) == [["member", "admin"], ["red", "blue"]]


# -- the doctor


async def test_the_doctor_finds_credentials_nobody_asks_about_and_passwords_that_end_nothing() -> None:
    class Person(Model, operations=["read", "update"]):
        password: str = field(writeonly=True)

    def server(*entries: Any, ends: bool, **options: Any) -> Server:
        tokens, keys = auth.Tokens(SECRET, issuer="us"), auth.ApiKeys()
        server = plain_app(tokens.bearer(**options), auth.api_keys(store=keys, **options), *entries)
        server.register(Person)
        tokens.mount(server)
        keys.mount(server)
        entry = service.hash_field("password", ends=tokens if ends else None)
        server.pipeline.service.register(entry, models=[Person])
        return server

    async def found(server: Server) -> list[str]:
        return [code for code in codes_of(await declared(server)) if code in ("T109", "T116")]

    assert await found(server(ends=False)) == ["T109", "T109", "T116"]
    assert await found(server(auth.verify(read_user), ends=True)) == []
    assert await found(server(ends=True, verify=read_user)) == []
