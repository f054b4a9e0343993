"""Pages at 200 %, on the smallest screens and with text from right to left, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, StorageState, ViewportSize

from tests.kit.panel import is_about_events
from tests.kit.panel_site import PanelSite, addresses, serve_site, sign_in
from tests.kit.workshop import Workshop

APP = """
from maniflex.admin import Inline, ModelAdmin
from tests.kit.bookshop import Author, Book, BookTag, Tag
from tests.kit.workshop import Order, Workshop

LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
RIGHT = "كتاب الجبر (1, 2) a"
TURNED = "\\u202eturned round"

shop = Workshop(time_zone="Europe/Berlin", title="Shop", tenants=Author)
server = shop.server
server.register(Author, Tag, BookTag, Book)
shop.admin.add(
    ModelAdmin(Author, inlines=(Inline(Book, columns=("title", "status", "sold", "stock"), max_rows=5),)),
    ModelAdmin(Book, columns=("title", "status", "price", "author_id", "subtitle"), can_import=True),
)
server.config = server.config.with_(
    database=DATABASE, storage="memory:", access_log=False, background=False
)

@shop.admin.action(Book, on="record", name="stamp", confirm="Stamp it?")
async def stamp(ctx, ids):
    return "stamped"

async def seed():
    for name, title in (("Le Guin", "The Dispossessed"), ("محمد بن موسى", RIGHT), (TURNED, TURNED)):
        author = await server.db(Author).create(name=name)
        book = await server.db(Book).create(
            title=title, author_id=author.id, subtitle=LONG, extra={"key": LONG * 3}, stock=2**40
        )
    await server.db(Book).update(book.id, extra={"key": LONG * 2, "other": [1, 2]}, subtitle=LONG[::-1])
    order = await server.db(Order).create(title=LONG)
    failed = await shop.fail(about=order)
    async with server.transaction():
        message = await server.outbox.enqueue("order.placed", {"n": 1, "x": LONG * 3}, about=order)
    await server.outbox.drainer().drain()
    await server.schedules.declare()
    [schedule] = await server.schedules.list()
    return {
        "book": book.id, "author": author.id, "order": order.id, "failed": failed, "message": message.id,
        "schedule": schedule.id,
    }
"""
# The addresses of each page, by its route; a page that has no row fails the walk.
PAGES = {
    "/": ["/"],
    "/{model}": ["/books?f_status=draft&sort=title:asc", "/books?trash=1"],
    "/{model}/new": ["/books/new"],
    "/{model}/import": ["/books/import"],
    "/{model}/{id}": ["/books/{book}", "/nope/{book}"],
    "/{model}/{id}/edit": ["/books/{book}/edit", "/authors/{author}/edit"],
    "/{model}/{id}/delete": ["/books/{book}/delete", "/authors/{author}/delete"],
    "/{model}/{id}/action/{name}": ["/books/{book}/action/stamp"],
    "/{model}/{id}/history": ["/books/{book}/history?a=1&b=2"],
    "/{model}/{id}/history/{version}": ["/books/{book}/history/2"],
    "/{model}/{id}/work": ["/orders/{order}/work"],
    "/-/pick/{model}": ["/-/pick/authors"],
    "/-/account": ["/-/account"],
    "/-/audit": ["/-/audit"],
    "/-/search": ["/-/search?q=turned"],
    "/-/tenant": ["/-/tenant"],
    "/-/transfers": ["/-/transfers"],
    "/-/views": ["/-/views"],
    "/-/operations": ["/-/operations?over=14d"],
    "/-/operations/": ["/-/operations/"],
    "/-/operations/runs": ["/-/operations/runs"],
    "/-/operations/runs/{id}": ["/-/operations/runs/{failed}"],
    "/-/operations/runs/new": ["/-/operations/runs/new?type=email.receipt.v1"],
    "/-/operations/schedules": ["/-/operations/schedules"],
    "/-/operations/schedules/new": ["/-/operations/schedules/new"],
    "/-/operations/schedules/{id}": ["/-/operations/schedules/{schedule}"],
    "/-/operations/schedules/{id}/edit": ["/-/operations/schedules/{schedule}/edit"],
    "/-/operations/outbox": ["/-/operations/outbox"],
    "/-/operations/outbox/{id}": ["/-/operations/outbox/{message}"],
    "/-/operations/scheduled": ["/-/operations/scheduled"],
    "/-/operations/jobs": ["/-/operations/jobs"],
    "/-/operations/processes": ["/-/operations/processes"],
    "/-/operations/doctor": ["/-/operations/doctor"],
}
# The login is looked at before there is a person. An import that runs, and an export that is too large for an
# answer, are pages of tests/admin/test_transfer_browser.py and test_browser.py on a narrow screen.
ELSEWHERE = ("/-/login", "/-/transfers/{id}", "/{model}/export")

# A window of 1280 pixels at 200 % has 640 of CSS, each two pixels wide.
ZOOMED: ViewportSize = {"width": 640, "height": 430}
SMALL: ViewportSize = {"width": 320, "height": 430}
# The width of a page that has to be scrolled sideways, and the controls that lie outside of it: what cannot
# be scrolled to cannot be pressed.
OUTSIDE = """() => [
    ...[document.documentElement.scrollWidth].filter((width) => width > innerWidth),
    ...[...document.querySelectorAll("main a, main button, main input, main select")]
        .filter((one) => one.checkVisibility())
        .filter((one) => !one.closest(".scroll, .away, .drop:not([open])"))
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .map((one) => one.outerHTML.slice(0, 120)),
]"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("zoom")) as one:
        yield one


