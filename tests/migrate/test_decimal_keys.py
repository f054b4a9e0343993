"""Decimals compare by value whoever wrote them and whenever, with the speed of a text on SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from maniflex import ConstraintViolation, Server, field
from maniflex.db.sqlite.connect import compare_decimals
from tests.kit.schema import model, raw, warnings
from tests.kit.servers import started

PRICES = ("9.5", "10", "-3", "-20.25", "0.00", "9.50", "100000000000000000000.01", "0.001")
BY_VALUE = sorted(map(Decimal, PRICES))


def item(**options: Any) -> Any:
    price = field(filterable=True, sortable=True, **options)
    return model("Item", "items", {"name": str, "price": (Decimal, price)})


def old_file(path: Path, *, unique: bool = False) -> str:
    """A file as it was before there were order keys: decimals under a collation written in Python."""
    with closing(sqlite3.connect(path)) as database:
        database.create_collation("decimal", compare_decimals)
        database.execute(
            "CREATE TABLE items (id TEXT NOT NULL PRIMARY KEY, created_at DATETIME_TEXT NOT NULL,"
            " updated_at DATETIME_TEXT NOT NULL, name TEXT NOT NULL,"
            " price DECIMAL_TEXT COLLATE decimal NOT NULL)"
        )
        kind = "UNIQUE INDEX uq" if unique else "INDEX idx"
        database.execute(f"CREATE {kind}_items_price ON items (price)")
        stamp = "2026-01-01T00:00:00.000000Z"
        prices = dict.fromkeys(map(Decimal, PRICES)) if unique else PRICES
        for number, price in enumerate(prices):
            text = str(price)
            database.execute(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?)", (f"i{number}", stamp, stamp, text, text)
            )
        database.commit()
    return f"sqlite:///{path}"


async def sorted_prices(server: Server, item: Any) -> list[Decimal]:
    return [record.price for record in await server.db(item).list(sorts="price")]


async def test_an_existing_file_is_brought_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = old_file(tmp_path / "old.db")
    indexed = item(index=True)

    for _ in range(2):
        async with started(url, indexed) as server:
            assert await sorted_prices(server, indexed) == BY_VALUE
            assert await server.db(indexed).count([("price", "eq", Decimal("9.500"))]) == 2
            assert await server.db(indexed).count([("price", "gt", Decimal("9.5"))]) == 2
            plan = await server.raw_query("EXPLAIN QUERY PLAN SELECT id FROM items ORDER BY price$order")
            assert "idx_items_price" in str(plan)
    assert warnings(caplog) == []


async def test_the_digits_that_were_stored_stay(tmp_path: Path) -> None:
    url = old_file(tmp_path / "old.db")
    plain = item()

    async with started(url, plain) as server:
        records = await server.db(plain).list()

    assert [(record.name, str(record.price)) for record in records] == [(p, p) for p in PRICES]


async def test_a_unique_decimal_of_an_existing_file_stays_unique_by_value(tmp_path: Path) -> None:
    url = old_file(tmp_path / "old.db", unique=True)
    unique = item(unique=True)

    async with started(url, unique) as server:
        with pytest.raises(ConstraintViolation) as refused:
            await server.db(unique).create(name="again", price=Decimal("9.500"))
    assert refused.value.details == [{"field": "price", "message": refused.value.message}]


async def test_a_decimal_that_is_added_to_a_table_compares_by_value(database_url: str) -> None:
    before, after = model("Item", "items", {"name": str}), item(default=Decimal("7.5"))
    async with started(database_url, before) as server:
        await server.db(before).create(name="old")

    async with started(database_url, after) as server:
        for price in ("10", "9.25"):
            await server.db(after).create(name=price, price=Decimal(price))
        assert await sorted_prices(server, after) == [Decimal("7.5"), Decimal("9.25"), Decimal(10)]


async def test_raw_sql_that_writes_decimals_needs_to_know_of_nothing(database_url: str) -> None:
    plain = item()
    async with started(database_url, plain) as server:
        for name in ("a", "b", "c"):
            await server.db(plain).create(name=name, price=Decimal(5))
        await server.raw_exec("UPDATE items SET price = 100.5 WHERE name = 'a'")
        await server.raw_exec("UPDATE items SET price = -1 WHERE name = 'b'")

        assert await sorted_prices(server, plain) == [Decimal(-1), Decimal(5), Decimal("100.5")]


async def test_a_table_without_order_keys_is_compared_all_the_same(tmp_path: Path) -> None:
    url = old_file(tmp_path / "old.db")
    plain = item()

    async with started(url, plain, auto_migrate=False) as server:
        assert await sorted_prices(server, plain) == BY_VALUE
        assert await server.db(plain).count([("price", "in", [Decimal("9.50"), Decimal(10)])]) == 3
        [row] = await server.db(plain).list([("price", "lt", Decimal(-3))])
        assert row.price == Decimal("-20.25")


async def test_lost_triggers_are_made_again_and_the_keys_with_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    plain = item()
    async with started(url, plain) as server:
        await server.db(plain).create(name="a", price=Decimal(5))
    await raw(url, 'DROP TRIGGER "items$order_update"', "UPDATE items SET price = '12'")

    async with started(url, plain) as server:
        assert await server.db(plain).count([("price", "eq", Decimal(12))]) == 1
