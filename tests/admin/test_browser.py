"""The panel in a real Chromium: light, dark, narrow, without scripts, by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.attacks import ATTACKS
from tests.kit.bookshop import make_shop
from tests.kit.chromium import Watch, accessibility_problems, look_problems
from tests.kit.panel import is_about_work
from tests.kit.panel_site import PanelSite, addresses, serve_site, sign_in

APP = """
from typing import Literal
from maniflex import Model, field
from maniflex.admin import Inline, ModelAdmin, Number, Series
from tests.kit.attacks import ATTACKS
from tests.kit.bookshop import Author, Book, BookTag, Tag, make_shop

XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'

class Remark(Model, versioned=True, export=True, max_export_rows=100):
    text: str = field(filterable=True, sortable=True)
    kind: Literal[tuple(ATTACKS[:40])] = field(default=ATTACKS[0], filterable=True)
    extra: dict = field(default_factory=dict)

server = make_shop(time_zone="Europe/Berlin", title="Shop", tenants=Author)
server.register(Remark)
admin = server.declared_panel
admin.add(
    ModelAdmin(Author, inlines=(Inline(Book, columns=("title", "status", "sold", "stock"), max_rows=5),)),
    ModelAdmin(Book, can_import=True),
    ModelAdmin(Remark, page_size=200, columns=("text", "kind", "extra")),
)
server.config = server.config.with_(database=DATABASE, access_log=False)

@admin.action(Book, on="record", name="stamp", confirm="Stamp it?")
async def stamp(ctx, ids):
    return "stamped"

@admin.card("Orders")
async def orders(ctx):
    return Number(1234, delta=2)

@admin.card("Sales", size="large")
async def sales(ctx):
    return Series([(n, n % 7) for n in range(30)])

async def seed():
    author = await server.db(Author).create(name="Ursula Le Guin")
    await server.db(Author).create(name=XSS)
    tag = await server.db(Tag).create(name="sf")
    for n in range(45):
        book = await server.db(Book).create(title=f"Book {n:02}", author_id=author.id, stock=n)
    await server.db(Book).update(book.id, title="Changed once", subtitle=XSS, extra={"x": XSS})
    await server.db(BookTag).create(book_id=book.id, tag_id=tag.id)
    for text in ATTACKS:
        remark = await server.db(Remark).create(text=text, extra={text: text})
    await server.db(Remark).update(remark.id, text=" ".join(ATTACKS), extra={"x": ATTACKS})
    return {"book": book.id, "author": author.id, "remark": remark.id}
