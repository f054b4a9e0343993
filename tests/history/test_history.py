"""H1-H10: one row for every change, in its transaction, with what changed and who changed it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Server, field
from maniflex.errors import NotFound
from maniflex.testing import client
from tests.history.world import Customer, Invoice, Ledger, Line, Plain, World, a_world


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with a_world(database_url) as world:
        yield world


async def test_create_patch_and_delete_are_versions_one_two_and_three(world: World) -> None:
    made = await world.invoice(number="a", amount="99.0")
    url = f"/hist_invoices/{made['id']}"
    await world.http.patch(url, json={"amount": "105.00"}, headers={"x-user": "ada", "x-request-id": "req-7"})
    await world.http.delete(url)
    create, update, delete = await world.history(made["id"])
    assert [v["version"] for v in (create, update, delete)] == [1, 2, 3]
    assert [v["operation"] for v in (create, update, delete)] == ["create", "update", "delete"]
    assert update["diff"] == {"amount": {"old": "99.0", "new": "105.00"}}
    assert create["diff"]["number"] == {"old": None, "new": "a"}
    assert "due" not in create["diff"]  # it has no value
    assert not {"id", "created_at", "updated_at", "deleted_at"} & create["diff"].keys()
    assert delete["diff"]["amount"] == {"old": "105.00", "new": None}
    assert delete["snapshot"]["deleted_at"] is None  # before it
    assert (update["actor_id"], update["request_id"], update["source"]) == ("ada", "req-7", "request")
    assert update["timestamp"] == update["snapshot"]["updated_at"]
    assert create["snapshot"] == made


async def test_a_removed_record_shows_its_history_on_the_flat_route_alone(world: World) -> None:
    line = await world.server.db(Line).create(invoice_id=(await world.invoice())["id"], text="a")
    await world.server.db(Line).update(line.id, text="b")
    await world.server.db(Line).delete(line.id)
    assert (await world.http.get(f"/hist_lines/{line.id}/history")).status_code == 404
    flat = await world.http.get(f"/line_histories?filter=record_id:eq:{line.id}&sort=version")
    assert [v["operation"] for v in flat.json()["data"]] == ["create", "update", "delete"]
    one = await world.http.get(f"/line_histories/{flat.json()['data'][1]['id']}")
    assert one.json()["data"]["diff"] == {"text": {"old": "a", "new": "b"}}


async def test_fifty_writers_at_once_leave_no_gap(world: World) -> None:
    invoice = await world.invoice(stars=0)
    url = f"/hist_invoices/{invoice['id']}"
    answers = await asyncio.gather(*[world.http.patch(url, json={"stars": n}) for n in range(1, 51)])
    assert {a.status_code for a in answers} == {200}
    versions = await world.history(invoice["id"])
    assert [v["version"] for v in versions] == list(range(1, 52))
    changes = [v["diff"]["stars"] for v in versions]
    for earlier, later in pairwise(changes):
        assert later["old"] == earlier["new"]
    moments = [v["timestamp"] for v in versions]
    assert moments == sorted(moments)


async def test_a_time_that_goes_back_does_not_in_a_history(world: World) -> None:
    invoice = await world.invoice(stars=0)
    store = world.server._seal().runtime.store(Invoice)
    now = world.clock.now()
    early = type("Early", (), {"now": staticmethod(lambda: now.replace(year=now.year - 1))})()
    store.clock, clock = early, store.clock
    try:
        await world.server.db(Invoice).update(invoice["id"], stars=1)
    finally:
        store.clock = clock
    first, second = await world.history(invoice["id"])
    assert second["timestamp"] == first["timestamp"]


async def test_every_way_to_write_leaves_its_version_and_source(world: World) -> None:
    invoices = world.server.db(Invoice)
    customer = await world.server.db(Customer).create(name="c")
    due = world.clock.now()
    one = await invoices.create(customer_id=customer.id, publish_at=due, tenant_id="t")
    gone = await invoices.create(expires_at=due)
    with world.server.acting_as("ada", reason="by hand"):
        await invoices.increment(one.id, stars=2)
        await invoices.increment(one.id, amount=Decimal("0.5"))
    await world.server.execute("update", Invoice, one.id, body={"rate": 1.5})
    for n in range(3):
        await world.server.db(Line).create(invoice_id=gone.id, text=str(n))
    world.tick()
    with world.server.acting_as("ada"):
        await world.server.scheduled.runner().sweep()
    await world.server.db(Customer).delete(customer.id)
    await invoices.restore(gone.id)
    async with world.server.transaction() as tx:
        for record in (one, gone):
            await world.server.db(Invoice, tx).update(record.id, number="batch")

    def brief(rows: list[Any]) -> list[tuple[str, str, str | None]]:
        return [(r.operation, r.source, r.actor_id) for r in rows]

    assert brief(await world.versions(Invoice, record_id=one.id)) == [
        ("create", "code", None),
        ("update", "code", "ada"),
        ("update", "code", "ada"),
        ("update", "code", None),
        ("update", "sweep", None),
        ("update", "set_null", None),
        ("update", "code", None),
    ]
    assert brief(await world.versions(Invoice, record_id=gone.id)) == [
        ("create", "code", None),
        ("delete", "sweep", None),
        ("restore", "code", None),
        ("update", "code", None),
    ]
    lines = await world.versions(Line)
    assert brief(lines) == [("create", "code", None)] * 3 + [("delete", "cascade", None)] * 3
    assert {r.version for r in lines[3:]} == {2}
    assert [r.reason for r in await world.versions(Invoice, record_id=one.id)][1] == "by hand"


async def _write_and_fail(world: World, record_id: str) -> None:
    async with world.server.transaction():
        await world.server.db(Invoice).update(record_id, number="b")
        await world.server.db(Invoice).read("none")


async def test_a_refused_or_rolled_back_write_leaves_no_version(world: World) -> None:
    invoice = await world.invoice(number="a")
    url = f"/hist_invoices/{invoice['id']}"
    assert (await world.http.patch(url, json={"stars": "many"})).status_code == 422
    assert (await world.http.post("/hist_invoices", json={"stars": "many"})).status_code == 422
    assert (await world.http.patch("/hist_invoices/none", json={"stars": 1})).status_code == 404
    with pytest.raises(NotFound):
        await _write_and_fail(world, invoice["id"])
    assert [v["version"] for v in await world.history(invoice["id"])] == [1]


class Seal(Model, table="hist_seals", versioned=True, optimistic_lock=True):
    number: int = field(default=0, unique=True)


async def test_a_lost_race_leaves_no_version(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Seal)
    async with client(server, database=database_url) as http:
        seals = [await server.db(Seal).create(number=n) for n in (1, 2)]
        url = f"/hist_seals/{seals[0].id}"
        stale = await http.patch(url, json={"number": 3}, headers={"if-match": '"another"'})
        taken = await http.patch(url, json={"number": 2})
        assert (stale.status_code, taken.status_code) == (412, 409)
        assert await server.db("SealHistory").count() == 2


async def test_without_its_history_nothing_is_written(world: World) -> None:
    invoice = await world.invoice(number="a")
    line = await world.server.db(Line).create(invoice_id=invoice["id"])
    for table in ("invoice_histories", "line_histories"):
        await world.server.raw_exec(f"ALTER TABLE {table} RENAME TO {table}_away")
    url = f"/hist_invoices/{invoice['id']}"
    refused = [
        await world.http.post("/hist_invoices", json={"number": "x"}),
        await world.http.patch(url, json={"number": "b"}),
        await world.http.delete(url),
        await world.http.delete(f"/hist_lines/{line.id}"),
    ]
    assert {a.status_code for a in refused} == {500}
    assert [r.number for r in await world.server.db(Invoice).list()] == ["a"]
    assert await world.server.db(Line).count() == 1
    for table in ("invoice_histories", "line_histories"):
        await world.server.raw_exec(f"ALTER TABLE {table}_away RENAME TO {table}")
    assert len(await world.history(invoice["id"])) == 1


async def test_another_spelling_is_no_change(world: World) -> None:
    values = {"number": "a", "amount": "1.50", "rate": 1.0, "data": {"a": 1, "b": [True]}}
    invoice = await world.invoice(**values, due="2026-01-01T12:00:00Z")
    url = f"/hist_invoices/{invoice['id']}"
    for same in (
        {"number": "a"},
        {"amount": "1.5"},
        {"rate": 1},
        {"data": {"b": [True], "a": 1.0}},
        {"due": "2026-01-01T13:00:00.000+01:00"},
    ):
        world.tick()
        assert (await world.http.patch(url, json=same)).status_code == 200
    assert len(await world.history(invoice["id"])) == 1
    await world.http.patch(url, json={"data": {"a": True, "b": [True]}})
    versions = await world.history(invoice["id"])
    assert versions[1]["diff"]["data"]["new"] == {"a": True, "b": [True]}


async def test_a_secret_leaves_a_version_and_no_trace(world: World) -> None:
    invoice = await world.invoice(number="a", password="geheim-1")
    url = f"/hist_invoices/{invoice['id']}"
    await world.http.patch(url, json={"password": "geheim-2"})
    await world.server.db(Invoice).update(invoice["id"], cost_centre="geheim-3")
    await world.http.delete(url)
    versions = await world.history(invoice["id"])
    assert [v["diff"] for v in versions[1:3]] == [{}, {}]
    columns = await world.server.raw_query("SELECT * FROM invoice_histories")
    assert "geheim" not in repr(columns)
    assert "password" not in repr(columns)
    assert "cost_centre" not in repr(columns)


async def test_a_record_from_before_begins_with_what_was_found(world: World, database_url: str) -> None:
    invoice = await world.invoice(number="old", password="geheim")
    await world.server.raw_exec("DELETE FROM invoice_histories")
    world.tick()
    await world.http.patch(f"/hist_invoices/{invoice['id']}", json={"number": "new"})
    baseline, update = await world.history(invoice["id"])
    assert (baseline["version"], baseline["operation"], baseline["actor_id"]) == (1, "baseline", None)
    assert baseline["snapshot"] == invoice
    assert baseline["timestamp"] == invoice["updated_at"]
    assert (update["version"], update["diff"]) == (2, {"number": {"old": "old", "new": "new"}})
    assert "geheim" not in repr(baseline)


async def test_a_baseline_comes_with_a_delete_and_a_cascade_too(world: World) -> None:
    invoice = await world.invoice()
    lines = [await world.server.db(Line).create(invoice_id=invoice["id"], text=str(n)) for n in range(3)]
    await world.server.raw_exec("DELETE FROM invoice_histories")
    await world.server.raw_exec("DELETE FROM line_histories WHERE record_id <> ?", lines[0].id)
    await world.http.delete(f"/hist_invoices/{invoice['id']}")
    assert [v["operation"] for v in await world.history(invoice["id"])] == ["baseline", "delete"]
    operations = [[r.operation for r in await world.versions(Line, record_id=line.id)] for line in lines]
    assert operations == [["create", "delete"], ["baseline", "delete"], ["baseline", "delete"]]


async def test_diffs_alone_are_kept_where_that_is_asked_for(world: World) -> None:
    entry = await world.server.db(Ledger).create(text="a")
    world.tick()
    await world.server.db(Ledger).update(entry.id, text=None)
    create, update = await world.history(entry.id, "hist_ledger")
    assert "snapshot" not in create
    assert update["diff"] == {"entry": {"old": "a", "new": None}}
    assert [r.snapshot for r in await world.versions(Ledger)] == [None, None]


async def test_a_singleton_has_one_history(world: World) -> None:
    assert (await world.http.get("/hist_settings/history")).json()["data"] == []
    await world.http.patch("/hist_settings", json={"theme": "dark"})
    answer = await world.http.get("/hist_settings/history?sort=version")
    assert [(v["operation"], v["source"]) for v in answer.json()["data"]] == [
        ("create", "provision"),
        ("update", "request"),
    ]
    assert (await world.http.get("/hist_settings/history/2")).json()["data"]["version"] == 2
    back = await world.http.post("/hist_settings/history/1/restore")
    assert back.json()["data"]["theme"] == "light"


async def test_a_history_is_read_and_never_written(world: World) -> None:
    invoice = await world.invoice(number="a")
    history = world.server.db("InvoiceHistory")
    [row] = await history.list()
    for write in (
        history.create(record_id="x", version=1),
        history.update(row.id, version=2),
        history.delete(row.id),
    ):
        with pytest.raises(DeclarationError, match="read-only"):
            await write
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("/invoice_histories", f"/invoice_histories/{row.id}"):
            assert (await world.http.request(method, path, json={})).status_code == 405, (method, path)
    nested = f"/hist_invoices/{invoice['id']}/history"
    assert (await world.http.post(nested, json={})).status_code == 405
    assert (await world.http.options(nested)).headers["allow"] == "GET, HEAD, OPTIONS"
    head = await world.http.head(nested)
    assert (head.status_code, head.content) == (200, b"")


async def test_pages_filters_sorts_and_selection(world: World) -> None:
    invoice = await world.invoice(stars=0)
    url = f"/hist_invoices/{invoice['id']}"
    for n in range(1, 25):
        await world.http.patch(url, json={"stars": n})
    first = (await world.http.get(f"{url}/history")).json()
    assert [v["version"] for v in first["data"]] == list(range(25, 5, -1))
    assert first["meta"] == {"total": 25, "page": 1, "limit": 20, "pages": 2}
    second = (await world.http.get(f"{url}/history?page=2&sort=version&limit=10&select=version")).json()
    assert second["data"] == [{"version": n} for n in range(11, 21)]
    some = (await world.http.get(f"{url}/history?filter=version:lte:2&filter=operation:eq:update")).json()
    assert [v["version"] for v in some["data"]] == [2]
    for wrong in (
        "include=record",
        "filter=record.number:eq:a",
        "q=a",
        "cursor=",
        "filter=diff:eq:a",
        "as_of=x",
    ):
        assert (await world.http.get(f"{url}/history?{wrong}")).status_code == 400, wrong
        assert (await world.http.get(f"/invoice_histories?{wrong}")).status_code == 400, wrong
    for nothing in ("0", "26", "x", "1e3", "9" * 30):
        assert (await world.http.get(f"{url}/history/{nothing}")).status_code == 404, nothing


async def test_the_way_back_is_an_update(world: World) -> None:
    invoice = await world.invoice(number="a", amount="5", data={"x": [1]}, due="2026-01-01T12:00:00Z")
    url = f"/hist_invoices/{invoice['id']}"
    await world.http.patch(url, json={"number": "b", "amount": "6", "data": None, "due": None})
    back = await world.http.post(f"{url}/history/1/restore", headers={"x-user": "ada"})
    assert back.status_code == 200
    shown = back.json()["data"]
    assert {n: shown[n] for n in ("number", "amount", "data", "due")} == {
        n: invoice[n] for n in ("number", "amount", "data", "due")
    }
    last = (await world.history(invoice["id"]))[-1]
    assert (last["version"], last["operation"], last["actor_id"]) == (3, "update", "ada")
    assert last["reason"] == "version 1 restored"
    assert (await world.http.post(f"{url}/history/9/restore")).status_code == 404
    assert (await world.http.post("/hist_invoices/none/history/1/restore")).status_code == 404
    assert (await world.http.post(f"/hist_lines/{invoice['id']}/history/1/restore")).status_code == 404


async def test_code_reads_histories_and_goes_back(world: World) -> None:
    history = world.server.history(Invoice)
    invoice = await world.invoice(number="a", amount="5", data={"x": 1})
    then = world.tick()
    world.tick()
    await world.server.db(Invoice).update(invoice["id"], number="b", data=None)
    assert [row.version for row in await history.of(invoice["id"])] == [2, 1]
    assert (await history.version(invoice["id"], 2)).diff["number"] == {"old": "a", "new": "b"}
    past = await history.at(invoice["id"], then)
    assert (past.number, past.amount, past.data) == ("a", Decimal(5), {"x": 1})
    assert not hasattr(past, "password")
    with pytest.raises(NotFound):
        await history.version(invoice["id"], 7)
    record = await history.revert(invoice["id"], 1)
    assert (record.number, record.data) == ("a", {"x": 1})
    assert len(await history.of(invoice["id"])) == 3
    with pytest.raises(DeclarationError, match="keeps no history"):
        world.server.history(Plain)


async def test_a_reason_is_kept(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Invoice, Customer)

    @server.action("POST", "/close/{id}")
    async def close(ctx: Context) -> None:
        ctx.change_reason = "closed"
        await ctx.db(Invoice).update(ctx.url_param("id"), number="closed")

    async with client(server, database=database_url) as http:
        invoice = await server.db(Invoice).create()
        await http.post(f"/close/{invoice.id}")
        [row, _] = await server.history(Invoice).of(invoice.id)
        assert (row.source, row.reason) == ("action", "closed")
