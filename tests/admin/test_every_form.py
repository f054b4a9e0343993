"""Every form of the panel needs its token and our own origin: the routes are read from the router."""

from __future__ import annotations

from maniflex import Server
from maniflex.admin import ModelAdmin
from maniflex.admin.panel import panel_routes
from maniflex.admin.tables import AdminEvent, AdminTransfer
from maniflex.background.runs.model import WorkflowRun
from tests.kit.panel import Browser, add_superuser, visiting
from tests.kit.workshop import Order, Workshop


def make_shop() -> Workshop:
    shop = Workshop()
    shop.admin.add(ModelAdmin(Order, can_import=True))
    return shop


async def fill(shop: Workshop, browser: Browser) -> dict[str, str]:
    """A record, a run and a transfer, by the names of parts of paths."""
    order = await shop.server.db(Order).create(title="One")
    await browser.get("/orders/import")
    place = await browser.send("/orders/import", {}, files={"file": ("a.csv", b"title\nTwo\n")})
    transfer_id = place.rpartition("=")[2]
    await browser.send("/orders/import", {"id": transfer_id, "step": "check"})
    return {"order": order.id, "run": await shop.fail(), "transfer": transfer_id}


def posts(shop: Workshop, ids: dict[str, str], table: str = "orders") -> list[str]:
    """The path of every form, for the record of this table where it is about one."""
    paths = []
    for route in panel_routes(shop.admin):
        if route.method != "POST":
            continue
        kind = "transfer" if "/-/transfers" in route.path else "run" if "/-/" in route.path else "order"
        values = {"{id}": ids[kind], "{model}": table, "{field}": "title", "{name}": "x", "{version}": "1"}
        path = route.path
        for name, value in values.items():
            path = path.replace(name, value)
        assert "{" not in path, path
        paths.append(path)
    return paths


async def rows(server: Server) -> list[object]:
    """What a forged form could have changed."""
    orders = [(one.id, one.title, one.status) for one in await server.db(Order).list()]
    runs = [(one.id, one.status) for one in await server.db(WorkflowRun).list()]
    transfers = [(one.id, one.phase) for one in await server.db(AdminTransfer).list()]
    return [orders, runs, transfers, await server.db(AdminEvent).count()]


async def test_no_form_is_taken_without_its_token_or_from_another_site(database_url: str) -> None:
    shop = make_shop()
    async with visiting(shop.server, database_url) as browser:
        ids = await fill(shop, browser)
        await add_superuser(shop.server, "eve@example.org", "another long phrase")
        other = Browser(browser.http)
        kept_cookies = dict(browser.http.cookies)
        browser.http.cookies.clear()
        await other.sign_in("eve@example.org", "another long phrase")
        browser.http.cookies.clear()
        browser.http.cookies.update(kept_cookies)
        before, paths = await rows(shop.server), posts(shop, ids)
        assert len(paths) > 35
        controls = {"f.title": "Forged", "action": "delete", "all": "1", "confirm": "1", "query": ""}
        for path in paths:
            for token, headers in (
                ("", {}),
                ("0" * 64, {}),
                (other.token, {}),
                (browser.token, {"Origin": "https://evil.example"}),
                (browser.token, {"Sec-Fetch-Site": "cross-site"}),
            ):
                response = await browser.post(path, {**controls, "_csrf": token}, headers=headers)
                assert response.status_code == 403, (path, token[:4], headers, response.status_code)
        assert await rows(shop.server) == before


async def test_no_route_changes_what_the_audit_says(database_url: str) -> None:
    shop = make_shop()
    async with visiting(shop.server, database_url) as browser:
        await browser.get("/orders/new")
        await browser.send("/orders", {"f.title": "Noted"})
        events = shop.server.db(AdminEvent)
        [event] = await events.list({"action": "create"})
        ids = {"order": event.id, "run": event.id, "transfer": event.id}
        controls = {"f.action": "forged", "action": "delete", "ids": event.id, "all": "1", "confirm": "1"}
        for table in ("admin_event", "admin_events"):
            about_records = [path for path in posts(shop, ids, table) if table in path]
            assert len(about_records) > 8
            for path in about_records:
                assert (await browser.post(path, controls)).status_code == 404, path
            for method, place in (("POST", ""), ("PATCH", f"/{event.id}"), ("DELETE", f"/{event.id}")):
                answer = await browser.http.request(method, f"/api/{table}{place}", json={"action": "forged"})
                assert answer.status_code == 404, (method, table)
        assert await events.read(event.id) == event
        assert await events.count({"action": "forged"}) == 0
