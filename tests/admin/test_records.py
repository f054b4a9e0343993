"""Deleting and restoring, many records at once, actions, history, audit, cards and own pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import Context, Model, Server, field
from maniflex.admin import AdminContext, Message, ModelAdmin, Number, Series
from maniflex.admin.panel import panel_routes
from maniflex.admin.tables import AdminEvent
from maniflex.middleware import auth
from tests.kit.bookshop import Author, Book, BookTag, Tag, make_shop
from tests.kit.panel import add_superuser, text_of, visiting


async def test_a_record_shows_all_that_may_be_seen(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        author = await server.db(Author).create(name="Ursula")
        book = await server.db(Book).create(title="A book", author_id=author.id, pin="4711")
        page = await browser.get(f"/books/{book.id}")
        assert f'href="/admin/authors/{author.id}"' in page
        assert "Ursula" in text_of(page)
        assert "4711" not in page
        assert "hidden-default" not in page
        assert f"/api/books/{book.id}" in text_of(page)
        parent = await browser.get(f"/authors/{author.id}")
        assert f'href="/admin/books?f_author_id={author.id}"' in parent
        assert "1 record" in text_of(parent)
        await browser.get("/books/nobody", 404)


async def test_delete_tells_before_what_stands_in_the_way(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        author = await server.db(Author).create(name="Ursula")
        for n in range(3):
            await server.db(Book).create(title=f"Book {n}", author_id=author.id)
        page = await browser.get(f"/authors/{author.id}/delete")
        assert "stand in the way" in text_of(page)
        assert "3 records" in text_of(page)
        refused = await browser.post(f"/authors/{author.id}/delete")
        assert refused.status_code == 409
        assert await server.db(Author).count() == 1


async def test_a_deleted_record_is_in_the_trash_and_comes_back(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="A book")
        await browser.get(f"/books/{book.id}/delete")
        assert await browser.send(f"/books/{book.id}/delete", {"reason": "a duplicate"}) == "/books"
        assert await server.db(Book).count() == 0
        trash = await browser.get("/books?trash=1")
        assert "A book" in text_of(trash)
        assert 'data-label="Deleted at"' in trash
        assert 'data-label="Deleted by"><span>ada@example.org</span>' in trash
        assert "deleted" in text_of(await browser.get(f"/books/{book.id}"))
        await browser.send(f"/books/{book.id}/restore")
        assert await server.db(Book).count() == 1
        other = await server.db(Book).create(title="By code")
        await server.db(Book).delete(other.id)
        assert 'data-label="Deleted by"><span>–</span>' in await browser.get("/books?trash=1")
        events = {e.action: e for e in await server.db(AdminEvent).list({"record_id": book.id})}
        assert set(events) == {"delete", "restore"}
        assert events["delete"].reason == "a duplicate"


async def test_many_records_are_looked_at_first_and_then_changed(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        ids = [(await server.db(Book).create(title=f"Book {n}")).id for n in range(5)]
        await browser.get("/books")
        controls: dict[str, Any] = {"ids": ids[:3], "action": "set", "set.status": "published"}
        page = await browser.post("/books/bulk", controls)
        assert "3 records would change, 0 would not" in text_of(page.text)
        assert await server.db(Book).count({"status": "published"}) == 0
        assert await server.db(AdminEvent).count({"action": "update"}) == 0
        confirmed = {"ids": ids[:3], "action": "set", "set.status": "published", "confirm": "1"}
        await browser.send("/books/bulk", confirmed)
        assert await server.db(Book).count({"status": "published"}) == 3
        assert await server.db(AdminEvent).count({"action": "update"}) == 3
        wrong = await browser.post("/books/bulk", {"ids": ids[:3], "action": "set", "set.price": "-1"})
        assert "0 records would change, 3 would not" in text_of(wrong.text)
        everything = {"all": "1", "action": "delete", "query": "f_status=draft"}
        page = await browser.post("/books/bulk", everything)
        assert "2 records would change" in text_of(page.text)
        chosen = re.findall(r'name="ids" value="([^"]+)"', page.text)
        await browser.send("/books/bulk", {"ids": chosen, "action": "delete", "confirm": "1"})
        assert await server.db(Book).count() == 3
        for forged in ({"action": "drop"}, {"action": "set", "set.views": "9"}):
            assert (await browser.post("/books/bulk", {"ids": ids, **forged})).status_code == 404
        assert (await browser.post("/books/bulk", {"action": "delete"})).status_code == 422


class Discount(BaseModel):
    percent: int
    why: str = ""


def with_actions() -> Server:
    server = make_shop()
    admin = server.declared_panel
    assert admin is not None

    @admin.action(Book, label="Publish", on="records", confirm="Publish {count} books?")
    async def publish(ctx: AdminContext, ids: Sequence[str]) -> str:
        for one in ids:
            await ctx.call("PATCH", f"/api/books/{one}", json={"status": "published"})
        return f"{len(ids)} published"

    @admin.action(Book, label="Discount", on="record", form=Discount)
    async def discount(ctx: AdminContext, ids: Sequence[str]) -> Message:
        return Message(f"{ctx.form.percent} % off", "warning")

    @server.action("POST", "/books/{id}/reprint", request=Discount)
    async def reprint(ctx: Context) -> dict[str, Any]:
        return {"by": ctx.auth and ctx.auth.auth_method, "percent": ctx.body.percent}

    return server


async def test_actions_run_as_the_person_and_are_noted(database_url: str) -> None:
    server = with_actions()
    async with visiting(server, database_url) as browser:
        ids = [(await server.db(Book).create(title=f"Book {n}")).id for n in range(2)]
        await browser.get("/books")
        controls: dict[str, Any] = {"ids": ids, "action": "action:publish"}
        assert "Publish 2 books?" in text_of((await browser.post("/books/bulk", controls)).text)
        await browser.send("/books/bulk", {**controls, "confirm": "1"})
        assert "2 published" in text_of(await browser.get("/books"))
        assert await server.db(Book).count({"status": "published"}) == 2
        page = await browser.get(f"/books/{ids[0]}")
        assert "Discount" in text_of(page)
        assert "Reprint" in text_of(page)
        assert 'name="f.percent"' in await browser.get(f"/books/{ids[0]}/action/discount")
        wrong = await browser.post(f"/books/{ids[0]}/action/discount", {"f.percent": "much"})
        assert (wrong.status_code, 'aria-invalid="true"' in wrong.text) == (422, True)
        await browser.send(f"/books/{ids[0]}/action/discount", {"f.percent": "10"})
        assert "10 % off" in text_of(await browser.get(f"/books/{ids[0]}"))
        wrong = await browser.post(f"/books/{ids[0]}/action/reprint", {"f.percent": "much"})
        assert (wrong.status_code, 'aria-invalid="true"' in wrong.text) == (422, True)
        await browser.send(f"/books/{ids[0]}/action/reprint", {"f.percent": "5"})
        await browser.get(f"/books/{ids[0]}/action/nope", 404)
        assert await server.db(AdminEvent).count({"action": "action"}) == 3


async def test_history_shows_changes_and_leads_back(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="First", stock=1)
        await server.db(Book).update(book.id, title="Second")
        await server.db(Book).update(book.id, title="Third", stock=3)
        page = await browser.get(f"/books/{book.id}/history")
        text = text_of(page)
        assert "Version 3" in text
        assert "Second" in text
        assert f"/books/{book.id}/edit?version=3" not in page  # the newest
        assert f"/books/{book.id}/edit?version=1" in page
        form = await browser.get(f"/books/{book.id}/edit?version=2")
        assert 'value="Second"' in form
        assert (await server.db(Book).read(book.id)).title == "Third"
        await browser.get(f"/books/{book.id}/history/1")
        await browser.send(f"/books/{book.id}/history/1/restore")
        stored = await server.db(Book).read(book.id)
        assert (stored.title, stored.stock) == ("First", 1)
        assert len((await browser.http.get(f"/api/books/{book.id}/history")).json()["data"]) == 4
        await browser.get(f"/books/{book.id}/history/99", 404)
        await browser.get("/authors/x/history", 404)


async def test_the_audit_lists_what_was_done_and_nothing_else(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await browser.get("/authors/new")
        await browser.send("/authors", {"f.name": "Ursula", "_seen": "{}", "_key": "k1"})
        refused = await browser.post("/authors", {"f.name": "", "_seen": "{}", "_key": "k2"})
        assert refused.status_code == 422
        [event] = await server.db(AdminEvent).list({"action": "create"})
        assert event.request_id
        assert event.actor_name == "ada@example.org"
        page = text_of(await browser.get("/-/audit?f_action=create&f_model=Author"))
        assert "Author" in page
        assert event.request_id in page
        await browser.get("/-/audit?f_nope=1", 400)
        assert "Recent changes" in text_of(await browser.get("/"))
        for method in ("POST", "PATCH", "DELETE"):
            answer = await browser.http.request(method, f"/api/admin_event/{event.id}", json={})
            assert answer.status_code == 404


async def test_cards_and_own_pages(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "sales.html").write_text(
        '{% extends "layout.html" %}{% block main %}<h1>{{ view.total }}</h1>{% endblock %}'
    )
    server = make_shop(templates=tmp_path)
    admin = server.declared_panel
    assert admin is not None

    @admin.card("Orders today")
    async def orders(ctx: AdminContext) -> Number:
        return Number(1234, delta=2, link="/books")

    @admin.card("Plot")
    async def plot(ctx: AdminContext) -> Series:
        return Series([(0, 1), (1, 3)])

    @admin.card("Broken")
    async def broken(ctx: AdminContext) -> str:
        raise RuntimeError("a secret reason")

    @admin.page("/sales", title="Sales", template="sales.html")
    async def sales(ctx: AdminContext) -> dict[str, Any]:
        answer = await ctx.call("GET", "/api/books")
        return {"total": f"<b>{answer.meta['total']}</b>"}

    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/")
        assert 'data-load="/admin/-/card/orders"' in page
        assert "Sales" in text_of(page)
        assert "1,234" in text_of(await browser.get("/-/card/orders"))
        assert "<path d=" in await browser.get("/-/card/plot")
        failed = await browser.get("/-/card/broken")
        assert "This card failed" in text_of(failed)
        assert "secret reason" not in failed
        assert "&lt;b&gt;0&lt;/b&gt;" in await browser.get("/sales")
        assert ">0<" in (await browser.get("/-/count/books")).replace("\n", "")


async def test_templates_and_assets_are_replaced_one_by_one(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "panel.css").write_text("body { color: red }")
    (tmp_path / "assets" / "panel.js").write_text("say(panelTexts.saving)")
    from importlib.resources import files

    layout = (files("maniflex.admin") / "templates" / "layout.html").read_text()
    own = layout.replace("{% block brand %}", "<p>ours: {{ layout.title }}</p>{% block brand %}")
    (tmp_path / "templates" / "layout.html").write_text(own)
    server = make_shop(templates=tmp_path / "templates", assets=tmp_path / "assets", title="<b>Shop</b>")
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/books")
        assert "<p>ours: &lt;b&gt;Shop&lt;/b&gt;</p>" in page
        assert "There are no Books yet" in text_of(page)
        sheet = page.split('rel="stylesheet" href="')[1].partition('"')[0]
        assert (await browser.http.get(sheet)).text == "body { color: red }"
        module = (await browser.http.get("/admin/static/panel.js")).text
        assert re.fullmatch(r'globalThis\.panelTexts = \{.*"saving".*\};\nsay\(panelTexts\.saving\)', module)


def test_no_template_can_switch_escaping_off(tmp_path: Path) -> None:
    from jinja2 import TemplateError

    from maniflex.admin.rendering import make_environment, render

    (tmp_path / "a.html").write_text("{% autoescape false %}{{ x }}{% endautoescape %}")
    (tmp_path / "b.html").write_text("{{ x|safe }}")
    environment = make_environment(tmp_path)
    for name in ("a.html", "b.html"):
        with pytest.raises(TemplateError):
            render(environment, name, {"x": "<script>"})


async def test_a_panel_that_only_shows_has_no_form_and_no_route_that_writes(database_url: str) -> None:
    server = make_shop(read_only=True)
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="A book")
        path = f"/books/{book.id}"
        for page in ("/books", path, f"{path}/history", "/books?trash=1", "/"):
            text = await browser.get(page)
            main = text[text.index("<main") :].replace('action="/admin/-/views"', "")
            assert re.findall(r'method="post" action="([^"]*)"', main) == [], page
        for page in ("/books/new", f"{path}/edit", f"{path}/delete", f"{path}/action/x"):
            await browser.get(page, 404)
        admin = server.declared_panel
        assert admin is not None
        assert all(route.path.startswith("/-/") for route in panel_routes(admin) if route.method == "POST")
        for page in ("/books", path, f"{path}/delete", f"{path}/restore", "/books/bulk"):
            assert (await browser.post(page, {"f.title": "x"})).status_code == 404
        assert (await server.db(Book).read(book.id)).title == "A book"


class Article(Model):
    title: str = field(filterable=True)
    owner_id: str | None = field(default=None, relation=None)


async def test_rules_of_the_application_hide_buttons_and_refuse_forged_forms(database_url: str) -> None:
    server = Server()
    server.register(Article)
    server.pipeline.auth.register(auth.jwt("s" * 40))
    server.pipeline.auth.register(auth.require_role("editor"), models=[Article], operations="update")
    server.admin()
    async with visiting(server, database_url) as browser:
        article = await server.db(Article).create(title="One")
        path = f"/articles/{article.id}"
        assert "One" in text_of(await browser.get("/articles"))
        assert f'href="/admin{path}/edit"' not in await browser.get(path)
        forged = await browser.post(path, {"f.title": "Two", "_seen": '{"title": "One"}'})
        assert (forged.status_code, "FORBIDDEN" in forged.text) == (403, True)
        await browser.send("/-/logout")
        await add_superuser(server, "ed@example.org", roles=("superuser", "editor"))
        await browser.sign_in("ed@example.org")
        assert f'href="/admin{path}/edit"' in await browser.get(path)
        await browser.send(path, {"f.title": "Two", "_seen": '{"title": "One"}'})
        assert (await server.db(Article).read(article.id)).title == "Two"


async def test_an_own_authenticator_that_refuses_is_named(sqlite_url: str) -> None:
    server = Server()
    server.register(Article)

    @server.pipeline.auth.middleware(name="read_badge")
    async def read_badge(ctx: Context, next: Any) -> None:
        if ctx.header("x-badge") is None:
            ctx.abort(401, "UNAUTHORIZED", "no badge")
        await next()

    server.admin()
    async with visiting(server, sqlite_url) as browser:
        page = text_of(await browser.get("/articles", 401))
        assert "read_badge" in page
        assert "ctx.in_process" in page


async def test_a_model_admin_narrows(sqlite_url: str) -> None:
    server = make_shop(exclude=["BookTag"])
    admin = server.declared_panel
    assert admin is not None
    admin.add(
        ModelAdmin(
            Book,
            label="{title} ({status})",
            columns=("title", "price"),
            filters=("status",),
            can_delete=False,
        )
    )
    async with visiting(server, sqlite_url) as browser:
        book = await server.db(Book).create(title="A book")
        page = await browser.get(f"/books/{book.id}")
        assert "A book (draft)" in text_of(page)
        assert "Delete Book" not in text_of(page)
        await browser.get(f"/books/{book.id}/delete", 404)
        await browser.get("/book_tags", 404)
        assert 'name="f_price~gte"' not in await browser.get("/books")


def test_what_a_browser_loads_is_small() -> None:
    from importlib.resources import files

    assets = files("maniflex.admin") / "assets"
    module, sheet = ((assets / name).read_text() for name in ("panel.js", "panel.css"))
    assert len(module.splitlines()) <= 700
    assert len(module.encode()) + len(sheet.encode()) <= 80_000


async def test_three_hundred_models_fit_on_the_front_page(sqlite_url: str) -> None:
    server = Server()
    for number in range(300):
        server.register(
            type(f"Kind{number}", (Model,), {"__annotations__": {"name": str}, "__module__": "app"})
        )
    server.admin()
    async with visiting(server, sqlite_url) as browser:
        assert len((await browser.get("/")).encode()) < 60_000
        assert len((await browser.get("/kind7s")).encode()) < 60_000


@pytest.mark.parametrize(("parents", "children"), [(101, 0), (2, 60), (2, 20)])
async def test_a_delete_of_much_wants_its_number_typed(
    database_url: str, parents: int, children: int
) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        books = [(await server.db(Book).create(title=f"Book {n}")).id for n in range(parents)]
        tag = await server.db(Tag).create(name="red")
        for book in books[:2]:
            for _ in range(children):
                await server.db(BookTag).create(book_id=book, tag_id=tag.id)
        await browser.get("/books")
        controls: dict[str, Any] = {"ids": books, "action": "delete"}
        page = (await browser.post("/books/bulk", controls)).text
        is_much = parents + 2 * children > 100
        assert ('name="typed"' in page) == is_much
        assert f"Delete {parents} records" in text_of(page)
        assert ("go with it" in text_of(page)) == bool(children)
        for typed in ("", "1", f"{parents}0"):
            if is_much:
                answer = await browser.post("/books/bulk", {**controls, "confirm": "1", "typed": typed})
                assert answer.status_code == 422
                assert "type the number" in text_of(answer.text)
                assert await server.db(Book).count() == parents
        await browser.send("/books/bulk", {**controls, "confirm": "1", "typed": f" {parents} "})
        assert await server.db(Book).count() == 0


async def test_chosen_records_are_exported(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        ids = [(await server.db(Book).create(title=f"Book {n:03}", stock=n)).id for n in range(150)]
        page = await browser.get("/books")
        assert '<option value="export">' in page
        place = await browser.send(
            "/books/bulk", {"ids": ids[:120], "action": "export", "query": "sort=stock:asc"}
        )
        content = await browser.get(place)
        assert "Book 119" in content
        assert "Book 120" not in content
        assert len(content.splitlines()) == 121
        everything = {"all": "1", "action": "export", "query": "f_stock~gte=100&page=2"}
        content = await browser.get(await browser.send("/books/bulk", everything))
        assert len(content.splitlines()) == 51
        assert "hidden-default" not in content
        assert (await browser.post("/books/bulk", {"action": "export"})).status_code == 422
        assert await server.db(AdminEvent).count({"action": "export"}) == 2
        # where the model has no export there is no such choice
        author = await server.db(Author).create(name="Ada")
        assert '<option value="export">' not in await browser.get("/authors")
        forged = {"ids": [author.id], "action": "export"}
        assert (await browser.post("/authors/bulk", forged)).status_code == 404
