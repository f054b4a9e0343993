"""A4, A5: how records get to their sinks, and what a sink that fails or hangs does to requests."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maniflex import DeclarationError, Model, Operation, Server
from maniflex.audit import AuditRecord, LogSink, TableSink
from maniflex.middleware import db
from maniflex.sql.statement import by_dialect
from maniflex.testing import client
from tests.audit.world import KeepingSink, Order, Shop, new_server, received, serving, write_and_roll_back
from tests.kit.internals import adapter_of
from tests.kit.statements import calls_of


def audited(sink: Any, **options: Any) -> Server:
    server = new_server()
    server.pipeline.db.register(db.audit_log(sink, **options), models=[Order], operations=Operation.WRITES)
    return server


async def test_a_sink_that_was_down_gets_every_record_with_the_same_id(database_url: str) -> None:
    sink = KeepingSink()
    seen: list[str] = []

    async def fail_once(record: AuditRecord) -> None:
        seen.append(record.id)
        if seen.count(record.id) == 1:
            raise OSError("the answer was lost")

    sink.on_write = fail_once
    async with serving(audited(sink), database_url) as world:
        sink.is_down = True
        orders = [await world.order(number=n) for n in range(5)]
        await world.drain()
        assert (sink.records, seen) == ([], [])
        sink.is_down = False
        for _ in range(2):
            world.clock.advance(timedelta(minutes=1))
            await world.drain()
    assert [record.resource_id for record in sink.records] == orders
    assert sorted(seen) == sorted([r.id for r in sink.records] * 2)


@pytest.mark.parametrize("delivery", ["outbox", "background"])
async def test_a_sink_that_hangs_delays_no_answer(database_url: str, delivery: str) -> None:
    sink = KeepingSink(gate=asyncio.Event())
    assert sink.gate is not None
    server = audited(sink, delivery=delivery)
    async with client(server, database=database_url, background=True) as http:
        start = time.monotonic()
        for number in range(20):
            assert (await http.post("/audit_orders", json={"number": number})).status_code == 201
        assert time.monotonic() - start < 50  # the sink would have taken a hundred
        assert sink.records == []
        sink.gate.set()
        records = await received(sink, 20)
    assert {record.result["number"] for record in records} == set(range(20))


async def test_background_records_come_after_the_commit_and_before_the_end(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink, delivery="background"), database_url) as world:
        await write_and_roll_back(world.server, world.server.db(Order).create(number=1))
        async with world.server.transaction():
            await world.server.db(Order).create(number=2)
            await asyncio.sleep(0)
            assert sink.records == []
        [record] = await received(sink, 1)
        assert record.result["number"] == 2
        sink.gate = gate = asyncio.Event()
        await world.order(number=3)
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert [record.result["number"] for record in sink.records] == [3]  # the shutdown has waited for it


async def test_a_background_sink_that_fails_is_logged_and_counted(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maniflex.audit.delivery.LIMIT", 0.05)
    sink = KeepingSink(is_down=True)
    async with serving(audited(sink, delivery="background"), database_url) as world:
        await world.order(number=1)
        sink.gate = asyncio.Event()
        await world.order(number=2)
    assert world.server.metrics.value("audit_failed_total") == 2
    lines = [r.getMessage() for r in caplog.records if "did not reach the sink" in r.getMessage()]
    assert len(lines) == 2
    assert any("the sink is down" in line for line in lines)
    assert any("TimeoutError" in line for line in lines)


async def test_in_the_transaction_no_record_means_no_write(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink, delivery="transaction"), database_url) as world:
        order = await world.order(number=1)
        assert [record.operation for record in sink.take()] == ["create"]  # at once
        sink.is_down = True
        assert (await world.http.patch(f"/audit_orders/{order}", json={"number": 2})).status_code == 500
        assert (await world.server.db(Order).read(order)).number == 1


async def test_the_table_has_the_record_when_the_write_is_committed(database_url: str) -> None:
    async with serving(audited(None, changes=True), database_url) as world:
        order = await world.order(number=1)
        await write_and_roll_back(world.server, world.server.db(Order).update(order, number=2))
        [row] = await world.server.raw_query("SELECT * FROM audit_log")
        assert (row["model"], row["operation"], row["resource_id"]) == ("Order", "create", order)
        shop = await world.server.db(Shop).create()
        for number in range(120):
            await world.server.db(Order).create(number=number, shop_id=shop.id)
        await world.server.db(Shop).delete(shop.id)
        deleted = await world.server.db("AuditLogRow").list({"operation": "delete", "source": "cascade"})
        assert len({one.resource_id for one in deleted}) == 120


async def test_a_write_and_its_row_of_the_table_are_one_call_of_the_database(database_url: str) -> None:
    async with serving(audited(None, changes=True), database_url) as world:
        dialect = adapter_of(world.server).dialect
        with calls_of(world.server) as calls:
            order = await world.order(number=1, price="2.50", tags={"a": 1})
            changes = {"number": 2, "price": "3.10", "tags": {"b": [1.0, None]}}
            assert (await world.http.patch(f"/audit_orders/{order}", json=changes)).status_code == 200
            assert (await world.http.delete(f"/audit_orders/{order}")).status_code == 204
        on_postgres = ["write", "fetch_one", "write", "fetch_one", "write"]
        assert calls == by_dialect(dialect, sqlite=["batch"] * 3, postgres=on_postgres)
        rows = {row.operation: row for row in await world.server.db("AuditLogRow").list()}
        assert rows.keys() == {"create", "update", "delete"}
        assert rows["update"].changes["price"] == {"from": "2.50", "to": "3.10"}
        assert rows["update"].changes["tags"] == {"from": {"a": 1}, "to": {"b": [1.0, None]}}


async def test_a_row_that_the_database_changes_is_recorded_as_it_is_stored(postgres_url: str) -> None:
    """By a trigger of the application's own, which touches a field that no request has sent."""
    async with serving(audited(None, changes=True), postgres_url) as world:
        await world.server.raw_exec(
            "CREATE FUNCTION double() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.note := (NEW.number * 2)::text; RETURN NEW; END $$"
        )
        await world.server.raw_exec(
            "CREATE TRIGGER double BEFORE INSERT OR UPDATE ON audit_orders"
            " FOR EACH ROW EXECUTE FUNCTION double()"
        )
        for _ in range(2):  # the second time it is known
            order = await world.order(number=1)
            await world.http.patch(f"/audit_orders/{order}", json={"number": 2})
            rows = await world.server.db("AuditLogRow").list({"resource_id": order})
            assert {row.operation: row.result["remark"] for row in rows} == {"create": "2", "update": "4"}
            assert {row.operation: row.changes["remark"]["to"] for row in rows} == {
                "create": "2",
                "update": "4",
            }


