"""A1-A5, A8: one record for every committed write, without secrets, and none for anything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, Model, Operation, Server, with_transaction
from maniflex.audit import AuditRecord, FieldChange
from maniflex.middleware import db
from maniflex.pipeline.registration import Next
from tests.audit.world import (
    SECRET,
    KeepingSink,
    Ledger,
    Order,
    Plain,
    Setting,
    Shop,
    new_server,
    serving,
    write_and_roll_back,
)

ADA = {"x-user": "ada;acme;clerk", "x-request-id": "req-1", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
ALL: list[type[Model]] = [Shop, Order, Setting, Ledger]


def audited(sink: KeepingSink, *, at: str = "before", **options: Any) -> Server:
    server = new_server()
    entry = db.audit_log(sink, **{"changes": True, **options})
    server.pipeline.db.register(entry, models=ALL, operations=Operation.WRITES, at=at)
    return server


def brief(records: list[AuditRecord]) -> list[tuple[str, str, str]]:
    return [(r.model, r.operation, r.source) for r in records]


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_record_says_who_did_what(database_url: str, at: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink, at=at), database_url) as world:
        made = await world.http.post("/audit_orders", json={"number": 7, "remark": "fragile"}, headers=ADA)
        order = made.json()["data"]
        changed = await world.http.patch(f"/audit_orders/{order['id']}", json={"price": "2.25"}, headers=ADA)
        await world.http.delete(f"/audit_orders/{order['id']}", headers=ADA)
        await world.http.post(f"/audit_orders/{order['id']}/restore", headers=ADA)
        assert sink.records == []  # none before a relay has taken it out of the transaction
        assert await world.drain() == 4
    create, update, delete, restore = records = sink.take()
    assert [r.operation for r in records] == ["create", "update", "delete", "restore"]
    assert len({r.id for r in records}) == 4
    for record in records:
        who = (record.model, record.resource_id, record.actor, record.tenant_id, record.request_id)
        assert who == ("Order", order["id"], "ada", "acme", "req-1")
        assert (record.service_name, record.source, record.trace_id) == (
            "shop",
            "request",
            "ab" * 16,
        )
    assert create.result == order
    assert update.result == changed.json()["data"]
    assert update.changes == {"price": FieldChange(from_="1.50", to="2.25")}
    assert create.changes["number"] == FieldChange(from_=None, to=7)
    assert create.changes["remark"] == FieldChange(from_=None, to="fragile")
    assert create.changes.keys() == {"number", "price", "remark", "tags"}  # a null is no value
    assert delete.changes["price"] == FieldChange(from_="2.25", to=None)
    assert delete.result["price"] == "2.25"
    assert restore.changes["price"] == FieldChange(from_=None, to="2.25")


async def test_secrets_are_nowhere(database_url: str) -> None:
    sink = KeepingSink()
    server = audited(sink, exclude=["remark", "shop_id"])
    server.pipeline.db.register(db.audit_log(changes=True, exclude="note"), models=[Order])
    async with serving(server, database_url) as world:
        order = await world.order(pin=SECRET, remark="excluded", number=1)
        await world.server.db(Order).update(order, margin=SECRET)
        await world.http.patch(f"/audit_orders/{order}", json={"pin": SECRET + "!", "remark": "excluded!"})
        texts = [str(row) for row in await world.server.raw_query("SELECT payload FROM outbox_event")]
        texts += [str(row) for row in await world.server.raw_query("SELECT result, changes FROM audit_log")]
        assert len(texts) == 6
        await world.drain()
    texts += [str(record) for record in sink.records]
    assert len(texts) == 9
    for text in texts:
        assert not [word for word in (SECRET, "excluded", "pin", "margin") if word in text]
    assert [record.changes for record in sink.records[1:]] == [{}, {}]


async def test_nothing_is_recorded_of_what_did_not_happen(database_url: str) -> None:
    sink = KeepingSink()
    server = audited(sink)
    server.pipeline.db.register(with_transaction(), models=[Shop])

    @server.pipeline.db.middleware(models=[Shop], at="after")
    async def refuse(ctx: Context, next: Next) -> None:
        await next()
        if ctx.field("name") == "refused":
            ctx.abort(422, "NO", "no")
        if ctx.field("name") == "broken":
            raise RuntimeError("broken")

    async with serving(server, database_url) as world:
        statuses = [
            (await world.http.post("/audit_orders", json={"number": "x"})).status_code,
            (await world.http.patch("/audit_orders/nobody", json={"number": 1})).status_code,
            (await world.http.delete("/audit_orders/nobody")).status_code,
            (await world.http.post("/audit_shops", json={"name": "refused"})).status_code,
            (await world.http.post("/audit_shops", json={"name": "broken"})).status_code,
        ]
        await write_and_roll_back(world.server, world.server.db(Order).create(number=1))
        await world.http.post("/audit_plain", json={"name": "not audited"})
        assert statuses == [422, 404, 404, 422, 500]
        assert await world.drain() == 0
        assert await world.server.db(Shop).count() == 0
    assert sink.records == []


async def test_a_sink_finds_the_record_it_is_told_of(database_url: str) -> None:
    sink, seen = KeepingSink(), []
    async with serving(audited(sink), database_url) as world:

        async def look(record: AuditRecord) -> None:
            seen.append((await world.server.db(Order).read(record.resource_id)).number)

        sink.on_write = look
        await world.order(number=5)
        await world.drain()
    assert seen == [5]


async def test_a_patch_that_changes_nothing_is_a_record_without_changes(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), database_url) as world:
        order = await world.order(number=1, tags={"a": 1, "b": [1]})
        for body in ({"number": 1}, {}, {"tags": {"b": [1.0], "a": 1.0}}, {"price": "1.5"}):
            assert (await world.http.patch(f"/audit_orders/{order}", json=body)).status_code == 200
        await world.drain()
    assert [(r.operation, r.changes) for r in sink.records[1:]] == [("update", {})] * 4


async def test_code_cascades_and_sweeps_are_told_of(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), database_url) as world:
        shop = await world.server.db(Shop).create(name="a")
        with world.server.acting_as("ada", reason="clean-up"):
            for number in range(3):
                await world.server.db(Order).create(number=number, shop_id=shop.id)
            await world.server.db(Ledger).create(total=1)
        await world.drain()
        assert brief(sink.records) == [
            ("Shop", "create", "code"),
            *[("Order", "create", "code")] * 3,
            ("Ledger", "create", "code"),
        ]
        assert {(r.actor, r.reason) for r in sink.take()[1:]} == {("ada", "clean-up")}

        await world.http.delete(f"/audit_shops/{shop.id}", headers=ADA)
        await world.drain()
        records = sink.take()
        assert sorted(brief(records)) == [("Order", "delete", "cascade")] * 3 + [
            ("Shop", "delete", "request")
        ]
        assert {(r.source, r.actor, r.request_id) for r in records} == {
            ("request", "ada", "req-1"),
            ("cascade", None, "req-1"),
        }

        soon = world.clock.now() + timedelta(minutes=1)
        order = await world.server.db(Order).create(expires_at=soon)
        world.clock.advance(timedelta(minutes=2))
        await world.server.scheduled.runner().sweep()
        await world.drain()
        _, swept = sink.take()
        assert (swept.operation, swept.source, swept.resource_id) == ("delete", "sweep", order.id)
        assert (swept.actor, swept.request_id) == (None, None)


async def test_requests_only_leaves_out_what_no_request_wrote(database_url: str) -> None:
    sink = KeepingSink()
    server = audited(sink, requests_only=True)

    @server.action("POST", "/act")
    async def act(ctx: Context) -> None:
        ctx.change_reason = "asked by phone"
        await ctx.db(Order).create(number=2)

    async with serving(server, database_url) as world:
        shop = await world.server.db(Shop).create()
        await world.order(number=1, shop_id=shop.id)
        await world.http.post("/act")
        await world.http.delete(f"/audit_shops/{shop.id}")
        await world.drain()
    assert brief(sink.records) == [
        ("Order", "create", "request"),
        ("Order", "create", "action"),
        ("Shop", "delete", "request"),
    ]
    assert sink.records[1].reason == "asked by phone"


async def test_a_singletons_first_patch_is_a_create_and_an_update(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), database_url) as world:
        await world.http.patch("/audit_settings", json={"theme": "dark"}, headers=ADA)
        await world.drain()
    create, update = sink.records
    assert brief(sink.records) == [("Setting", "create", "provision"), ("Setting", "update", "request")]
    assert create.resource_id == update.resource_id
    assert (create.actor, update.actor) == ("ada", "ada")
    assert create.changes == {"theme": FieldChange(from_=None, to="light")}
    assert update.changes == {"theme": FieldChange(from_="light", to="dark")}


async def test_only_the_operations_of_the_registration_are_recorded(database_url: str) -> None:
    sink = KeepingSink()
    server = new_server()
    entry = db.audit_log(sink)
    server.pipeline.db.register(entry, models=[Order], operations="delete")
    server.pipeline.db.register(entry, models=[Shop], operations=["create", "update"])
    async with serving(server, database_url) as world:
        order = await world.order()
        await world.http.patch(f"/audit_orders/{order}", json={"number": 2})
        await world.http.delete(f"/audit_orders/{order}")
        shop = (await world.http.post("/audit_shops", json={})).json()["data"]["id"]
        await world.http.delete(f"/audit_shops/{shop}")
        await world.drain()
    assert brief(sink.records) == [("Order", "delete", "request"), ("Shop", "create", "request")]
    assert sink.records[0].changes is None  # nobody asked for them


async def test_models_that_are_not_audited_are_not_listened_to() -> None:
    server = audited(KeepingSink())
    server.seal()
    stores = server._seal().runtime.stores
    assert stores[Plain].seam.listeners == ()
    assert type(stores[Plain]).__name__ == "Store"
    assert len(stores[Order].seam.listeners) == 1
