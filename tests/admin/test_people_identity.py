"""Pages of the panel across models show each person what the API shows it, and its own things alone.

Front page, cards, own pages, palette, views, audit trail, account, tenants, imports and exports: three kinds
of person of two tenants. A route that no row here is about fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from maniflex import AuthInfo, Context, Model, Operation, Server, field
from maniflex.admin import AdminContext, ModelAdmin, Number
from maniflex.admin.tables import AdminEvent, AdminSession, AdminTransfer, AdminView
from maniflex.middleware import auth, db
from tests.kit.panel import Browser, is_about_people, panel_paths, text_of, visiting

TENANTS = ("t1", "t2")
KINDS = {"editor": ("writer",), "viewer": ("reader",), "stranger": ()}
PEOPLE = {
    f"{kind}-{tenant}": AuthInfo(user_id=f"{kind}-{tenant}", tenant_id=tenant, roles=roles)
    for tenant in TENANTS
    for kind, roles in KINDS.items()
}
OWN = "/-/transfers/{id}"  # an import of the editor of the first tenant, which nobody else finds
# Pages → what is compared.
PAGES = {
    "/-/login": "open", "/static/{file}": "open",
    "/": "front", "/-/card/{name}": "number", "/sums": "number", "/-/search": "hits", "/-/views": "views",
    "/-/audit": "own marks", "/-/account": "own marks", "/-/tenant": "own marks", "/-/transfers": "own marks",
    OWN: "owner", f"{OWN}/refusals": "owner", f"{OWN}/file": "owner",
}  # fmt: skip
# Forms → what is sent; what each may change of others is nothing.
FORMS: dict[str, Mapping[str, str]] = {
    "/-/account/preferences": {"zone": "UTC"},
    "/-/account/password": {"current": "x", "new": "a new long enough phrase"},
    "/-/tenant": {"tenant": "t2"},
    "/-/views": {"model": "notes", "name": "mine", "query": "", "shared": "1"},
    f"{OWN}/start": {}, f"{OWN}/cancel": {}, f"{OWN}/continue": {},
    "/-/logout": {}, "/-/account/logout-all": {},
    "/-/login": {"username": "nobody", "password": "x"},
}  # fmt: skip


class Note(Model, export=True):
    tenant_id: str = field(relation=None)
    text: str = field(filterable=True, sortable=True, searchable=True)


@dataclass(frozen=True, kw_only=True)
class Club:
    """A server, and the ids of the import and of the views that are there."""

    server: Server
    transfer_id: str


async def login(ctx: Context, username: str, password: str) -> AuthInfo | None:
    return PEOPLE.get(username)


def make_server(directory: Any) -> Server:
    (directory / "sums.html").write_text(
        '{% extends "layout.html" %}{% block main %}Sum {{ view.sum }}{% endblock %}'
    )
    server = Server()
    server.register(Note)
    step = server.pipeline.auth
    reads = [Operation.LIST, Operation.READ, Operation.EXPORT]
    step.register(auth.require_role("reader", "writer"), models=[Note], operations=reads)
    step.register(auth.require_role("writer"), models=[Note], operations=[Operation.CREATE, Operation.UPDATE])
    server.pipeline.db.register(db.tenancy())
    admin = server.admin(auth=login, role=None, templates=str(directory))
    admin.add(ModelAdmin(Note, can_import=True))

    async def count(ctx: AdminContext) -> int:
        answer = await ctx.call("GET", "/api/notes")
        return int(answer.meta["total"]) if answer.status == 200 else -1

    @admin.card("Notes")
    async def notes(ctx: AdminContext) -> Number:
        return Number(await count(ctx))

    @admin.page("/sums", title="Sums", template="sums.html")
    async def sums(ctx: AdminContext) -> Mapping[str, Any]:
        return {"sum": await count(ctx)}

    return server


async def enter(browser: Browser, name: str) -> None:
    browser.http.cookies.clear()
    assert (await browser.sign_in(name, "any")).status_code == 303


async def make_club(server: Server, browser: Browser) -> Club:
    """Notes of both tenants, written in the panel by their editors, who also keep views and import a file."""
    transfer_id = ""
    for tenant in reversed(TENANTS):
        await enter(browser, f"editor-{tenant}")
        for number in range(3 if tenant == "t1" else 4):
            form = {"f.text": f"mark-of-{tenant} {number}", "_seen": "{}", "_key": f"{tenant}-{number}"}
            await browser.send("/notes", form)
        await browser.send(
            "/-/views", {"model": "notes", "name": f"mark-of-{tenant}", "query": "", "shared": "1"}
        )
        file = {"file": (f"mark-of-{tenant}.csv", f"text\r\nmark-of-{tenant} in a file\r\n".encode())}
        place = await browser.send("/notes/import", {"step": "check"}, files=file)
        transfer_id = place.rpartition("/")[2]
    return Club(server=server, transfer_id=transfer_id)


async def test_pages_across_models_show_what_the_api_shows(database_url: str, tmp_path: Any) -> None:
    server = make_server(tmp_path)
    assert {path for method, path in panel_paths(server, is_about_people) if method == "GET"} == PAGES.keys()
    async with visiting(server, database_url, signed_in=False) as browser:
        club = await make_club(server, browser)
        for name, identity in PEOPLE.items():
            await enter(browser, name)
            for path, compared in PAGES.items():
                values = {"{id}": club.transfer_id, "{name}": "notes", "{file}": "none"}
                address = path
                for key, value in values.items():
                    address = address.replace(key, value)
                page = await browser.http.get(f"/admin{address}", params={"q": "mark"})
                difference = await difference_of(server, name, identity, compared, page)
                assert not difference, (name, path, page.status_code, difference)
                other = "t2" if identity.tenant_id == "t1" else "t1"
                assert f"mark-of-{other}" not in page.text, (name, path)


async def difference_of(
    server: Server, name: str, identity: AuthInfo, compared: str, page: httpx.Response
) -> str:
    """How a page differs from the answer of the API to the same person; empty when it does not."""
    answer = await server.call("GET", "/api/notes", auth=identity)
    may_list, text = answer.status == 200, text_of(page.text)
    match compared:
        case "front":
            return "" if ("/admin/notes" in page.text) == may_list else "shows another navigation"
        case "number":
            total = answer.meta["total"] if may_list else -1
            return "" if re.search(rf"(?<![\d-]){total}\b", text) else f"does not show {total}: {text}"
        case "hits":
            shown = set(re.findall(r"/notes/([0-9a-f]{8}-[0-9a-f-]{27})", page.text))
            ids = {row["id"] for row in answer.data} if may_list else set()
            return "" if shown == ids else f"shows {shown}, and the API {ids}"
        case "views":
            is_shown = f"mark-of-{identity.tenant_id}" in page.text
            return "" if is_shown == may_list else "shows views of a list that the person has not"
        case "owner":
            expected = (200, 404) if name == "editor-t1" else (404,)
            return "" if page.status_code in expected else "is another person's"
        case "own marks":
            others = [one for one in PEOPLE if one != name and one in page.text]
            return f"names {others}" if others else ""
    return ""


async def stored(server: Server, name: str) -> list[Any]:
    """What is kept of everybody but this person."""
    rows: list[Any] = []
    for model, column in ((AdminSession, "user_id"), (AdminView, "user_id"), (AdminTransfer, "user_id")):
        records = await server.db(model).list([(column, "neq", name)], "id")
        rows += [(record.id, getattr(record, "phase", ""), getattr(record, "name", "")) for record in records]
    return [*rows, await server.db(Note).count()]


async def test_forms_across_models_change_nothing_of_others(database_url: str, tmp_path: Any) -> None:
    server = make_server(tmp_path)
    assert {path for method, path in panel_paths(server, is_about_people) if method == "POST"} == FORMS.keys()
    async with visiting(server, database_url, signed_in=False) as browser:
        club = await make_club(server, browser)
        for name in reversed(PEOPLE):
            if name == "editor-t1":
                continue  # whose import it is
            await enter(browser, name)
            before = await stored(server, name)
            for path, form in FORMS.items():
                response = await browser.post(path.replace("{id}", club.transfer_id), form)
                assert response.status_code < 500, (name, path)
                assert response.status_code == 404 or "/transfers/" not in path, (name, path)
            assert await stored(server, name) == before, name
        events = await server.db(AdminEvent).list([("action", "in", ["import", "password", "tenant"])])
        assert {event.actor_id for event in events} <= {"editor-t1", "editor-t2"}