@pytest.fixture(scope="module")
def cookies(site: PanelSite, browser: Browser) -> StorageState:
    """Those of somebody who signed in once, for all tests."""
    context = browser.new_context(viewport=SMALL, device_scale_factor=2)
    page = context.new_page()
    page.goto(site.page("/-/login"))
    assert page.evaluate(OUTSIDE) == []
    sign_in(page, site)
    state = context.storage_state()
    context.close()
    return state


def test_nothing_scrolls_sideways_at_twice_the_size_or_on_the_smallest_screen(
    site: PanelSite, browser: Browser, cookies: StorageState
) -> None:
    context = browser.new_context(viewport=ZOOMED, device_scale_factor=2, storage_state=cookies)
    page = context.new_page()
    trouble = {}
    sizes = (ZOOMED, SMALL)
    for path in addresses(PAGES, Workshop().server, lambda route: not is_about_events(route), ELSEWHERE):
        page.goto(site.page(path))
        for size in sizes:
            page.set_viewport_size(size)
            if found := page.evaluate(OUTSIDE):
                trouble[path, size["width"]] = found
        sizes = sizes[::-1]  # the next page begins in the window that this one ended in
    context.close()
    assert trouble == {}


def test_the_work_of_a_moment_at_twice_the_size(
    site: PanelSite, browser: Browser, cookies: StorageState
) -> None:
    context = browser.new_context(viewport=ZOOMED, device_scale_factor=2, storage_state=cookies)
    page = context.new_page()
    page.goto(site.page("/"))
    page.click("summary:has-text('Menu')")
    page.click("nav >> text=Books")
    page.click("details.filters-box > summary")
    page.select_option("#f_status", "draft")
    page.click("form.filters button.primary")
    page.wait_for_url("**f_status=draft**")
    page.click("text=The Dispossessed")
    page.click("text=Edit")
    page.fill("[id='f.stock']", "7")
    page.click("[data-save]")
    page.wait_for_selector("text=Saved")
    context.close()


def test_text_from_right_to_left_breaks_no_row(
    site: PanelSite, browser: Browser, cookies: StorageState
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 860}, storage_state=cookies)
    page.goto(site.page("/books?sort=id:asc"))
    cells = """() => [...document.querySelectorAll("#list tbody tr")].map((row) =>
        [...row.cells].map((cell) => [cell.getBoundingClientRect().x, cell.getBoundingClientRect().width]))"""
    plain, right, turned = page.evaluate(cells)
    assert plain == right == turned
    # Text begins where the text of other rows begins, and its brackets and digits keep the reading order.
    starts = page.evaluate(
        """() => [...document.querySelectorAll("#list td.first a")].map((a) => a.getBoundingClientRect().x)"""
    )
    assert len(set(starts)) == 1, starts
    places = page.evaluate(
        """() => {
            const text = document.querySelectorAll("#list td.first a span")[1].firstChild;
            const at = (letter) => {
                const range = document.createRange(), place = text.data.indexOf(letter);
                range.setStart(text, place);
                range.setEnd(text, place + 1);
                return range.getBoundingClientRect().x;
            };
            return [at("ك"), at("("), at("1"), at("a")];
        }"""
    )
    assert places == sorted(places, reverse=True), places  # from the right to the left

    # A letter that turns text round turns nothing that stands beside it.
    page.goto(site.page("/books/{book}/delete"))
    crumbs = page.locator(".crumbs a")
    assert crumbs.nth(0).bounding_box()["x"] < crumbs.nth(1).bounding_box()["x"]  # type: ignore[index]
    page.goto(site.page("/books/{book}/edit"))
    page.fill("[id='f.stock']", "3")
    page.click("[data-save]")
    page.wait_for_selector("text=Saved")
    page.goto(site.page("/-/audit?f_model=Book"))
    row = page.locator("table td:has(a)").first
    kind, link = row.locator("span").first.bounding_box(), row.locator("a").bounding_box()
    assert kind is not None
    assert link is not None
    assert kind["x"] + kind["width"] <= link["x"]
    page.close()
