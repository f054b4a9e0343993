"""Erasing a person: none of the words that were planted about her is left, in no file and no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maniflex import Server
from tests.erasure.world import (
    KEY,
    OTHER,
    PERSON,
    Customer,
    Invoice,
    Letter,
    Line,
    Order,
    Words,
    a_shop,
    served,
)
from tests.kit.local_files import files
from tests.kit.stored_bytes import stored_bytes


async def fill(server: Server, http: Any, words: Words, others: Words) -> None:
    """Everything that a shop keeps of a person, and some of it of another one."""
    customers, orders = server.db(Customer), server.db(Order)
    for person, of in ((PERSON, words), (OTHER, others)):
        scan = await server.files.store(of.new().encode(), filename=f"{of.new()}.png")
        await customers.create(
            id=person, email=of.new(), name=of.new(), about={"note": of.new()}, passport=scan.key
        )
        await customers.update(person, email=of.new(), name=of.new())
        live, soft, hard = [await orders.create(customer_id=person, address=of.new()) for _ in range(3)]
        for order in (live, soft):
            await server.db(Line).create(order_id=order.id, engraving=of.new())
        await orders.delete(hard.id)
        letter = await server.db(Letter).create(customer_id=person, text=of.new())
        await server.db(Letter).update(letter.id, text=of.new())
        await server.db(Letter).delete(letter.id)  # softly
        run = await server.work.submit("mail", {"to": of.new()}, about=live)
        await server.work.worker().drain()
        assert (await server.work.get(run.id)).status == "succeeded"
        await server.work.submit("mail", {"customer_id": person, "to": of.new()})
        await server.work.submit("mail", {"to": of.new()}, subjects=[person])
        async with server.transaction():
            await server.events.publish("order.seen", {"customer_id": person, "by": of.new()})
            await server.events.publish(
                "custom", {"by": of.new()}, subject=f"customer/{person}", headers={"by": of.new()}
            )
            await server.outbox.enqueue("order.lost", {"address": of.new()}, subjects=[person])
            await server.outbox.enqueue("order.placed", {"address": of.new()}, about=live)
        answer = await http.post(
            "/api/er_orders",
            json={"customer_id": person, "address": of.new()},
            headers={"Idempotency-Key": f"order-of-{person}", "X-API-Key": KEY},
        )
        assert answer.status_code == 201, answer.text


async def test_no_byte_of_a_person_is_left(database_url: str, tmp_path: Path) -> None:
    words, others = Words(), Words("wvu")
    server = a_shop(database_url, tmp_path / "files")
    async with served(server) as http:
        await fill(server, http, words, others)
        await server.db(Invoice).create(customer_id=PERSON, addressee="kept by law")
        before = words.found_in(await stored_bytes(database_url))
        assert len(before) == len(words.planted) - 1 >= 19  # one is in a file

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON, reason="she asked for it", by="the-office")

        content = await stored_bytes(database_url)
        assert words.found_in(content) == []
        assert len(others.found_in(content)) == len(before)
        in_files = b"".join((tmp_path / "files" / name).read_bytes() for name in files(tmp_path / "files"))
        assert words.found_in(in_files) == []
        assert others.found_in(in_files) != []
        assert foreseen.counts == report.counts
        assert dict(report.kept) == {"Invoice": "ten years by tax law"}
        assert report.counts["er_customers"] == 1
        assert report.counts["er_orders"] == 3
        assert report.counts["er_lines"] == 2
        assert report.counts["er_letters"] == 1
        assert report.counts["workflow_run"] == 3
        assert report.counts["outbox_event"] == 2
        assert report.counts["event_log"] == 2
        assert report.counts["stored_file"] == 1
        again = await server.erasure.erase(PERSON)
        assert dict(again.counts) == {}
        [customer] = await server.db(Customer).list({"id": PERSON})
        assert (customer.email, customer.name, customer.plan) == (None, "erased", "free")
        repeated = await http.post(
            "/api/er_orders",
            json={"customer_id": PERSON, "address": words.planted[-1]},
            headers={"Idempotency-Key": f"order-of-{PERSON}", "X-API-Key": KEY},
        )
        print(
            repeated.text,
            repeated.headers,
            await server.raw_query("SELECT id, settled, answer, token FROM idempotency_key"),
            await server.raw_query("SELECT id, address FROM er_orders"),
        )
        assert (repeated.status_code, repeated.json()["error"]["code"]) == (409, "IDEMPOTENCY_NOT_REPLAYABLE")
