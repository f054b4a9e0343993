"""Imports and their progress in a real Chromium: light, dark, narrow, and without scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.chromium import NARROW, WIDE, Watch, accessibility_problems
from tests.kit.panel_site import PanelSite, serve_site, sign_in

APP = """
from typing import Literal
from maniflex import Model, Server, field
from maniflex.admin import ModelAdmin

class Part(Model, export=True, max_export_rows=100):
    code: str = field(unique=True, filterable=True, sortable=True, min_length=2)
    name: str = field(default="", max_length=200)
    stock: int = field(default=0, min=0, filterable=True)
    state: Literal["new", "old"] = field(default="new", filterable=True)

server = Server(database=DATABASE, access_log=False)
server.register(Part)
server.admin(title="Parts").add(ModelAdmin(Part, can_import=True))

async def seed():
    return {}
"""
XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'
LINES = [f"p{n:04},Part {n},{n},new" for n in range(300)]


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("transfer"), site_database) as one:
        yield one


def choose_file(page: Page, site: PanelSite, *lines: str, head: str = "Code,Name,Stock,State") -> None:
    page.goto(site.page("/parts"))
    page.click("text=Import")
    content = "\r\n".join([head, *lines, ""]).encode()
    page.set_input_files("#file", {"name": f"{XSS[:40]}.csv", "mimeType": "text/csv", "buffer": content})
    page.click("text=Send the file")
    expect(page.locator("text=Check all lines")).to_be_visible()  # of the next page


def look_at(page: Page, name: str) -> list[str]:
    place = os.environ.get("MANIFLEX_SCREENSHOTS")
    if place:
        page.screenshot(path=f"{place}/{name}.png", full_page=True)
    width = page.evaluate("document.documentElement.scrollWidth")
    too_wide = [f"{name} is {width} wide"] if width > page.viewport_size["width"] else []  # type: ignore[index]
    return accessibility_problems(page) + too_wide


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_a_file_is_imported_with_the_mouse(site: PanelSite, browser: Browser, look: str) -> None:
    context = browser.new_context(
        viewport=NARROW if look == "narrow" else WIDE, color_scheme="dark" if look == "dark" else "light"
    )
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    page.goto(site.page("/parts/import"))
    problems = look_at(page, f"{look}-upload")
    choose_file(
        page, site, f"{look}1,{XSS},3,new", "x,Short,1,new", f"{look}2,Old,-1,ancient", f"{look}3,=1+1,1,old"
    )
    problems += look_at(page, f"{look}-columns")
    page.click("text=Check all lines")
    expect(page.locator("main")).to_contain_text("Nothing has been written yet")
    problems += look_at(page, f"{look}-checked")
    page.click("text=Import the good lines")
    expect(page.locator("main")).to_contain_text("Done.")
    problems += look_at(page, f"{look}-done")
    page.goto(site.page("/-/transfers"))
    problems += look_at(page, f"{look}-transfers")
    assert page.evaluate("window.marker") is None
    context.close()
    assert problems == []
    assert watch.trouble == []


def test_a_large_import_shows_its_progress_and_ends_by_itself(site: PanelSite, browser: Browser) -> None:
    page = browser.new_context().new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    choose_file(page, site, *LINES)
    page.click("text=Check all lines")
    expect(page.locator("main")).to_contain_text("Nothing has been written yet", timeout=60_000)
    page.click("text=Import the good lines: 300")
    expect(page.locator("main")).to_contain_text("Done.", timeout=60_000)
    page.goto(site.page("/parts"))
    page.check("input[name=ids] >> nth=0")
    page.check("input[name=all]")
    page.select_option("#bulk-field", "state")
    page.click("button:has-text('Go on')")
    page.check("[name='set.state'][value=old]")
    page.click("button:has-text('Go on')")
    expect(page.locator("main")).to_contain_text("would be updated", timeout=60_000)
    expect(page.locator("button.primary")).to_be_visible(timeout=60_000)
    page.click("button.primary")
    expect(page.locator("main")).to_contain_text("Done.", timeout=60_000)
    page.goto(site.page("/parts/export?format=csv"))
    expect(page.locator("main")).to_contain_text("Make the file in the background")
    page.click("button.primary")
    with page.expect_download() as download:
        page.click("text=Download the file", timeout=60_000)
    assert len(download.value.path().read_text().splitlines()) > 300
    page.context.close()
    assert [one for one in watch.trouble if "413" not in one] == []


def test_an_import_needs_no_scripts(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    choose_file(page, site, "noscript1,No script,1,new")
    page.select_option("[name='map.Name']", "")
    page.click("text=Check all lines")
    page.click("text=Import the good lines: 1")
    assert "Done." in page.locator("main").inner_text()
    context.close()
