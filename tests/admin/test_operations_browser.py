"""The operations pages in a real Chromium: light, dark, narrow, without scripts, and while they refresh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.kit.chromium import Watch, accessibility_problems, chromium
from tests.kit.panel import EMAIL, PASSWORD
from tests.kit.processes import run_program, serve_process

ROOT = Path(__file__).parents[2]
APP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.kit.workshop import Workshop

shop = Workshop(time_zone="Europe/Berlin", title="Shop")
server = shop.server
server.config = server.config.with_(database="sqlite:///shop.db", access_log=False, background=False)
"""
SEED = """
import asyncio, os, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from app import server, shop
from tests.kit.panel import add_superuser
from tests.kit.workshop import Order

XSS = '<script>window.marker=1</script><img src=x onerror="window.marker=1">'

async def main():
    async with server.lifespan(role="client"):
        await add_superuser(server)
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
        print(failed, waiting.id, message.id, schedule.id, order.id)

asyncio.run(main())
"""
PATHS = (
    "", "?over=14d", "runs", "runs?f_status=failed", "runs/{0}", "runs/{1}", "runs/new",
    "runs/new?type=email.receipt.v1", "runs/new?from={0}", "schedules", "schedules/{3}", "schedules/{3}/edit",
    "outbox", "outbox/{2}", "scheduled", "processes", "doctor",
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    url: str
    ids: list[str]

    def page(self, path: str) -> str:
        return f"{self.url}/admin/-/operations/{path.format(*self.ids)}"


@pytest.fixture(scope="module")
def site(site_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("operations")
    (directory / "app.py").write_text(APP.replace("sqlite:///shop.db", site_database))
    with run_program(SEED, directory) as program:
        ids = program.hear_rest()[-1].split()
    with serve_process(directory) as served:
        yield Site(f"http://127.0.0.1:{served.port}", ids)


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


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_every_page_is_quiet_accessible_and_fits(site: Site, browser: Browser, look: str) -> None:
    size = {"width": 390, "height": 844} if look == "narrow" else {"width": 1280, "height": 860}
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        color_scheme="dark" if look == "dark" else "light",
    )
    page = context.new_page()
    watch = Watch(page, site.url)
    sign_in(page, site)
    troubles = {}
    for url in (*map(site.page, PATHS), f"{site.url}/admin/orders/{site.ids[4]}/work", f"{site.url}/admin/"):
        page.goto(url)
        troubles[url] = accessibility_problems(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            troubles[url].append(f"it is {width} wide")
        assert page.evaluate("window.marker") is None, url
    context.close()
    assert watch.trouble == []
    assert {url: found for url, found in troubles.items() if found} == {}


def test_a_failed_run_is_retried_and_a_schedule_edited_without_scripts(site: Site, browser: Browser) -> None:
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
    page.goto(site.page("schedules/{3}/edit"))
    page.fill("[name=cron]", "0 5 * * 1")
    page.click("button:has-text('Preview')")
    expect(page.locator("#preview")).to_contain_text("every Monday at 05:00 Europe/Berlin")
    page.click("[data-save]")
    expect(page.locator("[role=status]")).to_have_text("Saved.")
    context.close()


def test_a_part_refreshes_pauses_hides_and_survives_an_outage(site: Site, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    sign_in(page, site)
    page.goto(site.page(""))
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

    page.goto(site.page("schedules/{3}/edit"))
    page.fill("[name=timezone]", "Asia/Kolkata")
    with page.expect_response("**/preview*"):
        page.clock.run_for(300)
    expect(page.locator("#preview")).to_contain_text("Asia/Kolkata")
    context.close()
