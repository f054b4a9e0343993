"""Statements outside a transaction: what they give back, and what becomes of them."""

from __future__ import annotations

import asyncio
import re

import pytest

from maniflex.db.port import Adapter
from maniflex.errors import DatabaseError, RequestError, Unavailable, ValidationFailed
from maniflex.sql.statement import Sql, by_dialect
from maniflex.testing.conformance._case import Case, add, endless, names, sql

INSERT = "INSERT INTO things (id, name) VALUES (?, ?)"


class Statements(Case):
    """Reads, writes and the adapter's own life."""

    async def test_fetch_gives_all_rows_in_order(self, db: Adapter) -> None:
        await add(db, 2, "two")
        await add(db, 1, "one")
        rows = await db.fetch(Sql("SELECT id, name FROM things ORDER BY id"))
        assert [tuple(row) for row in rows] == [(1, "one"), (2, "two")]

    async def test_fetch_of_nothing_is_an_empty_list(self, db: Adapter) -> None:
        assert await db.fetch(Sql("SELECT id FROM things")) == []

    async def test_fetch_one_gives_the_first_row_or_none(self, db: Adapter) -> None:
        assert await db.fetch_one(Sql("SELECT id FROM things")) is None
        await add(db, 1, "one")
        await add(db, 2, "two")
        row = await db.fetch_one(Sql("SELECT id, name FROM things ORDER BY id"))
        assert row is not None
        assert tuple(row) == (1, "one")

    async def test_fetch_named_gives_dictionaries_by_column_name(self, db: Adapter) -> None:
        await add(db, 1, "one", 5)
        rows = await db.fetch_named(Sql("SELECT name, amount AS cents FROM things"))
        assert rows == [{"name": "one", "cents": 5}]
        assert await db.fetch_named(Sql("SELECT id FROM things WHERE id = 9")) == []

    async def test_execute_counts_the_rows_it_touched(self, db: Adapter) -> None:
        assert await db.execute(sql(db, INSERT + ", (?, ?)", 1, "one", 2, "two")) == 2
        assert await db.execute(sql(db, "UPDATE things SET amount = ? WHERE id = ?", 7, 2)) == 1
        assert await db.execute(sql(db, "DELETE FROM things WHERE id = ?", 9)) == 0
        assert await db.execute(sql(db, "DELETE FROM things")) == 2

    async def test_execute_counts_a_write_that_begins_with_a_query(self, db: Adapter) -> None:
        await add(db, 1, "one")
        await add(db, 2, "two")
        text = (
            "WITH chosen AS (SELECT id FROM things WHERE id > ?)"
            " UPDATE things SET amount = 1 WHERE id IN (SELECT id FROM chosen)"
        )
        assert await db.execute(sql(db, text, 1)) == 1
        assert await db.execute(sql(db, text, 5)) == 0

    async def test_write_gives_the_returned_rows(self, db: Adapter) -> None:
        rows = await db.write(sql(db, INSERT + " RETURNING id, name, amount", 1, "one"))
        assert [tuple(row) for row in rows] == [(1, "one", 0)]
        assert await db.write(sql(db, "UPDATE things SET amount = 1 WHERE id = ? RETURNING id", 9)) == []

    async def test_write_without_returning_gives_no_rows(self, db: Adapter) -> None:
        assert await db.write(sql(db, INSERT, 1, "one")) == []
        assert await names(db) == ["one"]

    async def test_every_read_after_a_write_sees_it(self, db: Adapter) -> None:
        for number in range(50):
            await add(db, number, str(number))
            assert len(await names(db)) == number + 1

    async def test_a_failed_write_leaves_nothing(self, db: Adapter) -> None:
        await add(db, 1, "one")
        with pytest.raises(RequestError):
            await db.execute(sql(db, INSERT + ", (?, ?)", 2, "two", 1, "again"))
        assert await names(db) == ["one"]

    async def test_a_statement_that_is_no_sql_is_a_database_error_without_the_drivers_words(
        self, db: Adapter
    ) -> None:
        with pytest.raises(DatabaseError) as caught:
            await db.fetch(Sql("SELECT nonsense FROM nowhere"))
        assert "nonsense" not in str(caught.value)
        assert "nowhere" not in str(caught.value)
        assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**200])
    async def test_a_number_that_does_not_fit_is_refused_as_invalid(self, db: Adapter, value: int) -> None:
        with pytest.raises(ValidationFailed):
            await add(db, 1, "one", value)
        assert await names(db) == []

    async def test_text_that_is_not_unicode_is_refused_as_invalid(self, db: Adapter) -> None:
        with pytest.raises(ValidationFailed):
            await add(db, 1, "\ud800")
        assert await names(db) == []

    @pytest.mark.parametrize("text", ["BEGIN", "COMMIT", " rollback", "-- now\nCOMMIT", "/* now */ BEGIN"])
    async def test_a_statement_cannot_begin_or_end_a_transaction(self, db: Adapter, text: str) -> None:
        with pytest.raises(DatabaseError):
            await db.execute(Sql(text))
        with pytest.raises(DatabaseError):
            await db.fetch(Sql(text))
        await add(db, 1, "one")
        assert await names(db) == ["one"]

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "plain",
            'it\'s "quoted"',
            "%_\\;--",
            "naïve Ελλάδα 日本 🦊👩‍👩‍👧",
            "line\nbreak\ttab",
            "x" * 1_000_000,
        ],
    )
    async def test_text_comes_back_as_it_went_in(self, db: Adapter, value: str) -> None:
        await add(db, 1, value)
        assert await names(db) == [value]

    @pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63)])
    async def test_integers_come_back_to_the_last_bit(self, adapter: Adapter, value: int) -> None:
        await adapter.execute(Sql("CREATE TABLE numbers (n BIGINT)"))
        await adapter.execute(sql(adapter, "INSERT INTO numbers VALUES (?)", value))
        [row] = await adapter.fetch(Sql("SELECT n FROM numbers"))
        assert row[0] == value

    @pytest.mark.parametrize("value", [0.0, -1.5, 0.1, 1e300, 5e-324, None])
    async def test_floats_and_nulls_come_back(self, adapter: Adapter, value: float | None) -> None:
        await adapter.execute(Sql("CREATE TABLE numbers (n DOUBLE PRECISION)"))
        await adapter.execute(sql(adapter, "INSERT INTO numbers VALUES (?)", value))
        [row] = await adapter.fetch(Sql("SELECT n FROM numbers"))
        assert row[0] == value

    @pytest.mark.parametrize("value", [b"", bytes(range(256)), b"\0" * 100_000])
    async def test_bytes_come_back(self, adapter: Adapter, value: bytes) -> None:
        kind = by_dialect(adapter.dialect, sqlite="BLOB", postgres="BYTEA")
        await adapter.execute(Sql(f"CREATE TABLE files (content {kind})"))
        await adapter.execute(sql(adapter, "INSERT INTO files VALUES (?)", value))
        [row] = await adapter.fetch(Sql("SELECT content FROM files"))
        assert bytes(row[0]) == value

    async def test_a_cancelled_read_leaves_the_adapter_usable(self, db: Adapter) -> None:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await db.fetch(endless(db))
        await add(db, 1, "one")
        assert await asyncio.gather(*(names(db) for _ in range(20))) == [["one"]] * 20

    async def test_a_slow_read_does_not_stall_the_others(self, db: Adapter) -> None:
        await add(db, 1, "one")
        slow = asyncio.create_task(db.fetch(endless(db)))
        async with asyncio.timeout(5):
            for _ in range(20):
                assert await asyncio.gather(*(names(db) for _ in range(5))) == [["one"]] * 5
            await add(db, 2, "two")
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    async def test_ping_returns_while_the_database_answers(self, adapter: Adapter) -> None:
        await adapter.ping()

    async def test_the_label_carries_no_credentials(self, adapter: Adapter) -> None:
        assert adapter.label
        assert re.search(r"://|:[^@]*:.*@", adapter.label) is None

    async def test_a_closed_adapter_is_unavailable(self, db: Adapter) -> None:
        await db.close()
        await db.close()
        with pytest.raises(Unavailable):
            await db.fetch(Sql("SELECT 1"))
        with pytest.raises(Unavailable):
            await add(db, 1, "one")
        with pytest.raises(Unavailable):
            await db.ping()
        with pytest.raises(Unavailable):
            async with db.transaction():
                pytest.fail("it began")

    async def test_closing_ends_what_runs_with_an_answer_that_is_true(self, db: Adapter) -> None:
        writes = [asyncio.create_task(add(db, number, str(number))) for number in range(20)]
        await asyncio.sleep(0)
        await db.close()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), Unavailable}
        if not self.keeps_data:
            return
        await db.open()
        confirmed_names = [str(number) for number, outcome in enumerate(outcomes) if outcome is None]
        assert await names(db) == confirmed_names
