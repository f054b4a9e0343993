"""What the panel shows and does is what the API shows and does: by route, kind of person and tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from maniflex import AuthInfo, Model, Operation, Server, WithDeletedAt, field, file
from maniflex.admin import AdminContext, ModelAdmin
from maniflex.middleware import auth, db
from tests.kit.panel import PASSWORD, Browser, add_superuser, is_about_records, panel_paths, text_of, visiting

NEWEST = "limit=20&sort=created_at:desc"
FRAGMENT = {"x-fragment": "1"}
KINDS = {
    "editor": ("superuser", "writer", "maker"),
    "clerk": ("superuser", "writer"),
    "viewer": ("superuser", "reader"),
    "stranger": ("superuser",),
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
    "/{model}": "", "/{model}/{id}": "/{id}", "/{model}/{id}/delete": "/{id}",
    "/{model}/{id}/history": "/{id}/history", "/{model}/{id}/history/{version}": "/{id}/history/1",
    "/{model}/{id}/file/{field}": "/{id}/attachments/scan", "/{model}/export": "/export?format=csv",
    "/-/pick/{model}": "", "/-/count/{model}": "",
}  # fmt: skip
# Forms that are opened, and files that are asked for: whether somebody may, a request of the API tells that
# is refused for what it says, so that nothing changes.
OFFERED: dict[tuple[str, str], tuple[str, str, Any]] = {
    ("GET", "/{model}/new"): ("POST", "", {}),
    ("GET", "/{model}/import"): ("POST", "", {}),
    ("GET", "/{model}/{id}/edit"): ("PATCH", "/{id}", {"is_paid": "maybe"}),
    ("GET", "/{model}/{id}/action/{name}"): ("PATCH", "/{id}", {"is_paid": "maybe"}),
    ("POST", "/{model}/export"): ("GET", "/export?format=csv", None),
}
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
    "/{model}/import": ("POST", "", {"number": "changed"}, {"step": "import"}),
    # Here is no field to reveal: the API has no such route. tests/admin/test_private.py reveals one.
    "/{model}/{id}/reveal/{field}": ("POST", "/{id}/reveal/number", None, {}),
}  # fmt: skip
FILES = {"/{model}/import": {"file": ("orders.csv", b"number\r\nchanged\r\n")}}


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
    admin.add(ModelAdmin(Order, can_import=True))

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
    routes = panel_paths(server, is_about_records)
    rows = {("GET", path) for path in SHOWN} | {("POST", path) for path in DONE} | OFFERED.keys()
    assert rows == routes
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
                    for method, path in sorted(routes):
                        await compare(server, someone, method, path, owner, record_id)


async def compare(
    server: Server, someone: Someone, method: str, path: str, owner: str, record_id: str
) -> None:
    """One route, for one person, about a record of one tenant."""
    what = (someone.kind, someone.tenant, method, path, owner)
    if (method, path) in OFFERED:
        response = await compare_offer(server, someone, method, path, record_id)
    elif method == "POST":
        response = await compare_deed(server, someone, path, owner)
    else:
        response = await compare_page(server, someone, path, record_id)
    if owner != someone.tenant:
        assert record_id not in response.text.replace(fill(path, record_id), ""), what
        assert method == "GET" or "first" not in response.text, what


async def compare_deed(server: Server, someone: Someone, path: str, owner: str) -> httpx.Response:
    """A form and the request that does the same to a twin leave the same in the database."""
    method, api_path, body, controls = DONE[path]
    is_restore = path.endswith("/restore") and "history" not in path
    first, twin = [await make_order(server, owner, deleted=is_restore) for _ in range(2)]
    before = await state(server)
    api_path = f"/api/orders{api_path}".replace("{id}", twin)
    answer = await server.call(method, api_path, json=body, auth=someone.auth)
    between = await state(server)
    form = {name: value.replace("{id}", first) for name, value in controls.items()}
    form["_key"] = f"{first}-{someone.kind}"
    response = await someone.browser.post(fill(path, first), form, files=FILES.get(path))
    what = (someone.kind, someone.tenant, path, owner, answer.status, response.status_code)
    assert changes_of(between, await state(server)) == changes_of(before, between), what
    assert answer.status != 404 or "first" not in response.text, what
    return response


async def compare_offer(
    server: Server, someone: Someone, method: str, path: str, record_id: str
) -> httpx.Response:
    """A form opens for those whose request the API would take, had it the right values."""
    api_method, api_path, body = OFFERED[method, path]
    api_path, _, query = f"/api/orders{api_path}".replace("{id}", record_id).partition("?")
    answer = await server.call(api_method, api_path, query=query, json=body, auth=someone.auth)
    if method == "GET":
        response = await someone.browser.http.get(f"/admin{fill(path, record_id)}")
    else:
        response = await someone.browser.post(fill(path, record_id), {"format": "csv"})
    may = answer.status < 400 or answer.status == 422
    if may and "{id}" in path:  # the values are looked at before the record
        may = (await server.call("GET", f"/api/orders/{record_id}", auth=someone.auth)).status == 200
    what = (someone.kind, someone.tenant, path, answer.status, response.status_code)
    assert (response.status_code < 400) == may, what
    return response


async def compare_page(server: Server, someone: Someone, path: str, record_id: str) -> httpx.Response:
    """A page and the answer of the API have the same status and the same records."""
    suffix, _, query = SHOWN[path].replace("{id}", record_id).partition("?")
    answer = await server.call(
        "GET", f"/api/orders{suffix}", query=query or (NEWEST if not suffix else ""), auth=someone.auth
    )
    address = fill(path, record_id) + (f"?{query}" if query else "")
    response = await someone.browser.http.get(f"/admin{address}", headers=FRAGMENT if "pick" in path else {})
    what = (someone.kind, someone.tenant, path, answer.status, response.status_code)
    assert (response.status_code < 400) == (answer.status < 400), what
    if "{id}" in path and "file" not in path:
        assert response.status_code == answer.status, what
    if answer.status >= 400:
        return response
    if path == "/{model}/export":
        assert answer.stream is not None
        assert response.content == b"".join([chunk async for chunk in answer.stream]), what
    elif path == "/-/count/{model}":
        assert re.search(rf"\b{answer.meta['total']}\b", text_of(response.text)), what
    elif path == "/-/pick/{model}":
        assert [hit["id"] for hit in response.json()] == [row["id"] for row in answer.data], what
    elif path == "/{model}":
        shown = set(re.findall(r"/orders/([0-9a-f]{8}-[0-9a-f-]{27})", response.text))
        assert shown == {row["id"] for row in answer.data}, what
    return response
