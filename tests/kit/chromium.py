"""A real Chromium for the tests of pages, and what it saw: errors, foreign requests, reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # has no types
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

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
        self._page = page
        self._origin = origin
        self._asked: set[Request] = set()  # and not yet answered
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("requestfinished", self._answered)
        page.on("requestfailed", self._answered)

    def wait_until_quiet(self) -> None:
        """Wait until the page has shown what it asked for, and asks for nothing more.

        "networkidle" says so too, half a second later.
        """
        wait_for_frame(self._page)
        while self._asked:
            wait_for_frame(self._page)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        self._asked.add(request)
        if not request.url.startswith((self._origin, "data:")):
            self.trouble.append(f"foreign request: {request.url}")

    def _answered(self, request: Request) -> None:
        self._asked.discard(request)


def wait_for_frame(page: Page) -> None:
    """Wait until the page was drawn with all that has happened to it."""
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


# -- the looks of a page

WIDE: ViewportSize = {"width": 1280, "height": 860}
NARROW: ViewportSize = {"width": 390, "height": 844}
_AXE = Axe()
_OF_COLOURS = ["color-contrast", "link-in-text-block"]


def look_problems(page: Page) -> list[str]:
    """What is wrong with an open page on a narrow screen, in the dark and in the light, in which it stays."""
    page.set_viewport_size(NARROW)
    problems = [f"narrow: {problem}" for problem in (*_too_wide(page), *accessibility_problems(page))]
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="dark")
    # In the dark nothing but the colours is another than in the light.
    problems += [f"dark: {problem}" for problem in accessibility_problems(page, only=_OF_COLOURS)]
    page.emulate_media(color_scheme="light")
    return problems + [f"light: {problem}" for problem in (*_too_wide(page), *accessibility_problems(page))]


def _too_wide(page: Page) -> Iterator[str]:
    wait_for_frame(page)
    width, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width > room:
        yield f"it is {width} wide"


def accessibility_problems(page: Page, only: Sequence[str] = ()) -> list[str]:
    """What axe finds that is serious or worse, by all of its rules or by some."""
    wait_for_frame(page)
    if not page.evaluate("'axe' in window"):
        page.evaluate(_AXE.axe_script)
    options = {"resultTypes": ["violations"], **({"runOnly": list(only)} if only else {})}
    results: Any = page.evaluate("(options) => axe.run(options)", options)
    return [
        f"{one['impact']} {one['id']}: {[node['html'][:160] for node in one['nodes']][:3]}"
        for one in results["violations"]
        if one["impact"] in ("serious", "critical")
    ]
