"""Texts in several languages in a real Chromium: tabs with scripts, one below the other without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.chromium import NARROW, WIDE, Watch, accessibility_problems, look_problems
from tests.kit.panel_site import PanelSite, serve_site, sign_in

APP = """
from maniflex import LocaleOptions, LocaleString, Model, Server, field

class Department(Model):
    name: LocaleString = field(filterable=True, sortable=True, max_length=20)
    motto: LocaleString | None = field(default=None, locale="resolve")

options = LocaleOptions(supported=("en", "de", "ar"), rtl=("ar",))
server = Server(database=DATABASE, access_log=False, locale=options)
server.register(Department)
server.admin(title="Desk")

async def seed():
    texts = {"en": "Finance", "sw": "Fedha"}
    records = [await server.db(Department).create(name=texts) for _ in range(3)]
    return {name: record.id for name, record in zip(("wide", "narrow", "plain"), records)}
"""


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("languages"), site_database) as one:
        yield one


def tab(page: Page, name: str) -> None:
    page.locator("[id='field-name']").get_by_role("tab", name=name, exact=True).click()


@pytest.mark.parametrize("look", ["wide", "narrow"])
def test_a_tab_for_each_language(site: PanelSite, browser: Browser, look: str) -> None:
    context = browser.new_context(viewport=NARROW if look == "narrow" else WIDE)
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    page.goto(site.page(f"/departments/{{{look}}}/edit"))
    problems = [*accessibility_problems(page), *look_problems(page)]
    english, german = (page.locator(f"[name='f.name.{code}']") for code in ("en", "de"))
    expect(english).to_be_visible()
    expect(german).to_be_hidden()
    tabs = page.locator("[id='field-name'] [role=tab]")
    assert tabs.all_inner_texts() == ["en", "de", "ar", "sw", "+ Add language"]
    tabs.first.focus()
    page.keyboard.press("ArrowRight")
    expect(german).to_be_visible()
    german.fill("Finanzen")
    tab(page, "ar")
    arabic = page.locator("[name='f.name.ar']")
    assert (arabic.get_attribute("dir"), arabic.get_attribute("lang")) == ("rtl", "ar")
    arabic.fill("x" * 21)
    tab(page, "+ Add language")
    page.fill("[name='add.name.code']", "fr")
    page.fill("[name='add.name.text']", "Finances")
    page.locator("form.form").evaluate("form => form.submit()")  # as a browser that checks no lengths
    expect(arabic).to_be_visible()
    expect(page.locator("[id='field-name.ar']")).to_contain_text("must have at most 20 characters")
    problems += [*accessibility_problems(page), *look_problems(page)]
    tab(page, "en")
    page.click("a[href='#field-name.ar']")
    expect(arabic).to_be_visible()
    arabic.fill("مالية")
    page.click("button[data-save]")
    expect(page.locator("main h1")).to_have_text("Finance")
    page.goto(site.page(f"/departments/{{{look}}}/edit"))
    values = {code: page.locator(f"[name='f.name.{code}']").input_value() for code in ("de", "ar", "fr")}
    assert values == {"de": "Finanzen", "ar": "مالية", "fr": "Finances"}
    trouble = [one for one in watch.trouble if "422" not in one]
    context.close()
    assert problems + trouble == []


def test_without_scripts_all_languages_stand_below_each_other(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    page.goto(site.page("/departments/{plain}/edit"))
    for code in ("en", "de", "ar", "sw"):
        expect(page.locator(f"[name='f.name.{code}']")).to_be_visible()
    page.fill("[name='f.name.de']", "Finanzen")
    page.click("button[data-save]")
    page.goto(site.page("/departments/{plain}/edit"))
    assert page.locator("[name='f.name.de']").input_value() == "Finanzen"
    context.close()
