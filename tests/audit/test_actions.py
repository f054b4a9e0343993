"""A7: a record of every action that was done."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Operation, Server
from maniflex.audit import ActionAuditRecord
from maniflex.middleware import db
from maniflex.middleware.auth import require_auth
from tests.audit.world import SECRET, KeepingSink, new_server, serving

ADA = {"x-user": "ada;acme", "x-request-id": "req-1"}


@dataclass
class Payment:
    amount: Decimal
    card: str = ""


def paying(entry: Any) -> Server:
    server = new_server()

    @server.action("POST", "/orders/{id}/pay", request=Payment, middleware=[require_auth(), entry])
    async def pay(ctx: Context) -> str:
        if ctx.body.amount < 0:
            ctx.abort(422, "NEGATIVE", "no")
        return "paid"

    return server


async def test_an_action_is_recorded_when_it_is_done(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(paying(db.audit_action(sink, include_body=["amount"])), database_url) as world:
        url = "/orders/7/pay"
        answers = [
            await world.http.post(url, json={"amount": "1.50", "card": SECRET}, headers=ADA),
            await world.http.post(url, json={"amount": "-1"}, headers=ADA),
            await world.http.post(url, json={"amount": "1"}),
            await world.http.post(url, json={"amount": "x"}, headers=ADA),
        ]
        assert [answer.status_code for answer in answers] == [200, 422, 401, 422]
        stored = await world.server.raw_query("SELECT payload FROM outbox_event")
        assert SECRET not in str(stored)
        await world.drain()
    [record] = sink.records
    assert isinstance(record, ActionAuditRecord)
    assert (record.action, record.method, record.path) == ("pay", "POST", "/orders/{id}/pay")
    assert (record.params, record.status, record.body) == ({"id": "7"}, 200, {"amount": "1.50"})
    assert (record.actor, record.tenant_id, record.request_id) == ("ada", "acme", "req-1")
    assert record.service_name == "shop"


async def test_without_a_sink_the_table_has_it_and_no_body(database_url: str) -> None:
    async with serving(paying(db.audit_action()), database_url) as world:
        await world.http.post("/orders/7/pay", json={"amount": "1.50"}, headers=ADA)
        [row] = await world.server.db("ActionAuditLogRow").list()
    assert (row.action, row.params, row.status, row.body) == ("pay", {"id": "7"}, 200, None)


async def test_one_registration_is_for_all_actions(database_url: str) -> None:
    sink = KeepingSink()
    server = new_server()
    server.pipeline.response.register(db.audit_action(sink), operations=Operation.ACTION)

    @server.action("GET", "/hello")
    async def hello(ctx: Context) -> str:
        return "hello"

    @server.action("GET", "/bye")
    def bye(ctx: Context) -> None: ...

    async with serving(server, database_url) as world:
        await world.http.get("/hello")
        await world.http.get("/bye")
        await world.http.get("/audit_orders")
        await world.drain()
    assert [(r.action, r.status) for r in sink.records] == [("hello", 200), ("bye", 204)]


async def test_a_sink_that_fails_leaves_the_answer_alone(database_url: str) -> None:
    async with serving(paying(db.audit_action()), database_url) as world:
        await world.server.raw_exec("ALTER TABLE action_audit_log RENAME TO away")
        answer = await world.http.post("/orders/7/pay", json={"amount": "1.50"}, headers=ADA)
        assert answer.status_code == 200
        assert world.server.metrics.value("audit_failed_total") == 1
        await world.server.raw_exec("ALTER TABLE away RENAME TO action_audit_log")


def test_a_misspelt_part_of_the_body_stops_the_start() -> None:
    with pytest.raises(DeclarationError, match="the body has no 'amont'; did you mean 'amount'"):
        paying(db.audit_action(include_body=["amont"])).seal()
