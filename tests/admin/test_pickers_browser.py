"""Actions and changes of many records in a real Chromium: records are looked up, without scripts by id."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.chromium import NARROW, WIDE, Watch, accessibility_problems
from tests.kit.panel_site import PanelSite, serve_site, sign_in

APP = """
from dataclasses import dataclass
from typing import Annotated, Literal
from maniflex import Context, Model, Server, field
from maniflex.middleware import workflow

class Agent(Model):
    name: str = field(filterable=True, sortable=True)

class Ticket(Model):
    title: str = field(filterable=True, sortable=True)
    status: Literal["open", "pending", "closed"] = field(default="open", filterable=True)
    agent_id: str | None = field(default=None, filterable=True)

@dataclass
class Handover:
    agent_id: str
    reason: str = ""
    watchers: Annotated[list[str], field(relation="Agent")] | None = None

server = Server(database=DATABASE, access_log=False)
server.register(Agent, Ticket)
server.pipeline.validate.register(
    workflow.machine("status", workflow.allow("open", "pending"), workflow.allow("pending", "closed")),
    models=[Ticket],
)

@server.action("POST", "/tickets/{id}/hand_over", request=Handover)
async def hand_over(ctx: Context) -> None:
    title = f"{ctx.body.reason} {len(ctx.body.watchers or ())}"
    await ctx.db(Ticket).update(ctx.url_param("id"), agent_id=ctx.body.agent_id, title=title)

server.admin(title="Desk")

async def seed():
    ada = await server.db(Agent).create(name="Ada Agent")
    await server.db(Agent).create(name="Bob Agent")
    first = await server.db(Ticket).create(title="Printer")
    other = await server.db(Ticket).create(title="Scanner")
    return {"ada": ada.id, "ticket": first.id, "other": other.id}
"""


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("pickers"), site_database) as one:
        yield one


def look_at(page: Page, name: str) -> list[str]:
    place = os.environ.get("MANIFLEX_SCREENSHOTS")
    if place:
        page.screenshot(path=f"{place}/{name}.png", full_page=True)
    return accessibility_problems(page)


def pick(page: Page, name: str, text: str) -> None:
    """Type into the combobox of a control and take the first hit."""
    combo = page.locator(f"[id='field-{name}'] [role=combobox]")
    combo.fill(text)
    expect(page.locator(f"[id='field-{name}'] [role=option]")).to_have_count(1)
    combo.press("Enter")


@pytest.mark.parametrize("look", ["wide", "narrow"])
def test_an_action_looks_up_whom_it_is_about(site: PanelSite, browser: Browser, look: str) -> None:
    context = browser.new_context(viewport=NARROW if look == "narrow" else WIDE)
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    page.goto(site.page("/tickets/{ticket}/action/hand_over"))
    pick(page, "agent_id", "ada")
    pick(page, "watchers", "bob")
    page.fill("[name='f.reason']", f"Holiday {look}")
    problems = look_at(page, f"action-{look}")
    page.click("button.primary")
    expect(page.locator("main h1")).to_have_text(f"Holiday {look} 1")
    expect(page.locator("main")).to_contain_text("Ada Agent")
    context.close()
    assert problems + watch.trouble == []


def test_a_field_of_many_records_is_set_by_what_it_can_be(site: PanelSite, browser: Browser) -> None:
    page = browser.new_context(viewport=WIDE).new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    problems = []
    for field, expected in (("agent_id", "Set Agent to Bob Agent?"), ("status", "Set Status to pending?")):
        page.goto(site.page("/tickets"))
        for number in range(2):
            page.check(f"input[name=ids] >> nth={number}")
        page.select_option("#bulk-action", "set")
        page.select_option("#bulk-field", field)
        page.click("button:has-text('Go on')")
        if field == "agent_id":
            pick(page, "set.agent_id", "bob")
        else:
            expect(page.locator("[name='set.status']")).to_have_count(1)
            page.check("[name='set.status'][value=pending]")
        problems += look_at(page, f"value-{field}")
        page.click("button:has-text('Go on')")
        expect(page.locator("main")).to_contain_text(expected)
        problems += look_at(page, f"look-{field}")
        page.click("button.primary")
        expect(page.locator("main")).to_contain_text("Bob Agent")
    page.context.close()
    assert problems + watch.trouble == []


def test_without_scripts_both_take_the_id(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    page.goto(site.page("/tickets/{other}/action/hand_over"))
    page.fill("[name='f.agent_id']", site.ids["ada"])
    page.fill("[name='f.reason']", "By hand")
    page.click("button.primary")
    assert "By hand 0" in page.locator("main h1").inner_text()
    page.goto(site.page("/tickets"))
    page.check("input[name=ids] >> nth=0")
    page.select_option("#bulk-action", "set")
    page.select_option("#bulk-field", "agent_id")
    page.click("button:has-text('Go on')")
    page.fill("[name='set.agent_id']", site.ids["ada"])
    page.click("button:has-text('Go on')")
    assert "Set Agent to Ada Agent?" in page.locator("main").inner_text()
    context.close()
