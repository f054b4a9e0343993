"""Who gets into the panel, and how: superusers, the application's own login, its auth step, an open panel."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.admin import Inline, ModelAdmin
from maniflex.admin.panel import panel_routes
from maniflex.admin.tables import AdminEvent, AdminSession, AdminUser
from maniflex.errors import DeclarationError
from maniflex.middleware import auth
from maniflex.testing import FakeClock, client
from tests.kit.panel import EMAIL, PASSWORD, Browser, add_superuser, text_of, visiting


class Post(Model):
    title: str = field(filterable=True, sortable=True)


def make_server(**options: object) -> Server:
    server = Server()
    server.register(Post)
    server.admin(**options)  # type: ignore[arg-type]  # of many types
    return server


async def test_a_fresh_panel_is_locked_and_says_what_to_type(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url, signed_in=False) as browser:
        front = await browser.http.get("/admin/")
        assert (front.status_code, front.headers["location"]) == (302, "/admin/-/login")
        assert "createsuperuser" in await browser.get("/-/login")
        assert await server.db(AdminUser).count() == 0
        refused = await browser.sign_in("admin", "admin")
        assert refused.status_code == 401
        assert "wrong" in text_of(refused.text)
        assert await server.db(AdminSession).count() == 0


async def test_a_superuser_signs_in_and_out(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        page = await browser.get("/")
        assert "Posts" in text_of(page)
        assert EMAIL in text_of(page)
        cookie = browser.http.cookies["maniflex_admin"]
        assert await browser.send("/-/logout") == "/-/login"
        browser.http.cookies.set("maniflex_admin", cookie, path="/admin")
        await browser.get("/", 302)
        actions = [event.action for event in await server.db(AdminEvent).list(sorts="created_at")]
        assert actions == ["login", "logout"]


async def test_the_database_keeps_no_token_of_a_session(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        token = browser.http.cookies["maniflex_admin"]
        [session] = await server.db(AdminSession).list()
        assert token not in str(vars(session))
        assert session.id != token
        assert len(session.id) == 64


async def test_cookies_are_for_the_panel_alone(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server)
        response = await browser.sign_in()
        [cookie] = [c for c in response.headers.get_list("set-cookie") if c.startswith("maniflex_admin=")]
        assert {"Path=/admin", "HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
        assert "Secure" not in cookie


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
async def test_only_a_trusted_proxy_makes_a_cookie_secure(sqlite_url: str, trusted: tuple[str, ...]) -> None:
    server = Server(trusted_proxies=trusted)
    server.admin()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        forwarded = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.7"}
        await browser.get("/-/login", headers=forwarded)
        forwarded["cookie"] = f"_csrf={browser.token}"  # a secure one, which this client would keep to itself
        response = await browser.post(
            "/-/login", {"username": EMAIL, "password": PASSWORD}, headers=forwarded
        )
        if trusted:
            assert response.status_code == 303
            cookies = response.headers.get_list("set-cookie")
            assert all("Secure" in cookie for cookie in cookies)
        else:  # somebody forwards plain http from another machine
            assert response.status_code == 403
            assert "https" in text_of(response.text)


async def test_a_login_over_plain_http_from_another_machine_is_refused(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False):
        await add_superuser(server)
        transport = httpx.ASGITransport(app=server, client=("192.0.2.9", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            other = Browser(http)
            response = await other.sign_in()
            assert response.status_code == 403
            assert "https" in text_of(response.text)
        assert await server.db(AdminSession).count() == 0


async def test_both_timeouts_end_a_session(database_url: str) -> None:
    clock = FakeClock()
    server = make_server(session_lifetime=timedelta(hours=3), idle_timeout=timedelta(hours=1))
    async with visiting(server, database_url, clock=clock) as browser:
        for _ in range(3):
            clock.advance(timedelta(minutes=50))
            await browser.get("/")
        clock.advance(timedelta(minutes=50))  # never idle, but three hours old
        await browser.get("/", 302)
        await browser.sign_in()
        clock.advance(timedelta(minutes=61))
        await browser.get("/", 302)


async def test_the_sixth_wrong_password_has_to_wait_on_every_replica(database_url: str) -> None:
    clock = FakeClock()
    server, replica = make_server(), make_server()
    server.config = server.config.with_(metrics_enabled=True)
    async with visiting(server, database_url, signed_in=False, clock=clock) as browser:
        await add_superuser(server)
        for _ in range(5):
            assert (await browser.sign_in(password="wrong")).status_code == 401
        sixth = await browser.sign_in(password="wrong")
        assert sixth.status_code == 429
        assert 0 < int(sixth.headers["retry-after"]) <= 900
        assert (await browser.sign_in()).status_code == 429  # also with the right one
        async with visiting(replica, database_url, signed_in=False, clock=clock) as other:
            assert (await other.sign_in()).status_code == 429
        clock.advance(timedelta(seconds=int(sixth.headers["retry-after"])))
        assert (await browser.sign_in()).status_code == 303
        page = (await browser.http.get("/metrics")).text
    for outcome, count in (("ok", 1), ("refused", 5), ("limited", 2)):
        assert f'maniflex_admin_logins_total{{outcome="{outcome}"}} {count}.0' in page


async def test_twenty_failures_close_an_address(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        for number in range(20):
            assert (await browser.sign_in(f"who{number}@example.org", "wrong")).status_code == 401
        assert (await browser.sign_in("another@example.org", "wrong")).status_code == 429


async def sign_in_from(server: Server, address: str, password: str = PASSWORD) -> int:
    """The status of a login by https from this address."""
    transport = httpx.ASGITransport(app=server, client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
        return (await Browser(http).sign_in(password=password)).status_code


async def test_the_addresses_of_one_network_are_one_guesser(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False):
        await add_superuser(server)
        statuses = [await sign_in_from(server, f"2001:db8::{n:x}", "wrong") for n in range(1, 9)]
        assert statuses == [401] * 5 + [429] * 3
        assert await sign_in_from(server, "2001:db8::ffff") == 429
        assert await sign_in_from(server, "::ffff:192.0.2.1", "wrong") == 401
        assert await sign_in_from(server, "2001:db8:0:1::1") == 303


async def test_strangers_cannot_keep_an_owner_out(sqlite_url: str) -> None:
    """Guesses from many networks are limited together, and do not count where the owner has been before."""
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False):
        await add_superuser(server)
        assert await sign_in_from(server, "192.0.2.1") == 303
        guesses = [await sign_in_from(server, f"198.51.100.{n // 5}", "wrong") for n in range(60)]
        assert guesses == [401] * 50 + [429] * 10
        assert await sign_in_from(server, "203.0.113.9") == 429
        assert await sign_in_from(server, "192.0.2.1") == 303
        wrong = [await sign_in_from(server, "192.0.2.1", "wrong") for _ in range(6)]
        assert wrong == [401] * 5 + [429]


async def test_a_session_is_no_way_to_guess_the_password(sqlite_url: str) -> None:
    """Guesses at the current password are counted as those at the login are, and together with them."""
    server = make_server()
    better = "another fine phrase"
    new = {"new_password": better, "new_password_again": better}
    async with visiting(server, sqlite_url) as browser:
        weak = {"password": PASSWORD, "new_password": "short", "new_password_again": "short"}
        for _ in range(6):  # no guesses
            assert (await browser.post("/-/account/password", weak)).status_code == 422
        for n in range(5):
            answer = await browser.post("/-/account/password", {"password": f"guess {n}", **new})
            assert answer.status_code == 422
        right = await browser.post("/-/account/password", {"password": PASSWORD, **new})
        assert (right.status_code, int(right.headers["retry-after"]) > 0) == (429, True)
        assert "Too many attempts" in text_of(right.text)
        browser.http.cookies.clear()
        assert (await browser.sign_in()).status_code == 429


async def test_an_unknown_account_takes_as_long_as_a_wrong_password(sqlite_url: str) -> None:
    server = make_server()
    seconds: dict[str, list[float]] = {EMAIL: [], "nobody@example.org": []}
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        await browser.get("/-/login")
        for _ in range(5):
            for name, times in seconds.items():
                begin = time.process_time()
                response = await browser.post("/-/login", {"username": name, "password": "wrong"})
                times.append(time.process_time() - begin)
                assert response.status_code == 401
    known, unknown = (statistics.median(times) for times in seconds.values())
    assert 0.5 < known / unknown < 2  # a login that hashes nothing takes a twentieth


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
async def test_a_login_leads_nowhere_else(sqlite_url: str, target: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        await browser.get("/-/login", params={"next": target})
        response = await browser.post("/-/login", {"username": EMAIL, "password": PASSWORD, "next": target})
        assert response.headers["location"] == "/admin/"


async def test_a_login_leads_to_the_page_that_was_asked_for(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        first = await browser.http.get("/admin/posts?f_title=a%20b")
        assert first.headers["location"].endswith("/-/login?next=%2Fposts%3Ff_title%3Da%2520b")
        await browser.get(first.headers["location"].removeprefix("/admin"))
        response = await browser.post(
            "/-/login", {"username": EMAIL, "password": PASSWORD, "next": "/posts?f_title=a%20b"}
        )
        assert response.headers["location"] == "/admin/posts?f_title=a%20b"


async def test_every_form_needs_its_token(database_url: str) -> None:
    """Every POST route: without a token, with that of another session, from a page of another site."""
    server = make_server()
    async with visiting(server, database_url) as browser:
        foreign = Browser(browser.http)
        await add_superuser(server, "eve@example.org")
        async with client_of(server) as other_http:
            other = Browser(other_http)
            await other.sign_in("eve@example.org")
            foreign.token = other.token
        before = await server.db(AdminEvent).count()
        for path in post_paths(server):
            missing = await browser.post(path, {"_csrf": ""})
            assert (missing.status_code, "CSRF_TOKEN_MISSING" in missing.text) == (403, True), path
            mismatch = await foreign.post(path)
            assert (mismatch.status_code, "CSRF_TOKEN_MISMATCH" in mismatch.text) == (403, True), path
            for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
                rejected = await browser.post(path, headers=headers)
                assert (rejected.status_code, "CSRF_ORIGIN_REJECTED" in rejected.text) == (403, True), path
        assert await server.db(AdminEvent).count() == before
        assert len(await server.db(AdminSession).list()) == 2


def post_paths(server: Server) -> list[str]:
    admin = server.declared_panel
    assert admin is not None
    filled = {"{model}": "posts", "{id}": "1", "{name}": "x", "{version}": "1", "{field}": "title"}
    paths = []
    for route in panel_routes(admin):
        path = route.path
        for name, value in filled.items():
            path = path.replace(name, value)
        if route.method == "POST":
            paths.append(path)
    return paths


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """One more browser of a server that is running."""
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def test_a_new_password_ends_the_other_sessions(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser, client_of(server) as other_http:
        other = Browser(other_http)
        await other.sign_in()
        controls = {"password": PASSWORD, "new_password": "short", "new_password_again": "short"}
        weak = await browser.post("/-/account/password", controls)
        assert (weak.status_code, "at least 12 characters" in text_of(weak.text)) == (422, True)
        wrong = await browser.post("/-/account/password", {**controls, "password": "x"})
        assert "current password is wrong" in text_of(wrong.text)
        better = "another fine phrase"
        controls |= {"new_password": better, "new_password_again": better}
        assert await browser.send("/-/account/password", controls) == "/-/account"
        await browser.get("/")
        await other.get("/", 302)
        assert (await other.sign_in()).status_code == 401
        assert (await other.sign_in(password=better)).status_code == 303
        await browser.send("/-/account/logout-all")
        await other.get("/", 302)


async def test_somebody_without_the_role_stays_outside(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, roles=("editor",))
        response = await browser.sign_in()
        assert (response.status_code, "superuser" in text_of(response.text)) == (403, True)
        assert await server.db(AdminSession).count() == 0


async def test_a_superuser_who_is_disabled_falls_out(database_url: str) -> None:
    clock = FakeClock()
    server = make_server()
    async with visiting(server, database_url, clock=clock) as browser:
        [user] = await server.db(AdminUser).list()
        await server.db(AdminUser).update(user.id, active=False)
        clock.advance(timedelta(seconds=61))
        await browser.get("/", 302)
        assert (await browser.sign_in()).status_code == 401


class Staff:
    """An application's own people."""

    fields = ()

    def __init__(self) -> None:
        self.roles = {"grace": ("superuser",)}
        self.asked = 0

    async def login(self, ctx: Context, form: Mapping[str, str]) -> AuthInfo | None:
        roles = self.roles.get(form["username"])
        if roles is None or form["password"] != "sesame":
            return None
        return AuthInfo(user_id=form["username"], roles=roles)

    async def refresh(self, auth: AuthInfo) -> AuthInfo | None:
        self.asked += 1
        roles = self.roles.get(auth.user_id)
        return None if roles is None else AuthInfo(user_id=auth.user_id, roles=roles)


