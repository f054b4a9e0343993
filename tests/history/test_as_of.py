"""H14, H15: records and lists as they were at a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from maniflex import Server
from tests.history.world import Invoice, Ledger, Line, World, a_world


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with a_world(database_url) as world:
        yield world


def text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_a_record_at_twenty_moments(world: World) -> None:
    before = world.clock.now()
    world.tick()
    invoice = await world.invoice(number="0", data={"n": 0}, due="2026-01-01T00:00:00.5Z")
    url = f"/hist_invoices/{invoice['id']}"
    states: list[tuple[datetime, Any]] = [(before, None), (world.clock.now(), invoice)]
    for n in range(1, 19):
        world.tick()
        if n == 9:
            await world.http.delete(url)
            states.append((world.clock.now(), None))
        elif n == 11:
            states.append((world.clock.now(), (await world.http.post(f"{url}/restore")).json()["data"]))
        elif n == 10:
            states.append((world.clock.now(), None))
        else:
            body = {
                "number": str(n),
                "amount": f"{n}.50",
                "rate": n / 4,
                "data": {"n": n},
                "paid": n % 2 == 0,
            }
            states.append((world.clock.now(), (await world.http.patch(url, json=body)).json()["data"]))
    world.tick()
    for moment, state in states:
        for at in (moment, moment + timedelta(milliseconds=500)):
            answer = await world.http.get(f"{url}?as_of={text(at)}")
            if state is None:
                assert answer.status_code == 404
                continue
            assert answer.json()["data"] == state, at
            assert answer.json()["meta"]["as_of"] == text(at)
            assert answer.json()["meta"]["missing"] == []
            assert "etag" not in answer.headers
    assert (await world.http.get(f"{url}?as_of={text(states[1][0])}")).json()["meta"]["version"] == 1


async def test_the_past_has_no_computed_fields(database_url: str) -> None:
    def prepare(server: Server) -> None:
        server.computed(Invoice, "twice")(lambda ctx, invoice: invoice.stars * 2)

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.invoice(stars=2)
        now = text(world.tick())
        url = f"/hist_invoices/{invoice['id']}"
        assert (await world.http.get(url)).json()["data"]["twice"] == 4
        assert "twice" not in (await world.http.get(f"{url}?as_of={now}")).json()["data"]
        [listed] = (await world.http.get(f"/hist_invoices?as_of={now}")).json()["data"]
        assert "twice" not in listed


async def test_what_cannot_be_asked_of_the_past(world: World) -> None:
    invoice = await world.invoice(number="a")
    now = text(world.tick())
    url = f"/hist_invoices/{invoice['id']}"
    plain = (await world.http.post("/hist_plain", json={})).json()["data"]["id"]
    later = text(world.clock.now() + timedelta(seconds=1))
    for path in (
        f"{url}?as_of=yesterday",
        f"{url}?as_of=",
        f"{url}?as_of",
        f"{url}?as_of=2026-01-01",
        f"{url}?as_of=2026-01-01T00:00:00",
        f"{url}?as_of=2026-13-01T00:00:00Z",
        f"{url}?as_of={later}",
        f"{url}?as_of={now}&as_of={now}",
        f"{url}?as_of={now}&include=customer",
        f"/hist_invoices?as_of={now}&q=a",
        f"/hist_invoices?as_of={now}&cursor=",
        f"/hist_invoices?as_of={now}&filter=customer.name:eq:a",
        f"/hist_invoices?as_of={now}&filter=password:eq:a",
        f"/hist_invoices?as_of={later}",
        f"/hist_ledger?as_of={now}",
        f"/hist_plain/{plain}?as_of={now}",
        f"/hist_plain?as_of={now}",
        f"/invoice_histories?as_of={now}",
    ):
        assert (await world.http.get(path)).status_code == 400, path
    for method, path in (("POST", "/hist_invoices"), ("PATCH", url), ("DELETE", url)):
        answer = await world.http.request(method, f"{path}?as_of={now}", json={"number": "x"})
        assert answer.status_code == 400, method
    assert (await world.http.get(url)).json()["data"]["number"] == "a"
    offset = (await world.http.get(f"{url}?as_of={now.replace('Z', '%2B00:00')}")).status_code
    assert offset == 200
    assert (await world.http.get(f"{url}?has_offered={now}")).status_code == 200  # the application's own


async def test_a_list_equals_the_list_taken_then(world: World) -> None:
    queries = (
        "sort=amount:desc&limit=3",
        "sort=amount&limit=3&page=2",
        "filter=amount:gte:10&sort=number",
        "filter=due:gt:2026-02-01T00:00:00Z&sort=due:desc",
        "filter=rate:is_null&sort=number",
        "filter=paid:eq:true&filter=number:contains:1&sort=number:desc",
        "filter[0]=stars:eq:1&filter[0]=stars:eq:2&sort=stars,number",
        "sort=rate,number",
        "select=number,amount&sort=number",
        "page=9&sort=number",
    )
    ids = []
    for n in range(12):
        made = await world.invoice(
            number=f"n{n}",
            amount=f"{n * 7 % 20}.{n}0",
            stars=n % 4,
            rate=None if n % 3 else n / 8,
            paid=n % 2 == 0,
            due=f"2026-0{n % 3 + 1}-01T00:00:00{'.25' if n % 2 else ''}Z",
        )
        ids.append(made["id"])
    then = text(world.clock.now())
    lists = {q: (await world.http.get(f"/hist_invoices?{q}")).json() for q in queries}
    world.tick()
    for n, record_id in enumerate(ids):
        await world.http.patch(f"/hist_invoices/{record_id}", json={"amount": "500", "stars": 1, "rate": 9})
        if n % 4 == 0:
            await world.http.delete(f"/hist_invoices/{record_id}")
    await world.invoice(number="later")
    await world.server.raw_exec(
        "DELETE FROM hist_invoices WHERE id = ?", ids[1]
    )  # without a word to the seam
    world.tick()
    for query, taken in lists.items():
        answer = (await world.http.get(f"/hist_invoices?{query}&as_of={then}")).json()
        assert answer["data"] == taken["data"], query
        assert {name: answer["meta"][name] for name in taken["meta"]} == taken["meta"], query


async def test_what_was_removed_since_is_still_there_in_the_past(world: World) -> None:
    invoice = await world.invoice()
    lines = [await world.server.db(Line).create(invoice_id=invoice["id"], text=str(n)) for n in range(3)]
    then = text(world.clock.now())
    world.tick()
    await world.server.db(Line).delete(lines[0].id)
    now = text(world.tick())
    for moment, texts in ((then, ["0", "1", "2"]), (now, ["1", "2"])):
        answer = await world.http.get(f"/hist_lines?as_of={moment}&sort=text")
        assert [line["text"] for line in answer.json()["data"]] == texts
    assert (await world.http.get(f"/hist_lines/{lines[0].id}?as_of={then}")).status_code == 200
    assert (await world.http.get(f"/hist_lines/{lines[0].id}?as_of={now}")).status_code == 404


async def test_a_record_without_snapshots_is_replayed(world: World) -> None:
    before = text(world.clock.now())
    world.tick()
    entry = await world.server.db(Ledger).create(text="a", amount=1)
    states: list[tuple[str, str | None, str]] = [(text(world.clock.now()), "a", "1")]
    for value, amount in ((None, "1"), ("b", "2.5")):
        world.tick()
        await world.server.db(Ledger).update(entry.id, text=value, amount=amount)
        states.append((text(world.clock.now()), value, amount))
    world.tick()
    await world.server.db(Ledger).delete(entry.id)
    url = f"/hist_ledger/{entry.id}?as_of="
    for moment, value, amount in states:
        data = (await world.http.get(url + moment)).json()["data"]
        assert (data["entry"], data["amount"], data["updated_at"]) == (value, amount, moment)
        assert data["created_at"] == states[0][0]
    assert (await world.http.get(url + before)).status_code == 404
    assert (await world.http.get(url + text(world.clock.now()))).status_code == 404


async def test_a_deleted_record_that_is_written_stays_deleted_in_the_past(world: World) -> None:
    """`set_null` reaches deleted rows too."""
    from tests.history.world import Customer

    customer = await world.server.db(Customer).create(name="c")
    invoice = await world.server.db(Invoice).create(customer_id=customer.id)
    world.tick()
    await world.server.db(Invoice).delete(invoice.id)
    world.tick()
    await world.server.db(Customer).delete(customer.id)
    [*_, last] = await world.versions(Invoice, record_id=invoice.id)
    assert (last.operation, last.source) == ("update", "set_null")
    moment = text(world.tick())
    assert (await world.http.get(f"/hist_invoices/{invoice.id}?as_of={moment}")).status_code == 404
    assert (await world.http.get(f"/hist_invoices?as_of={moment}")).json()["data"] == []


async def test_a_singleton_as_it_was(world: World) -> None:
    await world.http.patch("/hist_settings", json={"theme": "dark"})
    then = text(world.clock.now())
    world.tick()
    await world.http.patch("/hist_settings", json={"theme": "blue"})
    assert (await world.http.get(f"/hist_settings?as_of={then}")).json()["data"]["theme"] == "dark"
