"""The accounts of the shop: who signs up, who writes, who deletes, and what follows an order."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.orders.models import Order, Product, User
from examples.orders.sample_data import FIRST_STOCK, load
from examples.orders.server import create_server, mailer_of
from maniflex import Config, Server
from maniflex.ext.mail import ConsoleMailer, Mailer, MemoryMailer, SmtpMailer
from maniflex.testing import client
from tests.kit.processes import IMPORTS, MANIFLEX, free_port, start_process

PASSWORD = "hunter22!"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
SECRET = "a-secret-of-more-than-32-bytes-for-tests"
KEY = "A" * 43


@asynccontextmanager
async def serving(
    database: str, mailer: Mailer | None = None, **options: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    mailer = mailer or MemoryMailer()
    server = create_server(Config(storage="memory:"), SECRET, KEY, mailer=mailer, local_webhooks=True)
    async with client(server, database=database, **options) as http:
        await load(server, PASSWORD)
        yield server, http


async def signed_in(http: httpx.AsyncClient, email: str) -> dict[str, Any]:
    answer = await http.post("/api/auth/login", json={"email": email, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return {"headers": {"authorization": f"Bearer {answer.json()['data']['access_token']}"}}


def sign_up(http: httpx.AsyncClient, **values: Any) -> Any:
    body = {"email": "bob@example.com", "password": PASSWORD, "name": "Bob", **values}
    return http.post("/api/users", json=body)


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"] if answer.status_code >= 400 else ""


async def product(http: httpx.AsyncClient) -> str:
    found: str = (await http.get("/api/products?filter=name:eq:Tea")).json()["data"][0]["id"]
    return found


async def test_anybody_signs_up_but_nobody_as_an_admin(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        as_admin = await sign_up(http, role="admin")
        as_bob = await sign_up(http)
        again = await sign_up(http)
        bob = await signed_in(http, "bob@example.com")
        path = f"/api/users/{as_bob.json()['data']['id']}"
        promoted = await http.patch(path, json={"name": "Robert", "role": "admin"}, **bob)
        renamed = await http.patch(path, json={"name": "Robert"}, **bob)
        [stored] = await server.db(User).list({"email": "bob@example.com"})

    assert [outcome(a) for a in (as_admin, as_bob, again)] == [
        (403, "FIELD_FORBIDDEN"),
        (201, ""),
        (409, "CONFLICT"),
    ]
    assert (outcome(promoted), outcome(renamed)) == ((403, "FIELD_FORBIDDEN"), (200, ""))
    assert "password" not in as_bob.json()["data"]
    assert (stored.name, stored.role, stored.password[:10]) == ("Robert", "customer", "$argon2id$")


async def test_writes_need_an_account_and_deletes_an_admin(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        ada, admin = await signed_in(http, "ada@example.com"), await signed_in(http, "admin@example.com")
        tea, body = await product(http), {"name": "Cocoa", "price": "5.00"}
        made = [outcome(await http.post("/api/products", json=body, **who)) for who in ({}, ada, admin)]
        deleted = [(await http.delete(f"/api/products/{tea}", **who)).status_code for who in ({}, ada, admin)]
        listed = await http.get("/api/products?sort=name:asc")

    assert made == [(401, "UNAUTHORIZED"), (403, "FORBIDDEN"), (201, "")]
    assert deleted == [401, 403, 204]
    assert [one["name"] for one in listed.json()["data"]] == ["Biscuits", "Cocoa", "Coffee"]


async def test_customers_see_their_own_orders_and_what_follows_them(database_url: str) -> None:
    mailer = MemoryMailer()
    async with serving(database_url, mailer, background=False) as (server, http):
        await sign_up(http)
        tea = await product(http)
        who = {name: await signed_in(http, f"{name}@example.com") for name in ("ada", "bob", "admin")}
        placed = await http.post("/api/orders/place", json={"product_id": tea}, **who["ada"])
        anonymous = await http.post("/api/orders/place", json={"product_id": tea})
        nothing = await http.post("/api/orders/place", json={"product_id": "nothing"}, **who["ada"])
        await server.work.worker().drain()
        await server.outbox.drainer().drain()
        paths = ("orders", "receipts", "shipments", "users", "workflow_run")
        seen = {
            name: [(await http.get(f"/api/{path}", **who[name])).json()["meta"]["total"] for path in paths]
            for name in who
        }
        order = f"/api/orders/{placed.json()['data']['id']}"
        hidden = await http.get(order, **who["bob"])
        receipt = (await http.get("/api/receipts", **who["ada"])).json()["data"][0]["text"]

    assert (placed.status_code, placed.json()["data"]["price"]) == (200, "4.50")
    assert (outcome(anonymous), outcome(nothing)) == ((401, "UNAUTHORIZED"), (404, "NOT_FOUND"))
    assert seen == {"ada": [1, 1, 1, 1, 1], "bob": [0, 0, 0, 1, 0], "admin": [1, 1, 1, 3, 1]}
    assert outcome(hidden) == (404, "NOT_FOUND")
    [mail] = mailer.sent
    assert receipt == mail.text == "Dear Ada, you ordered Tea for 4.50."
    assert (mail.recipients, mail.subject) == (("ada@example.com",), "Your order of Tea")


async def test_a_refused_order_leaves_nothing(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        ada, body = (
            await signed_in(http, "ada@example.com"),
            {"product_id": await product(http), "fail": True},
        )
        refused = await http.post("/api/orders/place", json=body, **ada)
        left = [
            await server.db(Order).count(),
            await server.work.worker().drain(),
            await server.outbox.drainer().drain(),
        ]

    assert outcome(refused) == (409, "OUT_OF_STOCK")
    assert left == [0, 0, 0]


async def test_pictures_are_for_admins_to_change_and_for_all_to_see(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        ada, admin = await signed_in(http, "ada@example.com"), await signed_in(http, "admin@example.com")
        path = f"/api/products/{await product(http)}"
        picture = {"picture": ("tea.png", PNG, "image/png")}
        changed = [await http.patch(path, files=picture, **who) for who in ({}, ada, admin)]
        loose = [await http.post("/api/files", files={"file": PNG}, **who) for who in ({}, ada)]
        fake = await http.patch(path, files={"picture": ("tea.png", b"<script>", "image/png")}, **admin)
        url = (await http.get(path)).json()["data"]["picture"]
        seen = [(await http.get(place)).content for place in (url, f"{path}/picture")]

    assert [outcome(one) for one in changed] == [(401, "UNAUTHORIZED"), (403, "FORBIDDEN"), (200, "")]
    assert [outcome(one) for one in loose] == [(401, "UNAUTHORIZED"), (403, "FORBIDDEN")]
    assert outcome(fake) == (415, "FILE_TYPE_NOT_ALLOWED")
    assert seen == [PNG, PNG]


async def test_an_order_has_a_history_and_a_price_a_trail(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        await sign_up(http)
        who = {name: await signed_in(http, f"{name}@example.com") for name in ("ada", "bob", "admin")}
        tea = await product(http)
        await http.patch(f"/api/products/{tea}", json={"price": "4.80"}, **who["admin"])
        placed = (await http.post("/api/orders/place", json={"product_id": tea}, **who["ada"])).json()["data"]
        await server.outbox.drainer().drain()
        order = f"/api/orders/{placed['id']}"
        shipped, created = (await http.get(f"{order}/history", **who["ada"])).json()["data"]
        then = await http.get(order, params={"as_of": placed["created_at"]}, **who["ada"])
        hidden = [await http.get(f"{order}/history", **caller) for caller in ({}, who["bob"])]
        trail = await http.get(
            f"/api/audit_log?filter=resource_id:eq:{tea}&sort=timestamp:desc", **who["admin"]
        )
        refused = await http.get("/api/audit_log", **who["ada"])

    assert (created["actor_id"], shipped["actor_id"]) == (placed["customer_id"], "warehouse")
    assert shipped["diff"] == {"status": {"old": "placed", "new": "shipped"}}
    assert then.json()["data"] == placed
    assert [outcome(one) for one in hidden] == [(401, "UNAUTHORIZED"), (404, "NOT_FOUND")]
    assert trail.json()["data"][0]["changes"] == {"price": {"from": "4.50", "to": "4.80"}}
    assert outcome(refused) == (403, "FORBIDDEN")


async def test_a_new_password_signs_everybody_out(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        bob_id = (await sign_up(http)).json()["data"]["id"]
        credentials = {"email": "bob@example.com", "password": PASSWORD}
        pairs = [(await http.post("/api/auth/login", json=credentials)).json()["data"] for _ in range(2)]
        bearers = [{"authorization": f"Bearer {pair['access_token']}"} for pair in pairs]
        body = {"password": "another password"}
        changed = await http.patch(f"/api/users/{bob_id}", json=body, headers=bearers[0])
        orders = [await http.get("/api/orders", headers=bearer) for bearer in bearers]
        refreshed = await http.post("/api/auth/refresh", json={"refresh_token": pairs[1]["refresh_token"]})
        again = await http.post("/api/auth/login", json={**credentials, **body})

    assert changed.status_code == 200
    assert [outcome(answer) for answer in orders] == [(401, "TOKEN_REVOKED")] * 2
    assert outcome(refreshed) == (401, "INVALID_REFRESH_TOKEN")
    assert again.status_code == 200


async def test_an_account_that_is_deleted_is_out_at_once(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        bob_id = (await sign_up(http)).json()["data"]["id"]
        pair = await http.post("/api/auth/login", json={"email": "bob@example.com", "password": PASSWORD})
        tokens = pair.json()["data"]
        admin = await signed_in(http, "admin@example.com")
        deleted = await http.delete(f"/api/users/{bob_id}", **admin)
        bearer = {"authorization": f"Bearer {tokens['access_token']}"}
        own_orders = await http.get("/api/orders", headers=bearer)
        refreshed = await http.post("/api/auth/refresh", json={"refresh_token": tokens["refresh_token"]})
        signed_in_again = await http.post(
            "/api/auth/login", json={"email": "bob@example.com", "password": PASSWORD}
        )

    assert deleted.status_code == 204
    assert outcome(own_orders) == (401, "TOKEN_REVOKED")
    assert outcome(refreshed) == (401, "INVALID_REFRESH_TOKEN")
    assert outcome(signed_in_again) == (401, "INVALID_CREDENTIALS")


async def test_an_order_takes_from_the_shelf_once_and_little_left_is_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(database_url, background=False) as (server, http):
        ada, admin = await signed_in(http, "ada@example.com"), await signed_in(http, "admin@example.com")
        body = {"product_id": await product(http)}
        for _ in range(2):
            assert (await http.post("/api/orders/place", json=body, **ada)).status_code == 200
        await server.events.drain()
        replayed = await http.post(
            "/api/event_group/shelf/replay", json={"since": "2020-01-31T08:00:00Z"}, **admin
        )
        await server.events.drain()
        left = (await server.db(Product).read(body["product_id"])).stock
        types = [event.type for event in await server.events.read()]

    assert (replayed.status_code, replayed.json()["data"]) == (202, {"count": 2})
    assert left == FIRST_STOCK - 2
    assert types == ["order.created", "order.created", "product.low"]
    assert caplog.messages.count("there are 4 of Tea left") == 1


async def test_customers_are_told_of_their_own_orders_and_check_who_tells(
    database_url: str, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with serving(database_url, background=False) as (server, http):
        await sign_up(http)
        ada, bob = await signed_in(http, "ada@example.com"), await signed_in(http, "bob@example.com")
        made = await http.post(
            "/api/webhook_endpoints", json={"url": f"{url}/api/hooks", "patterns": ["order.*"]}, **ada
        )
        offered = await http.post(
            "/api/webhook_endpoints", json={"url": url, "patterns": ["product.*"]}, **ada
        )
        endpoint = made.json()["data"]
        command: list[str | Path] = [MANIFLEX, "run", "examples.orders.receiver:server", "--port", str(port)]
        environment = {"WEBHOOK_SECRET": endpoint["secret"], "PYTHONPATH": IMPORTS}
        with start_process(command, port, cwd=tmp_path, **environment) as receiver:
            receiver.until_up()
            ping = await http.post(f"/api/webhook_endpoints/{endpoint['id']}/test", **ada)
            body = {"product_id": await product(http)}
            for who in (ada, bob):
                await http.post("/api/orders/place", json=body, **who)
            await server.outbox.drainer().drain()  # the warehouse ships
            await server.webhooks.drain()
            async with httpx.AsyncClient(base_url=url) as outside:
                forged = await outside.post("/api/hooks", json={"type": "order.created", "data": {}})
                told = (await outside.get("/api/told?sort=created_at:asc")).json()["data"]
            receiver.send(signal.SIGINT)
            receiver.ended()
        seen = (await http.get("/api/webhook_deliveries", **bob)).json()["meta"]["total"]

    assert (made.status_code, outcome(offered)) == (201, (422, "VALIDATION_FAILED"))
    assert ping.json()["data"]["status"] == 204
    assert [(one["event"], one["item"], one["status"]) for one in told] == [
        ("webhook.ping", None, None),
        ("order.created", "Tea", "placed"),
        ("order.updated", "Tea", "shipped"),
    ]
    assert "told: order.created Tea placed" in receiver.output
    assert outcome(forged) == (401, "INVALID_SIGNATURE")
    assert seen == 0


def test_mails_go_to_the_terminal_or_to_the_server_of_the_settings() -> None:
    to_server = mailer_of({"SMTP_HOST": "127.0.0.1", "SMTP_PORT": "2525", "SMTP_TLS": "none"})

    assert isinstance(mailer_of({}), ConsoleMailer)
    assert isinstance(to_server, SmtpMailer)
