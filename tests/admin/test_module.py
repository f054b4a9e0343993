"""What the module of the panel says and allows in a real Chromium: its texts are the panel's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from playwright.sync_api import Browser, Page, expect

from maniflex.admin.texts import SCRIPT_TEXTS, SHARED_KEYS
from tests.kit.chromium import Watch
from tests.kit.panel_site import PanelSite, serve_site, sign_in
from tests.kit.workshop import OPERATIONS

APP = """
from maniflex import Model, field
from maniflex.admin.texts import SCRIPT_TEXTS, SHARED_KEYS
from tests.kit.bookshop import Author, Book, BookTag, Tag
from tests.kit.workshop import Workshop

class Note(Model):
    text: str = field(max_length=4, filterable=True)

own = {key: f"«{key}»" for key in (*SCRIPT_TEXTS, *SHARED_KEYS)}
own |= {"hits_found": "{count} Treffer", "remove_hit": "ohne {name}", "seen_ago": "vor {seconds} s"}
shop = Workshop(texts=own)
server = shop.server
server.register(Author, Tag, BookTag, Book, Note)
server.config = server.config.with_(
    database=DATABASE, storage="memory:", access_log=False, background=False
)

async def seed():
    author = await server.db(Author).create(name="Ursula Le Guin")
    tag = await server.db(Tag).create(name="sf")
    book = await server.db(Book).create(title="The Dispossessed", author_id=author.id)
    await server.db(BookTag).create(book_id=book.id, tag_id=tag.id)
    return {"book": book.id}
"""
KEYS = (
    "key_search", "key_palette", "key_rows", "key_select", "key_open", "key_edit", "key_new", "key_save",
    "key_help", "key_close",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("module")) as one:
        yield one


@pytest.fixture
def page(site: PanelSite, browser: Browser) -> Iterator[Page]:
    context = browser.new_context(permissions=["clipboard-write"])
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    yield page
    context.close()
    assert [one for one in watch.trouble if "of 401" not in one and "of 422" not in one] == []


def test_the_module_asks_for_the_texts_that_it_is_given() -> None:
    module = (files("maniflex.admin") / "assets" / "panel.js").read_text()
    assert set(re.findall(r"\bt\(\"(\w+)\"", module)) == {*SCRIPT_TEXTS, *SHARED_KEYS}


def test_a_form_speaks_with_the_words_of_the_panel(site: PanelSite, page: Page) -> None:
    live = page.locator("#live")
    page.goto(site.page("/books/{book}/edit"))
    author, tags = page.get_by_role("combobox", name="Author"), page.get_by_role("combobox", name="Tags")
    expect(author).to_have_attribute("placeholder", "«pick_hint»")
    expect(tags).to_have_attribute("placeholder", "«pick_another»")
    expect(page.get_by_role("button", name="ohne sf")).to_be_visible()
    author.fill("nobody of this name")
    expect(page.get_by_role("listbox").filter(has_text="«nothing_matches»")).to_be_visible()
    expect(live).to_have_text("0 Treffer")
    price = page.locator("[id='f.price']")
    price.fill("-1")
    assert price.evaluate("one => one.validationMessage") == "«outside_bounds»"
    price.fill("1")
    page.locator("form.form").evaluate("form => form.addEventListener('submit', (e) => e.preventDefault())")
    page.click("[data-save]")
    expect(live).to_have_text("«saving»")
    page.context.clear_cookies()
    author.fill("ursula")
    expect(live).to_have_text("«session_ended»")


def test_keys_palette_and_copies_speak_with_the_words_of_the_panel(site: PanelSite, page: Page) -> None:
    live = page.locator("#live")
    page.goto(site.page("/books/{book}"))
    page.click("details.more > summary")
    page.click("[data-copy]")
    expect(live).to_have_text("«copied»")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="«keys»")
    expect(dialog.locator("h2")).to_have_text("«keys»")
    assert dialog.locator("td:last-child").all_text_contents() == [f"«{key}»" for key in KEYS]
    dialog.get_by_role("button", name="«close»").click()
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="«search»")
    expect(palette.get_by_role("combobox", name="«search»")).to_have_attribute(
        "placeholder", "«palette_hint»"
    )
    expect(palette.get_by_role("listbox", name="«hits»")).to_be_visible()
    expect(live).to_have_text(re.compile("[0-9]+ Treffer"))
    page.goto(site.page("/books"))
    cell = page.locator("td[data-label='Status']")
    cell.dblclick()
    cell.locator("select").select_option("archived")
    expect(live).to_have_text("«saved»")


def test_a_live_page_speaks_with_the_words_of_the_panel(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    sign_in(page, site)
    page.goto(site.page(f"{OPERATIONS}/"))
    page.route("**/numbers", lambda route: route.abort())
    with page.expect_event("requestfailed"):
        page.clock.run_for(2100)
    expect(page.locator("[data-live-state]")).to_have_text(re.compile("vor [0-9]+ s"))
    page.click("[data-live-pause]")
    expect(page.locator("[data-live-state]")).to_have_text("«paused»")
    context.close()


@pytest.mark.parametrize("text", ["😀😀😀😀", "a😀b😀"])
def test_a_text_that_the_api_takes_can_be_typed(site: PanelSite, page: Page, text: str) -> None:
    page.goto(site.page("/notes/new"))
    control = page.locator("[id='f.text']")
    control.press_sequentially(text)
    assert control.input_value() == text
    assert control.evaluate("one => one.checkValidity()") is True
    page.click("[data-save]")
    expect(page.locator("dl.facts")).to_contain_text(text)


def test_a_text_that_is_too_long_is_marked_and_refused_and_not_cut(site: PanelSite, page: Page) -> None:
    page.goto(site.page("/notes/new"))
    control = page.locator("[id='f.text']")
    control.press_sequentially("😀😀😀😀😀")
    control.press("Tab")
    assert control.evaluate("one => [one.matches(':user-invalid'), one.validationMessage]") == [
        True,
        "«too_long»",
    ]
    page.click("[data-save]")
    expect(page.locator("[id='f.text'][aria-invalid=true]")).to_have_value("😀😀😀😀😀")
