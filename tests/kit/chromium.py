"""A real Chromium for the tests of pages, and what it saw: errors, foreign requests, reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # has no types
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _chromium

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; the test is skipped only where leaving it out is meant."""
    if os.environ.get(_chromium.NO_BROWSER) == "1":
        pytest.skip("Chromium is left out on request")
    path, _ = _chromium.find(install=False)
    if path is None:
        pytest.fail(_chromium.HELP)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


class Watch:
    """Notes what a page should never do."""

    def __init__(self, page: Page, origin: str) -> None:
        self.trouble: list[str] = []
        self._origin = origin
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(f"{message.type}: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith((self._origin, "data:")):
            self.trouble.append(f"foreign request: {url}")


def accessibility_problems(page: Page) -> list[str]:
    """What axe finds that is serious or worse."""
    results: Any = Axe().run(page).response
    return [
        f"{one['impact']} {one['id']}: {[node['html'][:160] for node in one['nodes']][:3]}"
        for one in results["violations"]
        if one["impact"] in ("serious", "critical")
    ]
