"""A6: a record of every answer that shows records."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from maniflex import Model, Operation, Server, field, file
from maniflex.audit import ReadAuditRecord
from maniflex.middleware import db
from tests.audit.world import KeepingSink, Order, new_server, received, serving

ADA = {"x-user": "ada;acme;clerk boss", "x-request-id": "req-1", "user-agent": "curl/8"}


def audited(sink: Any, **options: Any) -> Server:
    server = new_server()
    server.pipeline.response.register(db.audit_reads(sink, **options), models=[Order])
    return server


async def test_reads_lists_and_exports_are_recorded_once(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), database_url) as world:
        for number in range(5):
            await world.order(number=number)
        order = await world.order(number=5)
        assert sink.records == []  # a write is no read
        await world.http.get("/audit_orders?limit=4", headers=ADA)
        await world.http.get(f"/audit_orders/{order}", headers=ADA)
        export = await world.http.get("/audit_orders/export?filter=number:gt:1", headers=ADA)
        assert len(export.text.splitlines()) == 5
        records = await received(sink, 3)
        by_operation = {record.operation: record for record in records}
        assert by_operation.keys() == {"list", "read", "export"}
        assert (by_operation["list"].record_id, by_operation["list"].record_count) == (None, 4)
        assert (by_operation["read"].record_id, by_operation["read"].record_count) == (order, None)
        assert (by_operation["export"].record_id, by_operation["export"].record_count) == (None, 4)
        assert len({record.id for record in records}) == 3
        for record in records:
            assert isinstance(record, ReadAuditRecord)
            assert (record.model, record.actor, record.tenant_id) == ("Order", "ada", "acme")
            assert record.roles == ["clerk", "boss"]
            assert (record.session_id, record.auth_method, record.request_id) == ("s-1", "word", "req-1")
            assert (record.service_name, record.client_ip) == ("shop", "127.0.0.1")
            assert record.user_agent == "curl/8"


async def test_nothing_that_shows_nothing_is_recorded(database_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), database_url) as world:
        order = await world.order()
        statuses = [
            (await world.http.get("/audit_orders/nobody")).status_code,
            (await world.http.get("/audit_orders?filter=pin:eq:1")).status_code,
            (await world.http.get("/audit_orders/export?format=pdf")).status_code,
            (await world.http.head(f"/audit_orders/{order}")).status_code,
            (await world.http.head("/audit_orders")).status_code,
            (await world.http.head("/audit_orders/export")).status_code,
            (await world.http.get("/audit_plain")).status_code,
        ]
        assert statuses == [404, 400, 400, 200, 200, 200, 200]
    assert sink.records == []


async def test_an_export_that_its_client_leaves_counts_what_was_sent(sqlite_url: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink), sqlite_url) as world:
        async with world.server.transaction():
            for number in range(1000):
                await world.server.db(Order).create(number=number)
        seen = asyncio.Event()
        messages: list[Any] = []

        async def receive() -> Any:
            await seen.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)
            if message.get("body"):
                seen.set()
                await asyncio.Event().wait()  # reads nothing more

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/audit_orders/export",
            "query_string": b"",
            "headers": [],
            "client": ("192.0.2.1", 1),
        }
        await world.server(scope, receive, send)
        [record] = await received(sink, 1)
    assert record.operation == "export"
    assert 0 < record.record_count < 1000
    assert record.client_ip == "192.0.2.1"


@pytest.mark.parametrize("path", ["", "/export", "/{id}"])
async def test_a_required_record_comes_before_the_answer(database_url: str, path: str) -> None:
    sink = KeepingSink()
    async with serving(audited(sink, required=True), database_url) as world:
        order = await world.order(number=1, remark="shown")
        url = f"/audit_orders{path.format(id=order)}"
        assert "shown" in (await world.http.get(url)).text
        [record] = sink.take()
        assert record.record_id == (order if path == "/{id}" else None)
        assert record.record_count == (None if path == "/{id}" else 1)
        sink.is_down = True
        refused = await world.http.get(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "UNAVAILABLE")
        assert "shown" not in refused.text
        assert "retry-after" in refused.headers
        sink.is_down = False
        assert (await world.http.get(url)).status_code == 200


async def test_a_required_sink_that_hangs_is_given_up(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maniflex.audit.entries.LIMIT", 0.05)
    sink = KeepingSink(gate=asyncio.Event())
    async with serving(audited(sink, required=True), sqlite_url) as world:
        assert (await world.http.get("/audit_orders")).status_code == 503
        assert world.server.metrics.value("audit_failed_total") == 1


async def test_without_a_sink_the_table_has_them(database_url: str) -> None:
    async with serving(audited(None, required=True), database_url) as world:
        order = await world.order()
        await world.http.get(f"/audit_orders/{order}", headers=ADA)
        await world.http.get("/audit_orders", headers=ADA)
        one, many = await world.server.db("ReadAuditLogRow").list(sorts=["id"])
        assert (one.record_id, one.record_count, one.roles) == (order, None, ["clerk", "boss"])
        assert (many.operation, many.record_count, many.client_ip) == ("list", 1, "127.0.0.1")


async def test_reads_by_the_outbox_survive_a_sink_that_is_down(database_url: str) -> None:
    sink = KeepingSink(is_down=True)
    async with serving(audited(sink, delivery="outbox"), database_url) as world:
        assert (await world.http.get("/audit_orders")).status_code == 200
        await world.drain()
        sink.is_down = False
        await world.server.raw_exec("UPDATE outbox_event SET retry_at = created_at")
        await world.drain()
    [record] = sink.records
    assert (record.operation, record.record_count) == ("list", 0)


class Paper(Model, table="audit_papers", global_searchable=True):
    title: str = field(default="", searchable=True)


async def test_a_search_is_recorded_with_its_hits(sqlite_url: str) -> None:
    sink = KeepingSink()
    server = new_server()
    server.register(Paper)
    server.enable_global_search()
    server.pipeline.response.register(db.audit_reads(sink), operations=Operation.READS)
    async with serving(server, sqlite_url) as world:
        for _ in range(3):
            await world.server.db(Paper).create(title="tea")
        answer: httpx.Response = await world.http.get("/search?q=tea")
        assert answer.status_code == 200, answer.text
        [record] = await received(sink, 1)
    assert (record.operation, record.model, record.record_count) == ("search", None, 3)


async def test_code_that_reads_by_execute_is_recorded_in_its_own_transaction(database_url: str) -> None:
    """The table is written in the open transaction, which would otherwise wait for itself."""
    async with serving(audited(None, required=True), database_url) as world:
        order = await world.order()
        async with world.server.transaction():
            await world.server.db(Order).update(order, number=2)
            answer = await world.server.execute("read", Order, id=order)
            assert answer is not None
        assert await world.server.db("ReadAuditLogRow").count() == 1


class Contract(Model, table="audit_contracts", versioned=True):
    title: str = ""


async def test_histories_and_the_past_are_recorded(database_url: str) -> None:
    sink, writes = KeepingSink(), KeepingSink()
    server = new_server()
    server.register(Contract)
    server.pipeline.response.register(db.audit_reads(sink, required=True), models=[Contract])
    server.pipeline.db.register(db.audit_log(writes, changes=True), models=[Contract])
    async with serving(server, database_url) as world:
        made = await world.http.post("/audit_contracts", json={"title": "a"})
        contract = made.json()["data"]["id"]
        await world.http.patch(f"/audit_contracts/{contract}", json={"title": "b"})
        await world.http.patch(f"/audit_contracts/{contract}", json={})
        now = world.clock.now().isoformat().replace("+00:00", "Z")
        for path, operation, record_id, count in (
            (f"/audit_contracts/{contract}/history", "read_history", contract, 2),
            (f"/audit_contracts/{contract}/history/1", "read_history", contract, None),
            ("/contract_histories", "read_history", None, 2),
            (f"/audit_contracts/{contract}?as_of={now}", "read_history", contract, None),
            (f"/audit_contracts?as_of={now}", "read_history", None, 1),
        ):
            assert (await world.http.get(path)).status_code == 200, path
            [record] = sink.take()
            assert (record.operation, record.record_id, record.record_count) == (operation, record_id, count)
        await world.drain()
    assert [record.operation for record in writes.records] == ["create", "update", "update"]
    assert writes.records[2].changes == {}  # of which the history has no version


class Letter(Model, table="audit_letters"):
    scan: str | None = file(default=None, acl="signed")
    pages: list[str] = file(default_factory=list)


async def test_files_are_recorded_however_they_are_reached(database_url: str) -> None:
    sink = KeepingSink()
    server = new_server(storage="memory:")
    server.register(Letter)
    server.pipeline.response.register(db.audit_reads(sink, required=True))
    async with serving(server, database_url) as world:
        part = ("a.txt", b"dear Ada", "text/plain")
        made = await world.http.post("/audit_letters", files=[("scan", part), ("pages", part)])
        letter = made.json()["data"]
        page, path = letter["pages"][0], f"/audit_letters/{letter['id']}"
        assert sink.records == []  # neither an upload nor a create is a read
        reads = (
            (f"{path}/scan", "read_attachment", "Letter", letter["id"]),
            (f"{path}/pages/0", "read_attachment", "Letter", letter["id"]),
            (f"/files/{page}", "read_file", None, page),
            (letter["scan"], "read_file", None, letter["scan"].partition("?")[0].removeprefix("/files/")),
        )
        for url, operation, model, record_id in reads:
            assert (await world.http.get(url, headers=ADA)).text == "dear Ada"
            [record] = sink.take()
            shown = (record.operation, record.model, record.record_id, record.record_count)
            assert shown == (operation, model, record_id, None)
            assert "signature" not in str(record)
            assert (await world.http.head(url)).status_code == 200
        sink.is_down = True
        for url, *_ in reads:
            refused = await world.http.get(url)
            assert (refused.status_code, "dear" in refused.text) == (503, False), url
