"""A live page that is left open: its memory stays as it is, and a restart of the server is survived."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import CDPSession, Page, expect

from tests.admin.test_operations_browser import APP
from tests.kit.chromium import chromium
from tests.kit.panel_site import PanelSite, seed_site, sign_in
from tests.kit.processes import MANIFLEX, Served, free_port, start_process
from tests.kit.workshop import OPERATIONS

REFRESH = 2100  # milliseconds of the page's clock
QUARTER = 15 * 60 * 1000 // REFRESH  # of an hour


@contextmanager
def serving(directory: Path, port: int) -> Iterator[Served]:
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--host", "127.0.0.1", "--port", str(port)]
    with start_process(command, port, cwd=directory) as served:
        served.until_up()
        yield served


def refresh(page: Page, times: int) -> None:
    for _ in range(times):
        with page.expect_response("**/numbers"):
            page.clock.run_for(REFRESH)


def memory(session: CDPSession) -> tuple[float, float, float]:
    """The heap, the nodes and the listeners that are left after a collection."""
    session.send("HeapProfiler.collectGarbage")
    counters = session.send("Memory.getDOMCounters")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    return heap, counters["nodes"], counters["jsEventListeners"]


def test_a_live_page_stays_small_and_survives_a_restart(tmp_path: Path) -> None:
    ids = seed_site(APP, tmp_path)
    port = free_port()
    site = PanelSite(f"http://127.0.0.1:{port}", ids)
    with chromium() as browser:
        page = browser.new_page()
        page.clock.install()
        with serving(tmp_path, port) as served:
            sign_in(page, site)
            page.goto(site.page(f"{OPERATIONS}/"))
            page.evaluate("window.loaded = 1")
            session = page.context.new_cdp_session(page)
            refresh(page, 100)
            heap, nodes, listeners = memory(session)
            refresh(page, QUARTER)
            later_heap, later_nodes, later_listeners = memory(session)
            assert later_heap < heap * 1.1 + 200_000
            assert later_nodes <= nodes + 200
            assert later_listeners <= listeners + 20
            served.send(signal.SIGTERM)
            served.ended()
        with page.expect_event("requestfailed"):
            page.clock.run_for(REFRESH)
        expect(page.locator("[data-live-state]")).to_contain_text("last seen")
        with serving(tmp_path, port):
            with page.expect_response("**/numbers"):
                page.clock.run_for(10_100)
            expect(page.locator("[data-live-state]")).to_have_text("")
            refresh(page, 3)
            assert page.evaluate("window.loaded") == 1
