"""H18: histories of many records, and many versions: memory and time that do not grow with them."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from maniflex._ids import new_id
from tests.history.test_as_of import text
from tests.history.world import Invoice, Line, World, a_world


async def _add_lines(world: World, invoice_id: str, count: int) -> None:
    """Lines that were there before their history, by SQL."""
    now = text(world.clock.now())
    for start in range(0, count, 1000):
        ids = [new_id() for _ in range(min(1000, count - start))]
        rows = ", ".join(f"('{i}', '{n}', '{invoice_id}', '{now}', '{now}')" for n, i in enumerate(ids))
        columns = "id, text, invoice_id, created_at, updated_at"
        await world.server.raw_exec(f"INSERT INTO hist_lines ({columns}) VALUES {rows}")


async def _cascade(url: str, count: int) -> int:
    """Delete an invoice with so many lines; gives back the most memory that took."""
    async with a_world(url) as world:
        invoice = await world.invoice()
        await _add_lines(world, invoice["id"], count)
        tracemalloc.start()
        try:
            await world.server.db(Invoice).delete(invoice["id"])
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        history = world.server.db("LineHistory")
        assert await world.server.db(Line).count() == 0
        assert await history.count({"operation": "baseline", "version": 1}) == count
        assert await history.count({"operation": "delete", "version": 2, "source": "cascade"}) == count
        assert await history.count() == 2 * count
        return most


async def test_a_cascade_over_ten_thousand(database_url: str) -> None:
    assert await _cascade(database_url, 10_000) < 60_000_000


@pytest.mark.long
async def test_a_cascade_over_a_hundred_thousand_takes_no_more_memory(database_url: str) -> None:
    assert await _cascade(database_url, 100_000) < 60_000_000


@pytest.mark.long
async def test_one_history_among_a_million_rows_is_read_at_once(database_url: str) -> None:
    async with a_world(database_url) as world:
        invoice = await world.invoice(number="a")
        then = text(world.clock.now())
        world.tick()
        await world.http.patch(f"/hist_invoices/{invoice['id']}", json={"number": "b"})
        world.tick()
        urls = (f"/hist_invoices/{invoice['id']}/history", f"/hist_invoices/{invoice['id']}?as_of={then}")
        few = [await _seconds(world, url) for url in urls]
        await _fill(world, 1_000_000)
        many = [await _seconds(world, url) for url in urls]
        for before, after in zip(few, many, strict=True):
            assert after < max(5 * before, 0.02)


async def _seconds(world: World, url: str) -> float:
    taken: list[float] = []
    for _ in range(15):
        start = time.perf_counter()
        assert (await world.http.get(url)).status_code == 200
        taken.append(time.perf_counter() - start)
    return min(taken)


async def _fill(world: World, count: int) -> None:
    rows: list[Any] = []
    for n in range(count):
        key = f"'{new_id()}', '{n // 10:036d}', {n % 10 + 1}"
        rows.append(f"({key}, 'update', '{text(world.clock.now())}', 'code', '{{}}')")
        if len(rows) == 2000:
            columns = "id, record_id, version, operation, timestamp, source, diff"
            await world.server.raw_exec(f"INSERT INTO invoice_histories ({columns}) VALUES {', '.join(rows)}")
            rows.clear()