async def test_the_tables_only_grow(database_url: str) -> None:
    async with serving(audited(None), database_url) as world:
        await world.order()
        [row] = await world.server.db("AuditLogRow").list()
        for write in (
            world.server.db("AuditLogRow").update(row.id, actor="eve"),
            world.server.db("AuditLogRow").delete(row.id),
        ):
            with pytest.raises(DeclarationError):
                await write


async def test_a_record_that_comes_twice_is_in_the_table_once(database_url: str) -> None:
    sink = TableSink()
    async with serving(audited(sink, delivery="outbox"), database_url) as world:
        await world.order()
        await world.drain()
        [row] = await world.server.db("AuditLogRow").list()
        again = AuditRecord(
            id=row.id, timestamp=row.timestamp, model="Order", operation="create", resource_id="another"
        )
        await sink.write(again)
        assert [one.id for one in await world.server.db("AuditLogRow").list()] == [row.id]


async def test_a_plain_sink_is_called_on_a_thread(database_url: str) -> None:
    class Plain:
        def __init__(self) -> None:
            self.threads: list[str] = []

        def write(self, record: AuditRecord) -> None:
            self.threads.append(threading.current_thread().name)

    sinks = [Plain(), Plain()]
    server = audited(sinks[0])
    server.pipeline.db.register(db.audit_log(sinks[1], delivery="background"), models=[Order])
    async with serving(server, database_url) as world:
        await world.order()
        await world.drain()
    assert [sink.threads for sink in sinks] == [["maniflex-audit"], ["maniflex-audit"]]


async def test_two_sinks_get_their_own_records(database_url: str) -> None:
    orders, shops = KeepingSink(), KeepingSink()
    server = audited(orders)
    server.pipeline.db.register(db.audit_log(shops), models=[Shop])
    async with serving(server, database_url) as world:
        await world.order()
        await world.server.db(Shop).create()
        await world.drain()
    assert [r.model for r in orders.records] == ["Order"]
    assert [r.model for r in shops.records] == ["Shop"]


async def test_a_log_sink_writes_a_line_of_json(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "maniflex.audit")
    async with serving(audited(LogSink(), changes=True), sqlite_url) as world:
        order = await world.order(number=3)
        await world.drain()
    [line] = [r.getMessage() for r in caplog.records if r.name == "maniflex.audit"]
    content = msgspec.json.decode(line.removeprefix("audit "))
    assert (content["resource_id"], content["changes"]["number"]) == (order, {"from": None, "to": 3})


def test_a_model_in_another_database_cannot_use_the_outbox(tmp_path: Path) -> None:
    class Elsewhere(Model, table="audit_elsewhere", database=f"sqlite:///{tmp_path}/other.db"):
        name: str = ""

    server = Server(f"sqlite:///{tmp_path}/own.db")
    server.register(Elsewhere, Order, Shop)
    server.pipeline.db.register(db.audit_log(KeepingSink()), models=[Order, Elsewhere])
    with pytest.raises(DeclarationError, match="Elsewhere is in a database without the outbox"):
        server.seal()


async def test_a_model_in_another_database_has_its_table_there(tmp_path: Path, database_url: str) -> None:
    class Elsewhere(Model, table="audit_elsewhere", database=f"sqlite:///{tmp_path}/other.db"):
        name: str = ""

    sink = KeepingSink()
    server = new_server()
    server.register(Elsewhere)
    server.pipeline.db.register(db.audit_log(), models=[Elsewhere, Order])
    server.pipeline.db.register(db.audit_log(sink, delivery="background"), models=[Elsewhere])
    async with serving(server, database_url) as world:
        await world.order()
        await world.http.post("/audit_elsewhere", json={"name": "a"})
        own = await world.server.raw_query("SELECT model FROM audit_log")
        assert [row["model"] for row in own] == ["Order"]
    there = sqlite3.connect(tmp_path / "other.db").execute("SELECT model FROM audit_log").fetchall()
    assert there == [("Elsewhere",)]
    assert [record.model for record in sink.records] == ["Elsewhere"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exclude": ["prize"]}, "exclude: no audited model has a field 'prize'; did you mean 'price'?"),
        ({"delivery": "soon"}, "delivery='soon' is none of transaction, outbox, background"),
    ],
)
def test_mistakes_stop_the_start(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        audited(None, **options).seal()
    assert text in str(caught.value)


def test_an_unknown_model_stops_the_start() -> None:
    server = new_server()
    server.pipeline.db.register(db.audit_log(), models=["Oder"])
    with pytest.raises(DeclarationError, match="no model named 'Oder'"):
        server.seal()
