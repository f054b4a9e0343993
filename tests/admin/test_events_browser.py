"""The pages of events and webhooks in a real Chromium: light, dark, narrow, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.chromium import Watch, look_problems
from tests.kit.event_shop import EventShop
from tests.kit.panel import is_about_events
from tests.kit.panel_site import PanelSite, addresses, serve_site, sign_in

APP = """
from maniflex import AuthInfo
from maniflex.background.webhooks.model import WebhookDelivery, WebhookEndpoint
from tests.kit.event_shop import EventShop, NOBODY_THERE, Order

XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'
shop = EventShop(time_zone="Europe/Berlin", title="Shop")
server = shop.server
server.config = server.config.with_(database=DATABASE, access_log=False, background=False)

async def seed():
    client = await shop.add_endpoint(f"{NOBODY_THERE}/of-a-client", description=XSS)
    off = await shop.add_endpoint(f"{NOBODY_THERE}/off", AuthInfo(user_id="bob"))
    order = await server.db(Order).create(title=XSS)
    await server.events.drain()
    await server.webhooks.drain()
    shop.broken = False
    for n in range(3):
        await server.db(Order).update(order.id, status=f"step {n}", title=XSS * n)
    async with server.transaction():
        await server.events.publish("invoice.sent", {"token": "hidden"}, subject=XSS, tenant_id="t1")
    await server.events.drain()
    await server.events.pause("archive")
    await server.db(Order).delete(order.id)
    await server.events.drain()
    await server.webhooks.disable_endpoint(off)
    [event] = await server.raw_query("SELECT id FROM event_log WHERE type = 'order.created'")
    [own] = await server.db(WebhookEndpoint).list({"is_declared": True})
    deliveries = await server.db(WebhookDelivery).list({"endpoint_id": own.id}, sorts=["created_at"])
    return {
        "event": event["id"], "endpoint": own.id, "client": client, "off": off, "delivery": deliveries[0].id
    }
"""
OPERATIONS = "/-/operations"
# The addresses of each page, by its route; a page that has no row fails the walk.
PAGES = {
    f"{OPERATIONS}/events": [
        f"{OPERATIONS}/events", f"{OPERATIONS}/events?f_type=order.*", f"{OPERATIONS}/events?f_type=nothing",
    ],
    f"{OPERATIONS}/events/{{id}}": [f"{OPERATIONS}/events/{{event}}"],
    f"{OPERATIONS}/groups/{{id}}": [
        f"{OPERATIONS}/groups/billing", f"{OPERATIONS}/groups/archive", f"{OPERATIONS}/groups/bridge-redis",
    ],
    f"{OPERATIONS}/webhooks": [f"{OPERATIONS}/webhooks", f"{OPERATIONS}/webhooks?f_status=disabled"],
    f"{OPERATIONS}/webhooks/{{id}}": [
        f"{OPERATIONS}/webhooks/{{endpoint}}", f"{OPERATIONS}/webhooks/{{client}}",
        f"{OPERATIONS}/webhooks/{{off}}?f_status=cancelled",
    ],
    f"{OPERATIONS}/deliveries/{{id}}": [f"{OPERATIONS}/deliveries/{{delivery}}"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("events"), site_database) as one:
        yield one


def test_every_page_is_quiet_accessible_and_fits(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    troubles = {}
    for path in addresses(PAGES, EventShop().server, is_about_events):
        page.goto(site.page(path))
        watch.wait_until_quiet()
        troubles[path] = look_problems(page)
        assert page.evaluate("window.marker") is None, path
    context.close()
    assert watch.trouble == []
    assert {path: found for path, found in troubles.items() if found} == {}


def test_a_group_and_an_endpoint_are_operated_without_scripts(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    page.click("text=Operations")
    page.click("nav.tabs >> text=Events")
    page.click("td.first a:has-text('archive')")
    expect(page.locator("p.light")).to_contain_text(
        "It is paused: what comes waits for it. What waits: 1, the oldest"
    )
    page.click("button:has-text('Resume')")
    expect(page.locator("[role=status]")).to_have_text("archive gets events again.")
    page.click("nav.tabs >> text=Events")
    page.click("td.first a:has-text('billing')")
    expect(page.locator("td.error")).to_contain_text("the till is <b>closed</b>")
    page.fill("[name=since]", "2020-01-31T08:00")
    page.click("button:has-text('Replay')")
    expect(page.locator("[role=status]")).to_have_text("Events handed on again: 5.")
    page.click("nav.tabs >> text=Webhooks")
    page.click("td.first a:has-text('/off')")
    expect(page.locator("p.light")).to_contain_text("It is disabled (by hand)")
    page.click("button:has-text('Enable')")
    expect(page.locator("[role=status]")).to_have_text("The endpoint is told of events again.")
    page.click("button:has-text('Send a ping')")
    expect(page.locator("[role=status]")).to_contain_text("The ping failed")
    page.click("summary:has-text('Send failed ones again')")
    page.fill("#recover-since", "2020-01-31T08:00")
    page.click("button:has-text('Send failed ones again')")
    expect(page.locator("[role=status]")).to_contain_text("Deliveries sent again: ")
    context.close()
