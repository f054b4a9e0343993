"""The panel in a real Chromium: light, dark, narrow, without scripts, by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.attacks import ATTACKS
from tests.kit.chromium import Watch, accessibility_problems, chromium
from tests.kit.panel import EMAIL, PASSWORD
from tests.kit.processes import run_program, serve_process

ROOT = Path(__file__).parents[2]
APP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.kit.bookshop import make_shop
from typing import Literal
from maniflex import Model, field
from maniflex.admin import Inline, ModelAdmin, Number, Series
from tests.kit.attacks import ATTACKS

class Remark(Model, versioned=True):
    text: str = field(filterable=True, sortable=True)
    kind: Literal[tuple(ATTACKS[:40])] = field(default=ATTACKS[0], filterable=True)
    extra: dict = field(default_factory=dict)

server = make_shop(time_zone="Europe/Berlin", title="Shop")
server.register(Remark)
server.declared_panel.add(
    ModelAdmin("Author", inlines=(Inline("Book", columns=("title", "status", "sold", "stock"), max_rows=5),)),
    ModelAdmin(Remark, page_size=200, columns=("text", "kind", "extra")),
)
server.config = server.config.with_(database="sqlite:///shop.db", access_log=False)

@server.declared_panel.card("Orders")
async def orders(ctx):
    return Number(1234, delta=2)

@server.declared_panel.card("Sales", size="large")
async def sales(ctx):
    return Series([(n, n % 7) for n in range(30)])
"""
SEED = """
import asyncio, os, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from app import ATTACKS, Remark, server
from tests.kit.bookshop import Author, Book, Tag, BookTag
from tests.kit.panel import add_superuser
from maniflex.admin.tables import AdminUser

XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'

async def main():
    async with server.lifespan(role="client"):
        await add_superuser(server)
        author = await server.db(Author).create(name="Ursula Le Guin")
        await server.db(Author).create(name=XSS)
        tag = await server.db(Tag).create(name="sf")
        for n in range(45):
            book = await server.db(Book).create(title=f"Book {n:02}", author_id=author.id, stock=n)
        await server.db(Book).update(book.id, title="Changed once", subtitle=XSS, extra={"x": XSS})
        await server.db(BookTag).create(book_id=book.id, tag_id=tag.id)
        for text in ATTACKS:
            remark = await server.db(Remark).create(text=text, extra={text: text})
        remark = await server.db(Remark).update(remark.id, text=" ".join(ATTACKS), extra={"x": ATTACKS})
        print(book.id, author.id, remark.id)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Site:
    url: str
    book: str
    author: str
    remark: str


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("panel")
    (directory / "app.py").write_text(APP.replace("sqlite:///shop.db", site_database))
    with run_program(SEED, directory) as program:
        book, author, remark = program.hear_rest()[-1].split()
    with serve_process(directory) as served:
        yield Site(f"http://127.0.0.1:{served.port}", book, author, remark)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def sign_in(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/admin/")
    page.fill("#username", EMAIL)
    page.fill("#password", PASSWORD)
    page.press("#password", "Enter")
    page.wait_for_url("**/admin/")


PAGES = (
    "/", "/books", "/books?f_status=draft&sort=title:asc", "/books?q=changed", "/books?trash=1", "/books/new",
    "/books/{id}", "/books/{id}/edit", "/books/{id}/delete", "/books/{id}/history", "/books/{id}/history/1",
    "/authors/{author}/edit", "/-/audit", "/-/views", "/-/account", "/-/search?q=book", "/-/pick/authors",
    "/authors", "/nope",
)  # fmt: skip


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_every_page_is_quiet_accessible_and_fits(site: Site, browser: Browser, look: str) -> None:
    size = {"width": 390, "height": 844} if look == "narrow" else {"width": 1280, "height": 860}
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        color_scheme="dark" if look == "dark" else "light",
        bypass_csp=False,
    )
    page = context.new_page()
    watch = Watch(page, site.url)
    page.goto(f"{site.url}/admin/-/login")
    troubles = {"/-/login": accessibility_problems(page)}
    sign_in(page, site)
    for path in PAGES:
        page.goto(f"{site.url}/admin{path.replace('{id}', site.book).replace('{author}', site.author)}")
        page.wait_for_load_state("networkidle")
        troubles[path] = accessibility_problems(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            troubles[path].append(f"it is {width} wide")
        assert page.evaluate("window.marker") is None, path
    context.close()
    expected = ["error: Failed to load resource: the server responded with a status of 404 (Not Found)"]
    assert [one for one in watch.trouble if one not in expected] == []
    assert {path: found for path, found in troubles.items() if found} == {}


def test_the_work_of_a_day_without_scripts(site: Site, browser: Browser) -> None:
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


def test_everything_by_keyboard_alone(site: Site, browser: Browser) -> None:
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


def test_a_double_click_on_save_makes_one_record(site: Site, browser: Browser) -> None:
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


def test_a_cell_is_changed_in_place(site: Site, browser: Browser) -> None:
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


def test_five_hundred_texts_stay_texts(site: Site, browser: Browser) -> None:
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
    record = f"/admin/remarks/{site.remark}"
    for path in (record, f"{record}/edit", f"{record}/history", f"{record}/delete", "/admin/remarks/new"):
        page.goto(site.url + path)
        page.wait_for_load_state("networkidle")
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


def test_rows_of_a_form_are_added_by_a_click(site: Site, browser: Browser) -> None:
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


def test_controls_say_at_once_what_does_not_fit_and_what_is_not_there(site: Site, browser: Browser) -> None:
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
