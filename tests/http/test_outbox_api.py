"""The outbox over REST: for admins, to look at, and to give dead messages another chance."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Run, Server
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import ADA, ROOT, known

MESSAGES = "/api/outbox_event"


class Order(Model):
    total: int = 0


def a_server(**settings: Any) -> Server:
    server = Server(background=False, outbox_max_attempts=1, **settings)
    server.pipeline.auth.register(known)

    @server.outbox.handler("order.placed")
    async def placed(message: Any) -> None:
        if message.attempts <= 1 and message.payload == "bad":
            raise ValueError("no luck")

    return server


async def test_only_admins_look_at_messages(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        for path in (MESSAGES, f"{MESSAGES}/x"):
            error_of(await http.get(path), 401, "UNAUTHORIZED")
            error_of(await http.get(path, headers=ADA), 403, "FORBIDDEN")
        error_of(await http.post(f"{MESSAGES}/x/redrive", headers=ADA), 403, "FORBIDDEN")
        assert (await http.get(MESSAGES, headers=ROOT)).json()["meta"]["total"] == 0


async def test_a_dead_message_gets_another_chance(database_url: str) -> None:
    server = a_server(clock=FakeClock())
    async with client(server, database=database_url) as http:
        message = await server.outbox.enqueue("order.placed", "bad", outside_transaction=True)
        one = f"{MESSAGES}/{message.id}"
        error_of(await http.post(f"{one}/redrive", headers=ROOT), 409, "CONFLICT")
        await server.outbox.drainer().drain()

        [dead] = data_of(await http.get(f"{MESSAGES}?filter=status:eq:dead", headers=ROOT))
        assert "no luck" in dead["last_error"]
        assert "lease" not in dead
        again = data_of(await http.post(f"{one}/redrive", headers=ROOT))
        assert (again["status"], again["attempts"]) == ("pending", 0)
        error_of(await http.post(f"{MESSAGES}/nothing/redrive", headers=ROOT), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", MESSAGES), ("PATCH", f"{MESSAGES}/x"), ("DELETE", f"{MESSAGES}/x")]
)
async def test_messages_are_written_by_code_alone(method: str, path: str, sqlite_url: str) -> None:
    async with client(a_server(), database=sqlite_url) as http:
        refused = await http.request(method, path, json={}, headers=ROOT)

        error_of(refused, 405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == "GET, HEAD, OPTIONS"
        assert (await http.options(path)).headers["allow"] == "GET, HEAD, OPTIONS"


async def test_the_routes_can_be_left_out(sqlite_url: str) -> None:
    server = a_server()
    server.outbox.enable(routes=False)
    async with client(server, database=sqlite_url) as http:
        assert (await http.get(MESSAGES, headers=ROOT)).status_code == 404


async def test_another_role_may_be_the_one_that_sees_them(sqlite_url: str) -> None:
    server = a_server()
    server.outbox.enable(admin_role="operator")
    async with client(server, database=sqlite_url) as http:
        error_of(await http.get(MESSAGES, headers=ROOT), 403, "FORBIDDEN")
        operator = {"x-user": "olga", "x-roles": "operator"}
        assert (await http.get(MESSAGES, headers=operator)).status_code == 200


def a_shop() -> Server:
    """A server whose code enqueues messages that no handler of its own is declared for."""
    server = Server(background=False)
    server.register(Order)

    @server.work.handler("email.receipt.v1", max_attempts=5)
    async def send_receipt(run: Run) -> None: ...

    @server.action("POST", "/orders/place")
    async def place(ctx: Context) -> Order:
        async with ctx.transaction():
            order = await ctx.db(Order).create(total=1)
            await server.work.submit("email.receipt.v1", {"order_id": order.id}, tx=ctx.tx)
            await server.outbox.enqueue("order.placed", {"id": order.id}, key=order.id, tx=ctx.tx)
        return order

    @server.action("POST", "/orders/note")
    async def note(ctx: Context) -> bool:
        async with ctx.transaction():
            await ctx.db(Order).create(total=1)
            return await server.inbox.once("order 7")

    return server


@pytest.mark.parametrize("route", ["place", "note"])
async def test_an_outbox_that_is_not_in_use_says_what_to_type(
    database_url: str, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_shop()
    async with client(server, database=database_url) as http:
        error_of(await http.post(f"/api/orders/{route}"), 500, "PANIC")

        words = "the outbox is not in use: declare a handler with @server.outbox.handler(kind), or call"
        assert f"{words} server.outbox.enable() before the start" in caplog.text
        assert await server.db(Order).count() == 0
        assert await server.work.list() == []


async def test_messages_for_others_wait_once_it_is_enabled(database_url: str) -> None:
    server = a_shop()
    server.outbox.enable()
    server.pipeline.auth.register(known)
    async with client(server, database=database_url) as http:
        order = data_of(await http.post("/api/orders/place"))
        assert data_of(await http.post("/api/orders/note")) is True

        [message] = data_of(await http.get(MESSAGES, headers=ROOT))
        assert (message["kind"], message["key"], message["status"]) == (
            "order.placed",
            order["id"],
            "pending",
        )