async def test_people_of_the_application_sign_in_and_fall_out_within_a_minute(database_url: str) -> None:
    staff, clock = Staff(), FakeClock()
    server = make_server(auth=staff)
    async with visiting(server, database_url, signed_in=False, clock=clock) as browser:
        assert (await browser.sign_in("grace", "wrong")).status_code == 401
        assert (await browser.sign_in("grace", "sesame")).status_code == 303
        for _ in range(5):
            await browser.get("/")
        assert staff.asked == 0
        del staff.roles["grace"]
        clock.advance(timedelta(seconds=60))
        await browser.get("/", 302)


async def test_a_login_may_be_a_function(sqlite_url: str) -> None:
    async def login(ctx: Context, username: str, password: str) -> AuthInfo | None:
        return AuthInfo(user_id=username, roles=("superuser",)) if password == "sesame" else None

    server = make_server(auth=login)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        assert (await browser.sign_in("grace", "sesame")).status_code == 303
        assert "grace" in text_of(await browser.get("/"))


async def test_the_auth_step_of_the_application_may_decide(database_url: str) -> None:
    server = Server()
    server.register(Post)
    keys = {"k-admin": AuthInfo(user_id="a", roles=("superuser",)), "k-other": AuthInfo(user_id="b")}
    server.pipeline.auth.register(auth.api_keys(keys=keys))
    server.admin(auth="pipeline")
    async with client(server, database=database_url) as http:
        assert (await http.get("/admin/")).status_code == 401
        assert (await http.get("/admin/", headers={"x-api-key": "k-other"})).status_code == 403
        page = await http.get("/admin/", headers={"x-api-key": "k-admin"})
        assert (page.status_code, "Posts" in text_of(page.text)) == (200, True)
        login = await http.get("/admin/-/login")
        assert login.headers["location"] == "/admin/"


