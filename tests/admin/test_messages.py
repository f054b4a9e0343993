"""The words of the panel as somebody new reads them: no name twice, and no question without its subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniflex import Context, DeclarationError, Model, Next, Server, WithDeletedAt, field, has_many
from maniflex.admin import AdminContext, Inline, ModelAdmin
from tests.admin.test_forms import controls_of
from tests.kit.bookshop import make_shop
from tests.kit.panel import text_of, visiting
from tests.kit.statements import statements_of


class Poet(Model):
    name: str = field(min_length=2)
    poems: list[Poem] = has_many()


class Poem(Model, WithDeletedAt, versioned=True, restore=True):
    title: str = field(filterable=True, min_length=2)
    body: str = ""
    poet_id: str | None = field(default=None, filterable=True, on_delete="restrict")


def make_server() -> Server:
    server = Server()
    server.register(Poet, Poem)
    server.admin().add(ModelAdmin(Poet, inlines=(Inline(Poem, columns=("title",)),)))
    return server


async def test_a_refusal_beside_a_field_does_not_say_its_name_again(sqlite_url: str) -> None:
    async with visiting(make_server(), sqlite_url) as browser:
        controls = controls_of(await browser.get("/poems/new"))
        one = text_of((await browser.post("/poems", controls | {"f.title": ""})).text)
        assert "One thing needs your attention: Title: is required" in one
        controls = controls_of(await browser.get("/poets/new")) | {"f.name": "x", "inline.poems.0.title": "y"}
        two = text_of((await browser.post("/poets", controls)).text)
        assert "Name: must have at least 2 characters" in two
        assert 'field "' not in one + two


async def test_a_question_says_what_would_be_done(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        poem = await server.db(Poem).create(title="Ozymandias")
        await browser.get("/poems")
        chosen = {"ids": poem.id, "action": "set"}
        look = text_of((await browser.post("/poems/bulk", chosen | {"set.title": "Sonnet"})).text)
        assert "1 record would change, 0 would not." in look
        assert "Set Title to Sonnet?" in look
        assert "Change 1 record " in look
        empty = text_of((await browser.post("/poems/bulk", chosen | {"set.body": ""})).text)
        assert 'Set Body to ""?' in empty
        delete = text_of((await browser.post("/poems/bulk", {"ids": poem.id, "action": "delete"})).text)
        assert "Delete 1 record " in delete


async def test_a_delete_that_cannot_be_says_so_first_and_leads_to_what_is_in_the_way(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        poet = await server.db(Poet).create(name="Shelley")
        await server.db(Poem).create(title="Ozymandias", poet_id=poet.id)
        page = await browser.get(f"/poets/{poet.id}/delete")
        words = text_of(page)
        assert "deleted for good" not in words
        assert words.index("cannot be deleted") < words.index("stand in the way")
        assert f'href="/admin/poems?f_poet_id={poet.id}">1 record' in page


async def test_a_delete_that_a_rule_refuses_says_the_code_of_the_refusal(sqlite_url: str) -> None:
    server = make_server()

    @server.pipeline.service.middleware(models=[Poet], operations="delete")
    async def keep(ctx: Context, next: Next) -> None:
        ctx.abort(409, "STILL_READ", "people still read this poet")

    async with visiting(server, sqlite_url) as browser:
        poet = await server.db(Poet).create(name="Shelley")
        await browser.get(f"/poets/{poet.id}/delete")
        refused = await browser.post(f"/poets/{poet.id}/delete")
        assert refused.status_code == 409
        assert "STILL_READ people still read this poet" in text_of(refused.text)


async def test_the_audit_names_records_as_lists_do(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        controls = controls_of(await browser.get("/poems/new")) | {"f.title": "Ozymandias"}
        path = await browser.send("/poems", controls)
        for page in ("/-/audit", "/"):
            text = await browser.get(page)
            assert "create Poem Ozymandias" in text_of(text)
            assert path.removeprefix("/poems/") in text


async def test_the_audit_reads_of_records_only_what_names_them(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        controls = controls_of(await browser.get("/books/new")) | {"f.title": "The Dispossessed"}
        await browser.send("/books", controls)
        for page in ("/-/audit", "/"):
            with statements_of(server) as statements:
                assert "create Book The Dispossessed" in text_of(await browser.get(page))
            [names] = [one for one in statements if "FROM books" in one.replace('"', "") and " IN " in one]
            assert "extra" not in names, names


async def test_two_versions_of_a_long_text_are_compared_word_by_word(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        text = "I met a traveller from an antique land, who said: two vast and trunkless legs of stone"
        poem = await server.db(Poem).create(title="Ozymandias", body=text)
        await server.db(Poem).update(poem.id, body=text.replace("antique", "ancient"))
        page = await browser.get(f"/poems/{poem.id}/history?a=1&b=2")
        assert "<del>antique </del><ins>ancient </ins>" in page


def test_a_page_whose_template_is_missing_stops_the_start(tmp_path: Path) -> None:
    server = make_server()
    assert server.declared_panel is not None
    server.declared_panel.templates = tmp_path

    @server.declared_panel.page("/sales", title="Sales", template="sales.html")
    async def sales(ctx: AdminContext) -> dict[str, object]:
        return {}

    with pytest.raises(DeclarationError, match=r"page /sales: there is no template 'sales\.html'"):
        server.seal()
    (tmp_path / "sales.html").write_text('{% extends "layout.html" %}')
    server.seal()
