"""The operations pages in a real Chromium: light, dark, narrow, without scripts, and while they refresh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.kit.chromium import Watch, look_problems
from tests.kit.panel import is_about_events, is_about_work
from tests.kit.panel_site import PanelSite, addresses, serve_site, sign_in
from tests.kit.workshop import OPERATIONS, Workshop

APP = """
from tests.kit.workshop import Order, Workshop

XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'
shop = Workshop(time_zone="Europe/Berlin", title="Shop")
server = shop.server
server.config = server.config.with_(database=DATABASE, access_log=False, background=False)

async def seed():
    order = await server.db(Order).create(title=XSS)
    failed = await shop.fail(about=order)
    waiting = await server.work.submit("report.daily.v1", {"waits": True, "text": XSS}, group_key=XSS)
    await shop.work()
    await server.work.submit("elsewhere.x", {}, parent_id=waiting.id)
    async with server.transaction():
        for n in range(3):
            message = await server.outbox.enqueue("order.placed", {"n": n, "x": XSS}, about=order)
    await server.outbox.drainer().drain()
    await server.schedules.declare()
    [schedule] = await server.schedules.list()
    await server.schedules.run_now(schedule.id)
    return {
        "failed": failed, "waiting": waiting.id, "message": message.id, "schedule": schedule.id,
        "order": order.id,
    }
"""
# The addresses of each page, by its route; a page that has no row fails the walk.
PAGES = {
    "/-/operations": ["/-/operations?over=14d"],
    "/-/operations/": ["/-/operations/"],
    "/-/operations/runs": ["/-/operations/runs", "/-/operations/runs?f_status=failed"],
    "/-/operations/runs/{id}": ["/-/operations/runs/{failed}", "/-/operations/runs/{waiting}"],
    "/-/operations/runs/new": ["/-/operations/runs/new", "/-/operations/runs/new?type=email.receipt.v1",
                               "/-/operations/runs/new?from={failed}"],
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
    "/{model}/{id}/work": ["/orders/{order}/work"],
}  # fmt: skip


def is_meant(path: str) -> bool:
    """Whether a page is looked at here; those of events are in `test_events_browser.py`."""
    return is_about_work(path) and not is_about_events(path)


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelSite]:
    with serve_site(APP, tmp_path_factory.mktemp("operations"), site_database) as one:
        yield one


def test_every_page_is_quiet_accessible_and_fits(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    troubles = {}
    for path in (*addresses(PAGES, Workshop().server, is_meant), "/"):
        page.goto(site.page(path))
        watch.wait_until_quiet()
        troubles[path] = look_problems(page)
        assert page.evaluate("window.marker") is None, path
    context.close()
    assert watch.trouble == []
    assert {path: found for path, found in troubles.items() if found} == {}


def test_a_failed_run_is_retried_and_a_schedule_edited_without_scripts(
    site: PanelSite, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site)
    page.click("text=Operations")
    page.click("nav.tabs >> text=Runs")
    page.click("nav.states >> text=failed")
    page.click("td.first a >> nth=0")
    page.click("button:has-text('Retry')")
    expect(page.locator("[role=status]")).to_have_text("The run is due again.")
    expect(page.locator("[data-light]")).to_contain_text("No living process takes email.receipt.v1")
    page.click("a:has-text('Resubmit as new')")
    page.fill("[name='f.order_id']", "many")
    page.click("[data-save]")
    expect(page.locator("[aria-invalid=true]")).to_have_count(1)
    page.goto(site.page(f"{OPERATIONS}/schedules/{{schedule}}/edit"))
    page.fill("[name=cron]", "0 5 * * 1")
    page.click("button:has-text('Preview')")
    expect(page.locator("#preview")).to_contain_text("every Monday at 05:00 Europe/Berlin")
    page.click("[data-save]")
    expect(page.locator("[role=status]")).to_have_text("Saved.")
    context.close()


def test_a_part_refreshes_pauses_hides_and_survives_an_outage(site: PanelSite, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    sign_in(page, site)
    page.goto(site.page(f"{OPERATIONS}/"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/numbers" in request.url else None)
    with page.expect_response("**/numbers"):
        page.clock.run_for(2100)
    with page.expect_response("**/numbers") as answer:  # nothing has changed but, perhaps, an age
        page.clock.run_for(2100)
    assert answer.value.status in (200, 304)

    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []
    page.evaluate("Object.defineProperty(document, 'hidden', { value: false, configurable: true })")
    with page.expect_response("**/numbers"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def refuse(route: Route) -> None:
        route.abort()

    page.route("**/numbers", refuse)
    with page.expect_event("requestfailed"):
        page.clock.run_for(2100)
    expect(page.locator("[data-live-state]")).to_contain_text("last seen")
    page.unroute("**/numbers", refuse)
    with page.expect_response("**/numbers"):
        page.clock.run_for(10_100)
    expect(page.locator("[data-live-state]")).to_have_text("")

    page.click("[data-live-pause]")
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []
    expect(page.locator("[data-live-state]")).to_have_text("paused")
    elements = page.evaluate("document.querySelectorAll('*').length")
    page.click("[data-live-pause]")
    for _ in range(30):
        with page.expect_response("**/numbers"):
            page.clock.run_for(2100)
    assert page.evaluate("document.querySelectorAll('*').length") <= elements + 5

    page.goto(site.page(f"{OPERATIONS}/schedules/{{schedule}}/edit"))
    page.fill("[name=timezone]", "Asia/Kolkata")
    with page.expect_response("**/preview*"):
        page.clock.run_for(300)
    expect(page.locator("#preview")).to_contain_text("Asia/Kolkata")
    context.close()