async def test_an_open_panel_answers_only_this_machine(sqlite_url: str) -> None:
    server = make_server(allow_unauthenticated=True)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        headers = {"host": "localhost:8080"}
        assert "This panel is open" in await browser.get("/", headers=headers)
        await browser.get("/", 403, headers={"host": "evil.example"})  # a name that leads here
        await browser.get("/", 403, headers={**headers, "x-forwarded-for": "192.0.2.7"})
        transport = httpx.ASGITransport(app=server, client=("192.0.2.9", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/admin/")).status_code == 403


def test_an_open_panel_does_not_start_for_other_machines() -> None:
    server = Server(host="0.0.0.0")
    server.admin(allow_unauthenticated=True)
    with pytest.raises(DeclarationError, match="works only on loopback"):
        server.seal()
    with pytest.raises(SystemExit, match="the panel is open"):
        run_openly()


def run_openly() -> None:
    server = Server()
    server.admin(allow_unauthenticated=True)
    server.run(host="0.0.0.0")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "/api/admin"}, "share its paths with path_prefix"),
        ({"path": "/docs"}, "share its paths with the API description"),
        ({"path": "admin"}, "is written like /admin"),
        ({"path": "/health"}, "share its paths with the probe"),
        ({"models": ["Pots"]}, "did you mean 'Post'"),
        ({"exclude": ["Nope"]}, "no model named 'Nope'"),
        ({"auth": "superusers"}, 'none of "superuser"'),
        ({"auth": lambda ctx: None}, "which it does not take"),
        ({"time_zone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
        ({"templates": "/no/such/place"}, "there is no directory"),
        ({"texts": {"sing_in": "x"}}, "did you mean 'sign_in'"),
    ],
)
def test_mistakes_of_the_declaration_stop_the_start(options: dict[str, object], problem: str) -> None:
    server = make_server(**options)
    with pytest.raises(DeclarationError, match=problem):
        server.seal()