"""
# The addresses of each page, by its route; a page that has no row fails the walk.
PAGES = {
    "/": ["/"],
    "/{model}": ["/books", "/books?f_status=draft&sort=title:asc", "/books?q=changed", "/books?trash=1",
                 "/authors"],
    "/{model}/new": ["/books/new"],
    "/{model}/import": ["/books/import"],
    "/{model}/export": ["/remarks/export?format=csv"],
    "/{model}/{id}": ["/books/{book}", "/nope/{book}"],
    "/{model}/{id}/edit": ["/books/{book}/edit", "/authors/{author}/edit"],
    "/{model}/{id}/delete": ["/books/{book}/delete"],
    "/{model}/{id}/action/{name}": ["/books/{book}/action/stamp"],
    "/{model}/{id}/history": ["/books/{book}/history"],
    "/{model}/{id}/history/{version}": ["/books/{book}/history/1"],
    "/-/pick/{model}": ["/-/pick/authors"],
    "/-/account": ["/-/account"],
    "/-/audit": ["/-/audit"],
    "/-/search": ["/-/search?q=book"],
    "/-/tenant": ["/-/tenant"],
    "/-/transfers": ["/-/transfers"],
    "/-/views": ["/-/views"],
}  # fmt: skip
# The login is looked at before there is a person, an import in tests/admin/test_transfer_browser.py.
ELSEWHERE = ("/-/login", "/-/transfers/{id}")
REFUSED = "error: Failed to load resource: the server responded with a status of "


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("panel"), site_database) as one:
        yield one


def test_every_page_is_quiet_accessible_and_fits(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(bypass_csp=False)
    page = context.new_page()
    watch = Watch(page, site.url)
    page.goto(site.page("/-/login"))
    troubles = {"/-/login": look_problems(page)}
    sign_in(page, site)
    for path in addresses(PAGES, make_shop(), lambda route: not is_about_work(route), ELSEWHERE):
        page.goto(site.page(path))
        watch.wait_until_quiet()
        troubles[path] = look_problems(page)
        assert page.evaluate("window.marker") is None, path
    context.close()
    expected = [f"{REFUSED}404 (Not Found)", f"{REFUSED}413 (Request Entity Too Large)"]
    assert [one for one in watch.trouble if one not in expected] == []
    assert {path: found for path, found in troubles.items() if found} == {}


def test_the_work_of_a_day_without_scripts(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    page.click("text=Authors")
    page.click("text=New Author")
    page.click("button:has-text('Save') >> nth=0")
    assert page.locator("[aria-invalid=true]").count() == 1
    page.fill("[name='f.name']", "Stanisław Lem")
    page.click("button:has-text('Save') >> nth=0")
    assert page.locator("h1").inner_text() == "Stanisław Lem"
    page.goto(f"{site.url}/admin/books")
    page.click("th a:has-text('Title')")
    expect(page.locator("td.first").first).to_contain_text("Book 00")
    page.click("a[rel=next_page]")
    page.click("a[rel=last_page]")
    assert page.locator("tbody tr").count() > 0
    page.goto(f"{site.url}/admin/books?f_title=Book+07")
    page.click("td.first a")
    page.click("a:has-text('Edit')")
    page.fill("[name='f.stock']", "many")
    page.fill("[name='f.price']", "-1")
    page.click("button:has-text('Save') >> nth=0")
    assert page.locator("[aria-invalid=true]").count() == 2
    page.fill("[name='f.stock']", "70")
    page.fill("[name='f.price']", "7.70")
    page.click("button:has-text('Save') >> nth=0")
    assert "7.70" in page.locator("dl.facts").inner_text()
    url = page.url
    page.click("a:has-text('Delete Book')")
    page.click("button:has-text('Delete Book')")
    page.goto(f"{site.url}/admin/books?trash=1")
    assert "Book 07" in page.locator("tbody").inner_text()
    page.goto(url)
    page.click("button:has-text('Restore')")
    assert "The record is back" in page.locator("[role=status]").inner_text()
    context.close()


def test_everything_by_keyboard_alone(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    keys = page.keyboard
    keys.press("Control+k")
    expect(page.locator("dialog[open]")).to_be_visible()
    keys.type("book 12")
    expect(page.locator("dialog .hits a", has_text="Book 12")).to_be_visible()
    keys.press("Enter")
    page.wait_for_url(re.compile(r"/books/[0-9a-f-]{36}$"))
    keys.press("e")
    page.wait_for_url("**/edit")
    page.locator("[name='f.title']").focus()
    keys.press("Control+a")
    keys.type("By keyboard")
    combo = page.get_by_role("combobox", name="Author")
    combo.focus()
    keys.press("Control+a")
    keys.type("ursul")
    expect(page.get_by_role("option", name="Ursula")).to_be_visible()
    keys.press("ArrowDown")
    keys.press("Enter")
    keys.press("Control+s")
    page.wait_for_url(re.compile(r"/books/[0-9a-f-]{36}$"))
    expect(page.locator("h1")).to_have_text("By keyboard")
    page.goto(f"{site.url}/admin/books")
    keys.press("j")
    keys.press("j")
    keys.press("x")
    assert page.locator("tbody input:checked").count() == 1
    keys.press("?")
    expect(page.locator("#keys")).to_be_visible()
    keys.press("Escape")
    page.get_by_role("button", name="Sign out").focus()
    keys.press("Enter")
    page.wait_for_url("**/-/login")
    assert watch.trouble == []
    context.close()


def test_a_double_click_on_save_makes_one_record(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, site)
    page.goto(f"{site.url}/admin/authors/new")
    page.fill("[name='f.name']", "Twice")
    page.locator("[data-save]").dblclick(no_wait_after=True)
    page.wait_for_url(re.compile(r"/authors/[0-9a-f-]{36}$"))
    page.goto(f"{site.url}/admin/authors?q=Twice")
    expect(page.locator("tbody tr")).to_have_count(1)
    context.close()


def test_a_cell_is_changed_in_place(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    page.goto(f"{site.url}/admin/books?f_title=Book+20")
    cell = page.locator("td[data-label='Status']")
    cell.dblclick()
    cell.locator("select").select_option("archived")
    expect(cell).to_have_text("archived")
    page.reload()
    expect(page.locator("td[data-label='Status']")).to_have_text("archived")
    assert watch.trouble == []
    context.close()


def test_five_hundred_texts_stay_texts(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    page.on("dialog", lambda dialog: watch.trouble.append(f"dialog: {dialog.message}"))
    sign_in(page, site)
    texts: set[str] = set()
    address: str | None = "/admin/remarks"
    while address:
        page.goto(site.url + address)
        texts |= set(page.locator("tbody td:nth-child(2)").all_text_contents())
        address = page.locator("a:has-text('Next')").get_attribute("href") if len(texts) < 490 else None
    shown = {text.strip().removesuffix("…") for text in texts}
    missing = [one for one in ATTACKS[:-1] if not any(one.strip().startswith(text) for text in shown if text)]
    assert missing == []
    assert len(shown) > 470  # some differ only in white space
    record = f"/admin/remarks/{site.ids['remark']}"
    for path in (record, f"{record}/edit", f"{record}/history", f"{record}/delete", "/admin/remarks/new"):
        page.goto(site.url + path)
        watch.wait_until_quiet()
        assert page.url == site.url + path
        assert page.evaluate("window.marker") is None, path
    page.goto(f"{site.url}{record}/edit")
    assert page.locator("[name='f.text']").input_value().startswith(ATTACKS[0])
    page.keyboard.press("Control+k")
    page.locator("dialog input").fill(ATTACKS[1])
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.marker") is None
    assert watch.trouble == []
    context.close()


def test_rows_of_a_form_are_added_by_a_click(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    page.goto(f"{site.url}/admin/authors/new")
    page.fill("[name='f.name']", "Octavia Butler")
    page.fill("[name='inline.books.0.title']", "Kindred")
    page.click("button:has-text('Add Book')")
    page.keyboard.type("Dawn")
    page.click("[data-save]")
    expect(page.locator("h1")).to_have_text("Octavia Butler")
    page.click("a:has-text('View Books')")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.go_back()
    page.click("a:has-text('Edit')")
    page.check("[name='inline.books.1._delete']")
    page.click("[data-save]")
    page.click("a:has-text('View Books')")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert watch.trouble == []
    context.close()


def test_controls_say_at_once_what_does_not_fit_and_what_is_not_there(
    site: PanelSite, browser: Browser
) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    page.goto(f"{site.url}/")
    expect(page.locator("h1")).to_have_text("It runs")
    assert page.evaluate("getComputedStyle(document.querySelector('ul')).listStyleType") == "none"
    sign_in(page, site)
    page.goto(f"{site.url}/admin/books/new")
    for name, wrong, right in (("price", "-1", "2"), ("title", "x", "xy")):
        control = page.locator(f"[id='f.{name}']")
        for text, is_marked in ((wrong, True), (right, False)):
            control.fill("")
            control.press_sequentially(text)
            control.press("Tab")
            assert control.evaluate("one => one.matches(':user-invalid')") is is_marked, (name, text)
    author = page.get_by_role("combobox", name="Author")
    author.fill("nobody of this name")
    expect(page.get_by_role("listbox").filter(has_text="Nothing matches.")).to_be_visible()
    assert accessibility_problems(page) == []
    author.press("ArrowDown")
    author.press("Enter")
    assert page.url.endswith("/admin/books/new")
    assert page.locator("[id='f.author_id']").input_value() == ""
    assert watch.trouble == []
    context.close()
