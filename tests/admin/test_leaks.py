"""What the panel must never show: rows of another tenant, secrets, and texts that run as code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from maniflex import AuthInfo, Model, Server, WithDeletedAt, field, file, has_many, many_to_many
from maniflex.admin.panel import panel_routes
from maniflex.admin.tables import AdminEvent
from maniflex.middleware import auth, db
from maniflex.testing import client
from tests.kit.panel import Browser, add_superuser, text_of, visiting

FOREIGN = "foreign-label-7f3a"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


class Customer(Model):
    tenant_id: str = field(relation=None)
    name: str = field(filterable=True, sortable=True)
    orders: list[Order] = has_many()


class Label(Model):
    tenant_id: str = field(relation=None)
    name: str = field(filterable=True, searchable=True)


class OrderLabel(Model):
    tenant_id: str = field(relation=None)
    order_id: str = field(on_delete="cascade")
    label_id: str = field(on_delete="cascade")


class Order(Model, WithDeletedAt, versioned=True, restore=True, export=True):
    tenant_id: str = field(relation=None)
    number: str = field(filterable=True, sortable=True, searchable=True)
    customer_id: str | None = field(default=None, filterable=True)
    scan: str | None = file(default=None)
    labels: list[Label] = many_to_many(through="OrderLabel")


def make_server() -> Server:
    server = Server(storage="memory:")
    server.register(Customer, Label, OrderLabel, Order)
    server.pipeline.auth.register(auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1")}))
    server.pipeline.db.register(db.tenancy())
    admin = server.admin()

    @admin.action(Order, on="record")
    async def look(ctx: object, ids: object) -> str:
        return f"looked at {ids}"

    return server


def paths_of(server: Server, table: str, record_id: str) -> Iterator[tuple[str, str]]:
    """Every route of the panel that is about a record, by method."""
    admin = server.declared_panel
    assert admin is not None
    values = {
        "{model}": table, "{id}": record_id, "{field}": "scan", "{version}": "1", "{name}": "look",
    }  # fmt: skip
    for route in panel_routes(admin):
        if "{id}" in route.path and "{model}" in route.path:  # others are about durable work
            path = route.path
            for name, value in values.items():
                path = path.replace(name, value)
            yield route.method, path


async def test_no_page_knows_of_another_tenant(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await add_superuser(server, "bob@two.example", tenant_id="t2")
        theirs = await server.db(Customer).create(tenant_id="t2", name=FOREIGN)
        label = await server.db(Label).create(tenant_id="t2", name=FOREIGN)
        order = await server.db(Order).create(tenant_id="t2", number=FOREIGN, customer_id=theirs.id)
        gone = await server.db(Order).create(tenant_id="t2", number=FOREIGN)
        await server.db(Order).delete(gone.id)
        own = await server.db(Order).create(tenant_id="t1", number="mine")
        await browser.sign_in("bob@two.example")
        assert FOREIGN in await browser.get("/orders")
        await browser.send(f"/orders/{order.id}", {"f.number": f"{FOREIGN} 2", "_seen": "{}"})
        await browser.send("/-/logout")
        await browser.sign_in("ada@one.example")

        seen = []
        for table, record_id in (("orders", order.id), ("orders", gone.id), ("customers", theirs.id)):
            for method, path in paths_of(server, table, record_id):
                if method == "GET":
                    response = await browser.http.get(f"/admin{path}")
                else:
                    controls = {"f.number": "stolen", "f.name": "stolen", "_seen": "{}", "value": "x"}
                    response = await browser.post(path, controls)
                assert response.status_code == 404, (method, path, response.status_code)
                seen.append(response.text)
        for path in (
            "/", "/orders", "/orders?trash=1", "/orders?q=foreign", f"/orders?f_customer_id={theirs.id}",
            f"/orders?f_customer.name~contains={FOREIGN[:7]}", "/customers", "/-/audit", "/-/views",
            f"/-/audit?f_record={order.id}", f"/-/search?q={FOREIGN}", f"/-/search?q={order.id}",
            f"/-/pick/customers?q={FOREIGN[:7]}", f"/-/pick/customers?q={theirs.id}", f"/orders/{own.id}",
            f"/orders/{own.id}/edit", f"/orders/{own.id}/history", "/-/count/orders",
            "/orders/export?format=csv",
        ):  # fmt: skip
            response = await browser.http.get(f"/admin{path}")
            assert response.status_code == 200, (path, response.status_code)
            seen.append(response.text.replace(f"q={FOREIGN}", "").replace(f'value="{FOREIGN}"', ""))
            assert order.id not in response.text or order.id in path, path
        attempts: list[dict[str, Any]] = [
            {"ids": [order.id, gone.id], "action": "delete", "confirm": "1"},
            {"ids": [order.id], "action": "set", "set.number": "stolen", "confirm": "1"},
            {"all": "1", "action": "delete", "query": f"f_number~contains={FOREIGN[:7]}"},
        ]
        for attempt in attempts:
            response = await browser.post("/orders/bulk", attempt)
            assert response.status_code in (200, 422)
            seen.append(response.text)
        forged = {"f.customer_id": theirs.id, "f.labels": label.id, "_seen": "{}", "f.number": "mine"}
        refused = await browser.post(f"/orders/{own.id}", forged)
        assert refused.status_code in (403, 404, 409, 422)
        seen.append(refused.text)
        for page in seen:
            text = page.replace(f"{FOREIGN[:7]}", "") if f"q={FOREIGN[:7]}" in page else page
            assert FOREIGN not in text
        assert (await server.db(Order).read(order.id)).number == f"{FOREIGN} 2"
        assert (await server.db(Order).read(own.id)).customer_id is None
        assert await server.db(AdminEvent).count({"actor_name": "ada@one.example", "action": "update"}) == 0


SECRETS = ("hidden-marker-1", "write-marker-2", "typed-marker-3")


class Account(Model, versioned=True, export=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    hidden_note: str = field(default=SECRETS[0], hidden=True)
    password: str = field(writeonly=True, min_length=4)


async def test_no_page_shows_a_secret(database_url: str) -> None:
    server = Server()
    server.register(Account)
    server.admin()
    async with visiting(server, database_url) as browser:
        await browser.get("/accounts/new")
        path = await browser.send(
            "/accounts", {"f.name": "Ada", "f.password": SECRETS[1], "_seen": "{}", "_key": "x"}
        )
        await browser.send(path, {"f.name": "Ada 2", "f.password": SECRETS[2], "_seen": '{"name": "Ada"}'})
        refused = await browser.post(path, {"f.name": "", "f.password": SECRETS[2], "_seen": '{"name": "x"}'})
        pages = [refused.text, str(refused.headers)]
        for page in (
            "/", "/accounts", path, f"{path}/edit", f"{path}/history", f"{path}/history/1", f"{path}/delete",
            "/accounts?q=ada", "/accounts/export?format=csv", "/-/audit", "/-/search?q=ada",
            "/-/pick/accounts",
            "/accounts/new", "/-/account", f"{path}/edit?version=1",
        ):  # fmt: skip
            response = await browser.http.get(f"/admin{page}")
            assert response.status_code == 200, page
            pages += [response.text, str(response.headers)]
        for query in ("f_password=x", "f_hidden_note=x", "sort=password", "columns=hidden_note"):
            pages.append(await browser.get(f"/accounts?{query}", 400))
        for page in pages:
            for secret in SECRETS:
                assert secret not in page
        assert (await server.db(Account).list())[0].password == SECRETS[2]


ATTACKS = [
    "<script>x</script>", '"><img src=x onerror=x>', "'><svg/onload=x>", "javascript:alert(1)", "{{ 7*7 }}",
    "</textarea><script>x</script>", "<!--", "]]>", "\u2028\u2029", "\u202eevil", "&lt;b&gt;", "%3Cscript%3E",
    "</title><script>x</script>", "data:text/html,<script>x</script>", 'x" autofocus onfocus="x',
]  # fmt: skip


class Note(Model, versioned=True):
    text: str = field(filterable=True, sortable=True)
    more: str | None = None


async def test_texts_are_only_texts(sqlite_url: str) -> None:
    server = Server()
    server.register(Note)
    server.admin(title="<b>Notes</b>")
    async with visiting(server, sqlite_url) as browser:
        for attack in ATTACKS:
            note = await server.db(Note).create(text=attack, more=attack)
            await server.db(Note).update(note.id, more=attack + "2")
            for page in (
                f"/notes/{note.id}", f"/notes/{note.id}/edit", f"/notes/{note.id}/history", "/notes",
                f"/notes/{note.id}/delete",
            ):  # fmt: skip
                html = await browser.get(page)
                assert dangerous(html) == [], (attack, page)
        page = await browser.get("/notes", params={"q": ATTACKS[1], "f_text": ATTACKS[2]})
        assert dangerous(page) == []
        assert "javascript:alert(1)" in text_of(await browser.get("/notes"))
        assert 'href="javascript:' not in await browser.get("/notes")
        assert "49" not in text_of(await browser.get("/notes?f_text=%7B%7B%207*7%20%7D%7D"))


def dangerous(page: str) -> list[str]:
    """Tags and attributes that no page of ours has."""
    scripts = [s for s in re.findall(r"<script\b[^>]*>", page) if 'src="/admin/static/panel.' not in s]
    handlers = [
        tag
        for tag in re.findall(r"<[a-z]+\b(?:[^>\"]|\"[^\"]*\")*>", page)
        if re.search(r"\son[a-z]+\s*=", re.sub(r'"[^"]*"', '""', tag))
        or " style=" in re.sub(r'"[^"]*"', '""', tag)
    ]
    return scripts + handlers + re.findall(r'href="(?:javascript|data):[^"]*"', page)


async def test_the_panel_shows_what_the_api_shows_with_the_same_headers(database_url: str) -> None:
    server = Server(storage="memory:")
    server.register(Customer, Label, OrderLabel, Order)
    keys = {
        "one-" + "x" * 20: AuthInfo(user_id="a", tenant_id="t1", roles=("superuser",)),
        "two-" + "x" * 20: AuthInfo(user_id="b", tenant_id="t2", roles=("superuser",)),
    }
    server.pipeline.auth.register(auth.api_keys(keys=keys))
    server.pipeline.db.register(db.tenancy())
    server.admin(auth="pipeline")
    async with client(server, database=database_url) as http:
        await server.db(Order).create(tenant_id="t1", number="of one")
        await server.db(Order).create(tenant_id="t2", number="of two")
        for key, own, other in (("one-", "of one", "of two"), ("two-", "of two", "of one")):
            headers = {"x-api-key": key + "x" * 20}
            browser = Browser(http)
            page = text_of(await browser.get("/orders", headers=headers))
            assert own in page
            assert other not in page
            await browser.get("/-/account", headers=headers)
            made = await browser.post(
                "/customers", {"f.name": f"by {key}", "_seen": "{}", "_key": key}, headers=headers
            )
            assert made.status_code == 303, made.text[-900:]
        customers = await server.db(Customer).list(sorts="tenant_id")
        assert [(c.tenant_id, c.name) for c in customers] == [("t1", "by one-"), ("t2", "by two-")]
