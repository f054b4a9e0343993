"""Tenants in the panel: superusers are of none, work in one that they choose or look across all."""

from __future__ import annotations

import pytest

from maniflex import AuthInfo, Model, Server, field, has_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.middleware import auth, db
from tests.kit.panel import Browser, add_superuser, text_of, visiting


class Firm(Model):
    name: str = field(filterable=True, sortable=True)


class Board(Model):
    firm_id: str = field(filterable=True, immutable=True)
    title: str = field(filterable=True, sortable=True)
    cards: list[Card] = has_many()


class Card(Model):
    firm_id: str = field(filterable=True, immutable=True)
    board_id: str = field(filterable=True)
    text: str = field(filterable=True)


def make_server(url: str) -> Server:
    server = Server(url)
    server.register(Firm, Board, Card)
    server.pipeline.auth.register(
        auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1", roles=["admin"])})
    )
    server.pipeline.auth.register(db.tenancy("firm_id", unless_role="superuser", shared=[Firm]))
    admin = server.admin(tenants=Firm, title="Panel")
    admin.add(ModelAdmin(Board, inlines=(Inline(Card, columns=("firm_id", "text")),)))
    return server


async def seed(server: Server) -> dict[str, str]:
    ids: dict[str, str] = {}
    for name in ("Acme", "Globex"):
        firm = await server.db(Firm).create(name=name)
        board = await server.db(Board).create(firm_id=firm.id, title=f"{name} board")
        ids |= {name: firm.id, f"{name} board": board.id}
    return ids


async def boards(browser: Browser) -> list[str]:
    page = text_of(await browser.get("/boards"))
    return [name for name in ("Acme board", "Globex board") if name in page]


async def test_a_superuser_looks_across_all_tenants_and_works_in_the_one_it_chooses(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        ids = await seed(server)
        await browser.sign_in()
        assert await boards(browser) == ["Acme board", "Globex board"]
        assert "Choose a tenant" in text_of(await browser.get("/"))

        await browser.get("/-/tenant")
        await browser.send("/-/tenant", {"tenant": ids["Acme"]})

        page = text_of(await browser.get("/"))
        assert "Acme" in page
        assert ids["Acme"] not in page  # it is called by its name
        assert await boards(browser) == ["Acme board"]
        await browser.get(f"/boards/{ids['Globex board']}", status=404)

        form = await browser.get("/boards/new")
        assert 'name="f.firm_id"' not in form  # the rule says whose it is
        await browser.send("/boards", {"f.title": "New", "_seen": "{}", "_key": "one"})
        [made] = await server.db(Board).list({"title": "New"})
        assert made.firm_id == ids["Acme"]

        other = text_of(await browser.get("/-/tenant"))
        assert "Globex" in other  # what can be chosen does not depend on what was chosen
        await browser.send("/-/tenant", {"tenant": ids["Globex"]})
        assert await boards(browser) == ["Globex board"]
        await browser.send("/-/tenant", {"tenant": ""})
        assert await boards(browser) == ["Acme board", "Globex board"]
        assert 'name="f.firm_id"' in await browser.get("/boards/new")


async def test_rows_of_a_form_belong_to_the_tenant_that_was_chosen(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        ids = await seed(server)
        await browser.sign_in()
        await browser.get("/-/tenant")
        await browser.send("/-/tenant", {"tenant": ids["Acme"]})
        form = await browser.get(f"/boards/{ids['Acme board']}/edit")
        assert 'name="inline.cards.0.firm_id"' not in form
        row = {"inline.cards.0.text": "Fuel", "inline.cards.0._seen": "{}"}
        await browser.send(f"/boards/{ids['Acme board']}", {**row, "_seen": "{}", "_key": "two"})
        [card] = await server.db(Card).list()
        assert (card.firm_id, card.text) == (ids["Acme"], "Fuel")


@pytest.mark.parametrize("kind", ["superuser", "own login"])
async def test_somebody_with_a_tenant_is_offered_no_other(sqlite_url: str, kind: str) -> None:
    async def login(ctx: object, username: str, password: str) -> AuthInfo:
        return AuthInfo(user_id="eve", roles=["superuser"], tenant_id=firm_id)

    server = make_server(sqlite_url)
    assert server.declared_panel is not None
    if kind == "own login":
        server.declared_panel.auth = login
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        ids = await seed(server)
        firm_id = ids["Acme"]
        if kind == "superuser":
            await add_superuser(server, tenant_id=firm_id)
        await browser.sign_in()
        page = text_of(await browser.get("/"))
        assert "Acme" in page
        assert "tenant" not in page.lower()
        await browser.get("/-/tenant", status=403)
        for tenant in (ids["Globex"], ""):
            assert (await browser.post("/-/tenant", {"tenant": tenant})).status_code == 403


async def test_a_caller_of_the_api_is_bound_as_before(sqlite_url: str) -> None:
    """Only who chose a tenant is bound in spite of its role."""
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        ids = await seed(server)
        for auth_info, expected in (
            (AuthInfo(user_id="a", roles=["superuser"], tenant_id=ids["Acme"]), 2),
            (AuthInfo(user_id="a", roles=["superuser"], tenant_id=ids["Acme"], tenant_chosen=True), 1),
            (AuthInfo(user_id="a", roles=["admin"], tenant_id=ids["Acme"]), 1),
        ):
            answer = await server.call("GET", "/api/boards", auth=auth_info)
            assert answer.meta is not None
            assert answer.meta["total"] == expected
        del browser
