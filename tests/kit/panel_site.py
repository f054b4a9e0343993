"""A panel that a process of its own serves to browsers: seeded, signed in to, all of its pages named."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from maniflex import Server
from tests.kit.panel import EMAIL, PASSWORD, panel_paths
from tests.kit.processes import ROOT, run_program, serve_process

_HEAD = """
import sys
sys.path.insert(0, {root!r})
DATABASE = {database!r}
"""
_SEED = """
import asyncio, json, os, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from app import seed, server
from tests.kit.panel import add_superuser

async def main():
    async with server.lifespan(role="client"):
        await add_superuser(server)
        print(json.dumps(await seed()))

asyncio.run(main())
"""
# Addresses of no page: files, and parts that the pages ask for when they are there.
NOT_PAGES = {
    "/static/{file}", "/-/card/{name}", "/-/count/{model}", "/-/transfers/{id}/file",
    "/-/transfers/{id}/refusals", "/{model}/{id}/file/{field}", "/-/operations/numbers",
    "/-/operations/plots", "/-/operations/failed", "/-/operations/processes/rows",
    "/-/operations/runs/{id}/live", "/-/operations/schedules/preview",
}  # fmt: skip


@dataclass(frozen=True)
class PanelSite:
    """Where the panel is, and the ids of what its seed made."""

    url: str  # of the server
    ids: Mapping[str, str]

    def page(self, path: str) -> str:
        """The address of a page; names in braces stand for ids of the seed."""
        return f"{self.url}/admin{path.format(**self.ids)}"


def seed_site(app: str, directory: Path, database: str = "sqlite:///site.db") -> dict[str, str]:
    """Write an app and fill its database; gives what its `seed` returns.

    The app has `DATABASE` and defines `server` and `async def seed()`, which names ids; a superuser is added.
    """
    (directory / "app.py").write_text(_HEAD.format(root=str(ROOT), database=database) + app)
    with run_program(_SEED, directory) as program:
        ids: dict[str, str] = json.loads(program.hear_rest()[-1])
    return ids


@contextmanager
def serve_site(app: str, directory: Path, database: str = "sqlite:///site.db") -> Iterator[PanelSite]:
    """The panel of a seeded app, until the block ends."""
    ids = seed_site(app, directory, database)
    with serve_process(directory) as served:
        yield PanelSite(served.url, ids)


def sign_in(page: Page, site: PanelSite) -> None:
    """Type the name and the password of the superuser."""
    page.goto(site.page("/"))
    page.fill("#username", EMAIL)
    page.fill("#password", PASSWORD)
    page.press("#password", "Enter")
    page.wait_for_url("**/admin/")


def addresses(
    rows: Mapping[str, Sequence[str]],
    server: Server,
    is_meant: Callable[[str], bool],
    elsewhere: Collection[str] = (),
) -> list[str]:
    """The addresses of rows by route, once it is sure that every page of the panel has a row."""
    pages = {path for method, path in panel_paths(server, is_meant) if method == "GET"} - NOT_PAGES
    assert pages == rows.keys() | set(elsewhere), pages ^ (rows.keys() | set(elsewhere))
    return [address for row in rows.values() for address in row]
