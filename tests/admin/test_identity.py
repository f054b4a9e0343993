"""What the panel shows and does is what the API shows and does: by route, kind of person and tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maniflex import AuthInfo, Model, Operation, Server, WithDeletedAt, field, file
from maniflex.admin import AdminContext
from maniflex.admin.pages import panel_routes
from maniflex.admin.route import PanelRoute
from maniflex.middleware import auth, db
from tests.kit.panel import PASSWORD, Browser, add_superuser, visiting

KINDS = {
    "editor": ("admin", "writer", "maker"),
    "clerk": ("admin", "writer"),
    "viewer": ("admin", "reader"),
    "stranger": ("admin",),
}
READS = [
    Operation.LIST,
    Operation.READ,
    Operation.READ_HISTORY,
    Operation.READ_ATTACHMENT,
    Operation.EXPORT,
    Operation.HEAD,
]
SHOWN = {
    "/{model}": "", "/{model}/{id}": "/{id}", "/{model}/{id}/edit": "/{id}", "/{model}/{id}/delete": "/{id}",
    "/{model}/{id}/history": "/{id}/history", "/{model}/{id}/history/{version}": "/{id}/history/1",
    "/{model}/{id}/file/{field}": "/{id}/attachments/scan", "/{model}/export": "/export?format=csv",
    "/-/pick/{model}": "",
}  # fmt: skip
# What a form does, as a client would: method, path below the table, body; and the controls of the form.
DONE: dict[str, tuple[str, str, Any, Mapping[str, Any]]] = {
    "/{model}": ("POST", "", {"number": "changed"}, {"f.number": "changed", "_seen": "{}"}),
    "/{model}/{id}": ("PATCH", "/{id}", {"number": "changed"},
                      {"f.number": "changed", "_seen": '{"number": "first"}'}),
    "/{model}/{id}/cell/{field}": ("PATCH", "/{id}", {"is_paid": True}, {"value": "true"}),
    "/{model}/{id}/delete": ("DELETE", "/{id}", None, {}),
    "/{model}/{id}/restore": ("POST", "/{id}/restore", None, {}),
    "/{model}/bulk": ("DELETE", "/{id}", None, {"ids": "{id}", "action": "delete", "confirm": "1"}),
    "/{model}/{id}/action/{name}": ("PATCH", "/{id}", {"number": "changed"}, {"confirm": "1"}),
    "/{model}/{id}/history/{version}/restore": ("PATCH", "/{id}", {"number": "zero"}, {}),
}  # fmt: skip


class Order(Model, WithDeletedAt, versioned=True, restore=True, export=True):
    tenant_id: str = field(relation=None)
    number: str = field(filterable=True, sortable=True, searchable=True)
    is_paid: bool = field(default=False, filterable=True)
    scan: str | None = file(default=None)


@dataclass(frozen=True, kw_only=True)
class Someone:
    kind: str
    tenant: str
    auth: AuthInfo
    browser: Browser


def make_server() -> Server:
    server = Server(storage="memory:")
    server.register(Order)
    step = server.pipeline.auth
    step.register(auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1")}))
    step.register(auth.require_role("reader", "writer"), models=[Order], operations=READS)
    step.register(auth.require_role("writer"), models=[Order], operations=[Operation.UPDATE])
    step.register(auth.require_role("maker"), models=[Order], operations=[Operation.CREATE, Operation.DELETE])
    server.pipeline.db.register(db.tenancy())
    admin = server.admin()

    @admin.action(Order, on="record", name="rename")
    async def rename(ctx: AdminContext, ids: list[str]) -> str:
        for one in ids:
            await ctx.call("PATCH", f"/api/orders/{one}", json={"number": "changed"})
        return "done"

    return server


async def make_order(server: Server, tenant: str, *, deleted: bool = False) -> str:
    """An order that has two versions."""
    maker = AuthInfo(user_id="maker", tenant_id=tenant, roles=("writer", "maker"))
    body = {"number": "zero"}
    order = (await server.call("POST", "/api/orders", json=body, auth=maker)).data
    await server.call("PATCH", f"/api/orders/{order['id']}", json={"number": "first"}, auth=maker)
    if deleted:
        await server.call("DELETE", f"/api/orders/{order['id']}", auth=maker)
    return str(order["id"])


async def state(server: Server) -> list[tuple[str, str, bool, bool]]:
    """All that is stored of orders, oldest first."""
    rows = await server.raw_query(
        "SELECT id, number, is_paid, deleted_at IS NULL AS here FROM orders ORDER BY id"
    )
    return [(row["id"], row["number"], bool(row["is_paid"]), bool(row["here"])) for row in rows]


def changes_of(before: list[Any], after: list[Any]) -> list[Any]:
    """What became of rows, without their ids."""
    return [row[1:] for row in after if row not in before]


def fill(path: str, record_id: str) -> str:
    values = {"{model}": "orders", "{id}": record_id, "{version}": "1", "{name}": "rename"}
    values["{field}"] = "is_paid" if "/cell/" in path else "scan"
    for name, value in values.items():
        path = path.replace(name, value)
    return path


async def test_the_panel_shows_and_does_what_the_api_does(database_url: str) -> None:
    server = make_server()
    admin = server.declared_panel
    assert admin is not None
    routes = [route for route in panel_routes(admin) if "{model}" in route.path]
    asked = {(route.method, route.path) for route in routes}
    assert {("GET", path) for path in SHOWN} | {("POST", path) for path in DONE} <= asked
    async with visiting(server, database_url, signed_in=False) as browser:
        orders = {tenant: await make_order(server, tenant) for tenant in ("t1", "t2")}
        for kind, roles in KINDS.items():
            for tenant in orders:
                email = f"{kind}@{tenant}.example"
                user_id = await add_superuser(server, email, roles=roles, tenant_id=tenant)
                browser.http.cookies.clear()
                assert (await browser.sign_in(email, PASSWORD)).status_code == 303
                identity = AuthInfo(user_id=user_id, roles=roles, tenant_id=tenant, auth_method="admin")
                someone = Someone(kind=kind, tenant=tenant, auth=identity, browser=browser)
                for owner, record_id in orders.items():
                    for route in routes:
                        await compare(server, someone, route, owner, record_id)


async def compare(server: Server, someone: Someone, route: PanelRoute, owner: str, record_id: str) -> None:
    """One route, for one person, about a record of one tenant."""
    what = (someone.kind, someone.tenant, route.method, route.path, owner)
    is_other = owner != someone.tenant
    if route.method == "POST" and route.path in DONE:
        method, path, body, controls = DONE[route.path]
        is_restore = route.path.endswith("/restore") and "history" not in route.path
        first, twin = [await make_order(server, owner, deleted=is_restore) for _ in range(2)]
        before = await state(server)
        api_path = f"/api/orders{path}".replace("{id}", twin)
        answer = await server.call(method, api_path, json=body, auth=someone.auth)
        between = await state(server)
        form = {name: value.replace("{id}", first) for name, value in controls.items()}
        form["_key"] = f"{first}-{someone.kind}"
        response = await someone.browser.post(fill(route.path, first), form)
        after = await state(server)
        assert changes_of(between, after) == changes_of(before, between), (
            what,
            answer.status,
            response.status_code,
        )
        may_see = is_other or answer.status == 404
        assert not may_see or "first" not in response.text, what
        return
    if route.method == "GET" and route.path in SHOWN:
        suffix, _, query = SHOWN[route.path].replace("{id}", record_id).partition("?")
        answer = await server.call("GET", f"/api/orders{suffix}", query=query, auth=someone.auth)
        response = await someone.browser.http.get(f"/admin{fill(route.path, record_id)}")
        if (
            "file" not in route.path and "pick" not in route.path
        ):  # of those both are refused, each in its way
            assert response.status_code == answer.status, (what, response.status_code, answer.status)
        assert (response.status_code < 400) == (answer.status < 400), (what, answer.status)
    elif route.method == "GET":
        response = await someone.browser.http.get(f"/admin{fill(route.path, record_id)}")
        assert response.status_code < 500, what
    else:
        response = await someone.browser.post(fill(route.path, record_id), {})
        assert response.status_code < 500, what
    if is_other:
        assert record_id not in response.text.replace(fill(route.path, record_id), ""), what
