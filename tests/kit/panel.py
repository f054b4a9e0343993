"""A signed-in person of the panel, over HTTP: pages are read and forms sent as a browser would."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import Server
from maniflex.admin.panel import panel_routes
from maniflex.admin.transfers.runner import TransferRunner
from maniflex.testing import client

EMAIL, PASSWORD = "ada@example.org", "a long enough phrase"
_TOKEN = re.compile(r'name="_csrf" value="([0-9a-f]{64})"')
Controls = Mapping[str, str | Sequence[str]]


class Browser:
    """A browser without scripts: cookies, pages, forms."""

    def __init__(self, http: httpx.AsyncClient, root: str = "/admin") -> None:
        self.http = http
        self.root = root
        self.token = ""

    async def get(self, path: str, status: int = 200, **options: Any) -> str:
        """The text of a page."""
        response = await self.http.get(self.root + path, **options)
        assert response.status_code == status, (response.status_code, response.text[-1500:])
        tokens = _TOKEN.findall(response.text)
        self.token = tokens[0] if tokens else self.token
        return response.text

    async def post(
        self, path: str, controls: Controls | None = None, *, files: Any = None, **options: Any
    ) -> httpx.Response:
        """Send a form with the token of the page that was looked at last."""
        controls = {"_csrf": self.token, **(controls or {})}
        return await self.http.post(self.root + path, data=dict(controls), files=files, **options)

    async def send(self, path: str, controls: Controls | None = None, **options: Any) -> str:
        """Send a form that succeeds; gives where it leads, inside the panel."""
        response = await self.post(path, controls, **options)
        assert response.status_code == 303, (response.status_code, response.text[-3000:])
        return response.headers["location"].removeprefix(self.root)

    async def sign_in(self, username: str = EMAIL, password: str = PASSWORD) -> httpx.Response:
        """Send the login form."""
        await self.get("/-/login")
        response = await self.post("/-/login", {"username": username, "password": password})
        if response.status_code == 303:
            await self.get("/-/account")
        return response


def text_of(page: str) -> str:
    """What a person reads of a page: no tags, entities as letters."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


async def add_superuser(
    server: Server,
    email: str = EMAIL,
    password: str = PASSWORD,
    *,
    roles: Sequence[str] = ("superuser",),
    tenant_id: str | None = None,
) -> str:
    """Make a superuser and give its id."""
    user = await server.superusers.create(email, password, roles=roles, tenant_id=tenant_id)
    return user.id


@asynccontextmanager
async def visiting(
    server: Server, database: str, *, signed_in: bool = True, **options: Any
) -> AsyncIterator[Browser]:
    """A browser at the panel of a started server, signed in as a superuser."""
    async with client(server, database=database, **options) as http:
        browser = Browser(http, server.panel_path)
        if signed_in:
            await add_superuser(server)
            response = await browser.sign_in()
            assert response.status_code == 303, response.text
        yield browser


def runner_of(server: Server) -> TransferRunner:
    """What does imports, exports and bulk changes, which a test has done by hand."""
    admin = server.declared_panel
    assert admin is not None
    runner: TransferRunner = admin.transfer_handler.__self__  # type: ignore[attr-defined]
    return runner


# -- the routes of a panel, shared out among the tests that go through all of them


def is_about_work(path: str) -> bool:
    """Whether a route of the panel is about durable work."""
    return path.startswith("/-/operations") or path.endswith("/work")


def is_about_events(path: str) -> bool:
    """Whether it is about events, those who take them, or webhooks."""
    return path.startswith(
        tuple(f"/-/operations/{one}" for one in ("events", "groups", "webhooks", "deliveries"))
    )


def is_about_records(path: str) -> bool:
    """Whether it is about records of the application."""
    return "{model}" in path and not is_about_work(path)


def is_about_people(path: str) -> bool:
    """Whether it is about neither: entry, account, pages across models."""
    return not is_about_work(path) and not is_about_records(path)


def panel_paths(server: Server, is_meant: Callable[[str], bool]) -> set[tuple[str, str]]:
    """Methods and paths below the panel's own, from its route table."""
    admin = server.declared_panel
    assert admin is not None
    return {(route.method, route.path) for route in panel_routes(admin) if is_meant(route.path)}