def test_a_panel_is_declared_once_and_before_the_server_is_sealed() -> None:
    server = make_server()
    with pytest.raises(DeclarationError, match="called already"):
        server.admin()
    server.seal()
    admin = server.declared_panel
    assert admin is not None
    with pytest.raises(DeclarationError, match="sealed"):
        admin.card("late")(lambda ctx: None)
    sealed = Server()
    sealed.seal()
    with pytest.raises(DeclarationError, match="sealed"):
        sealed.admin()


async def test_unknown_paths_are_pages_and_assets_are_kept(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/no/such/page", 404)
        assert 'class="top"' in page  # inside the layout
        sheet = page.split('rel="stylesheet" href="')[1].partition('"')[0]
        asset = await browser.http.get(sheet)
        assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert asset.headers["content-type"] == "text/css; charset=utf-8"
        assert (await browser.http.get("/admin/static/../panel.py")).status_code in (302, 404)
        assert (await browser.http.get("/admin/static/nope.css")).status_code == 404


async def test_a_fragment_without_a_session_gets_no_login_page(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        page = await browser.get("/posts", 401, headers={"x-fragment": "1"})
        assert 'name="password"' not in page


async def test_a_panel_below_another_application_has_the_right_addresses(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False):
        await add_superuser(server)
        transport = httpx.ASGITransport(app=server, root_path="/mounted")
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            mounted = Browser(http, "/mounted/admin")
            response = await mounted.sign_in()
            assert response.headers["location"] == "/mounted/admin/"
            assert "Path=/mounted/admin;" in response.headers["set-cookie"]
            assert 'href="/mounted/admin/posts"' in await mounted.get("/")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": ("titel",)}, "did you mean 'title'"),
        ({"label": "{secret}"}, "secret field"),
        ({"sort": "note"}, "not sortable"),
        ({"filters": ("note",)}, "not filterable"),
        ({"widgets": {"note": "markdwn"}}, "none of text, textarea"),
        ({"inlines": (Inline("Post"),)}, "no has_many relation"),
        ({"page_size": 0}, "from 1 to 200"),
    ],
)
def test_mistakes_of_a_model_admin_stop_the_start(options: dict[str, object], problem: str) -> None:
    class Draft(Model):
        title: str = field(filterable=True, sortable=True)
        note: str = ""
        secret: str = field(default="", hidden=True)

    server = Server()
    server.register(Draft)
    server.admin().add(ModelAdmin(Draft, **options))  # type: ignore[arg-type]  # of many types
    with pytest.raises(DeclarationError, match=problem):
        server.seal()


async def test_nobody_uploads_before_signing_in(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        await browser.get("/-/login")
        controls = {"username": EMAIL, "password": PASSWORD}
        refused = await browser.post("/-/login", controls, files={"x": ("big.bin", bytes(100_000))})
        assert (refused.status_code, "CSRF_TOKEN_MISSING" in refused.text) == (403, True)
        huge = {"username": "x" * (server.config.max_body_size + 1), "password": "x"}
        assert (await browser.post("/-/login", huge)).status_code == 413
