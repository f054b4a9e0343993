"""An erased person is out: tokens, refresh tokens, API keys and sessions of the panel are refused."""

from __future__ import annotations

from datetime import timedelta

from maniflex import Model, Server, field
from maniflex.admin.tables import AdminSession
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.catalogue.auth.kit import NOW, SECRET, app, serving
from tests.catalogue.auth.signing_in import bearing, login, refresh, sign_in
from tests.kit.bookshop import make_shop
from tests.kit.http import data_of, error_of
from tests.kit.panel import visiting

ADA = "ada@example.com"


class Person(Model, table="er_people", subject="id"):
    email: str | None = field(default=None, personal=True)


def a_server() -> Server:
    tokens, keys = auth.Tokens(SECRET, issuer="us", revoker=auth.SqlRevoker()), auth.ApiKeys()
    server = app(tokens.bearer(), auth.api_keys(store=keys))
    server.register(Person)
    tokens.mount(server, login=login)
    keys.mount(server)
    return server


async def test_tokens_and_keys_of_an_erased_person_are_refused(database_url: str) -> None:
    server, clock = a_server(), FakeClock(NOW)
    async with serving(server, database_url, clock) as http:
        ada, bob = await sign_in(http), await sign_in(http, "bob@example.com")
        key = data_of(await http.post("/api/api_keys", json={"name": "ci"}, headers=bearing(ada)), 201)
        with_key = {"X-API-Key": key["key"]}
        assert data_of(await http.get("/api/me", headers=with_key))["user_id"] == ADA
        clock.advance(timedelta(seconds=1))

        report = await server.erasure.erase("person-1", user_id=ADA)

        assert (report.counts["refresh_token"], report.counts["api_key"]) == (1, 1)
        for headers in (bearing(ada), with_key):
            assert (await http.get("/api/me", headers=headers)).status_code == 401
        error_of(await refresh(http, ada["refresh_token"]), 401, "INVALID_REFRESH_TOKEN")
        assert data_of(await http.get("/api/me", headers=bearing(bob)))["user_id"] == "bob@example.com"
        data_of(await refresh(http, bob["refresh_token"]))


async def test_the_panel_asks_an_erased_person_to_sign_in(sqlite_url: str) -> None:
    server = make_shop()
    server.register(Person)
    async with visiting(server, sqlite_url) as browser:
        [session] = await server.db(AdminSession).list()

        report = await server.erasure.erase("person-1", user_id=session.user_id)

        assert report.counts["admin_session"] == 1
        answer = await browser.http.get("/admin/", follow_redirects=False)
        assert answer.status_code in (302, 303), answer.text
        assert "login" in answer.headers["location"]
