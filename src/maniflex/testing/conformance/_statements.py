"""Statements outside a transaction: what they give back, what refuses them, and rows read in batches."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing

import pytest

from maniflex.db.port import Adapter
from maniflex.errors import (
    Conflict,
    ConstraintViolation,
    DatabaseError,
    ForeignKeyViolation,
    RequestError,
    Unavailable,
    ValidationFailed,
)
from maniflex.sql.statement import Dialect, Sql, by_dialect
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


_SCHEMA = (
    "CREATE TABLE authors (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE,"
    " age BIGINT CONSTRAINT grown CHECK (age >= 18))",
    'CREATE TABLE "my books" (id BIGINT PRIMARY KEY, author_id BIGINT REFERENCES authors (id),'
    " title TEXT, lang TEXT, UNIQUE (title, lang))",
    "CREATE TABLE tags (name TEXT)",
    "CREATE UNIQUE INDEX tags_by_name ON tags (lower(name))",
)
_AUTHOR = "INSERT INTO authors (id, email, age) VALUES (?, ?, ?)"
_BOOK = 'INSERT INTO "my books" (id, author_id, title, lang) VALUES (?, ?, ?, ?)'


class Constraints(Case):
    """Every kind of constraint, outside and inside a transaction."""

    @pytest.fixture
    async def library(self, adapter: Adapter) -> Adapter:
        for text in _SCHEMA:
            await adapter.execute(Sql(text))
        await adapter.execute(sql(adapter, _AUTHOR, 1, "ann@example.com", 40))
        await adapter.execute(sql(adapter, _BOOK, 1, 1, "Dune", "en"))
        return adapter

    async def test_a_primary_key_names_table_and_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 1, "bob@example.com", 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("id",))

    async def test_a_unique_column_names_table_and_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, "ann@example.com", 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("email",))
        assert "ann@example.com" not in str(caught.value)

    async def test_a_composite_unique_names_all_its_columns(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.write(sql(library, _BOOK + " RETURNING id", 2, 1, "Dune", "en"))
        assert (caught.value.table, caught.value.columns) == ("my books", ("title", "lang"))

    async def test_a_unique_index_on_an_expression_names_the_table(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, "INSERT INTO tags VALUES (?), (?)", "New", "new"))
        assert caught.value.table == "tags"

    async def test_a_missing_value_names_its_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, None, 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("email",))

    async def test_a_check_names_the_table(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, "kid@example.com", 7))
        assert caught.value.table == "authors"

    async def test_a_reference_to_nothing_is_a_foreign_key_violation(self, library: Adapter) -> None:
        with pytest.raises(ForeignKeyViolation) as caught:
            await library.write(sql(library, _BOOK + " RETURNING id", 2, 99, "Emma", "en"))
        assert caught.value.table == "my books"

    async def test_removing_a_referenced_row_is_a_foreign_key_violation(self, library: Adapter) -> None:
        with pytest.raises(ForeignKeyViolation):
            await library.execute(sql(library, "DELETE FROM authors WHERE id = ?", 1))

    async def test_inside_a_transaction_it_is_the_same_and_the_driver_is_only_the_cause(
        self, library: Adapter
    ) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            async with library.transaction() as tx:
                await tx.execute(sql(tx, _AUTHOR, 2, "ann@example.com", 40))
        assert caught.value.columns == ("email",)
        assert caught.value.__cause__ is not None

    async def test_one_refused_write_does_not_touch_its_neighbours(self, db: Adapter) -> None:
        ids = [number // 2 for number in range(60)]
        outcomes = await asyncio.gather(*(add(db, id, f"{id}") for id in ids), return_exceptions=True)
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 30
        assert await names(db) == [str(id) for id in range(30)]

    async def test_a_constraint_checked_at_commit_refuses_the_commit(self, adapter: Adapter) -> None:
        await adapter.execute(Sql("CREATE TABLE parents (id BIGINT PRIMARY KEY)"))
        await adapter.execute(
            Sql(
                "CREATE TABLE children (id BIGINT PRIMARY KEY, parent BIGINT"
                " REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        )
        with pytest.raises(ForeignKeyViolation):
            async with adapter.transaction() as tx:
                await tx.execute(Sql("INSERT INTO children VALUES (1, 1)"))
        async with adapter.transaction() as tx:
            await tx.execute(Sql("INSERT INTO children VALUES (1, 1)"))
            await tx.execute(Sql("INSERT INTO parents VALUES (1)"))
        assert len(await adapter.fetch(Sql("SELECT id FROM children"))) == 1


_NUMBERS = {
    Dialect.SQLITE: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    " SELECT i FROM n",
    Dialect.POSTGRES: "SELECT i FROM generate_series(1, CAST(? AS integer)) AS i",
}


def numbers(db: Adapter, most: int) -> Sql:
    """A read of as many rows as wanted, from no table."""
    return sql(db, _NUMBERS[db.dialect], most)


class Streams(Case):
    """What `Adapter.stream` promises."""

    async def test_a_stream_gives_all_rows_in_order_in_batches(self, db: Adapter) -> None:
        batches = [[n for (n,) in rows] async for rows in db.stream(numbers(db, 25), batch=10)]
        assert [len(batch) for batch in batches] == [10, 10, 5]
        assert [n for batch in batches for n in batch] == list(range(1, 26))

    async def test_a_full_last_batch_is_not_followed_by_an_empty_one(self, db: Adapter) -> None:
        batches = [rows async for rows in db.stream(numbers(db, 20), batch=10)]
        assert [len(batch) for batch in batches] == [10, 10]

    async def test_a_stream_of_nothing_gives_no_batch(self, db: Adapter) -> None:
        assert [rows async for rows in db.stream(Sql("SELECT id FROM things"))] == []

    async def test_a_stream_shows_one_moment(self, db: Adapter) -> None:
        for number in range(30):
            await add(db, number, str(number))
        ids: list[int] = []
        async with aclosing(db.stream(Sql("SELECT id FROM things ORDER BY id"), batch=10)) as batches:
            async for rows in batches:
                await db.execute(sql(db, "DELETE FROM things WHERE id >= ?", 20))
                await add(db, 1000 + len(ids), "later")
                ids += [id for (id,) in rows]
        assert ids == list(range(30))

    async def test_writes_and_reads_go_on_beside_a_stream(self, db: Adapter) -> None:
        async with aclosing(db.stream(numbers(db, 1000), batch=1)) as batches:
            await anext(batches)
            await add(db, 1, "one")
            async with db.transaction() as tx:
                await add(tx, 2, "two")
            assert len(await db.fetch(Sql("SELECT id FROM things"))) == 2

    async def test_a_stream_sees_nothing_uncommitted(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "one")
            assert [rows async for rows in db.stream(Sql("SELECT id FROM things"))] == []

    async def test_many_streams_closed_early_leave_nothing_behind(self, db: Adapter) -> None:
        for _ in range(30):  # more than any pool has room for
            async with aclosing(db.stream(numbers(db, 1000), batch=10)) as batches:
                await anext(batches)
        await add(db, 1, "one")
        assert len(await db.fetch(Sql("SELECT id FROM things"))) == 1

    async def test_a_stream_that_is_never_begun_needs_no_closing(self, db: Adapter) -> None:
        streams = [db.stream(numbers(db, 10)) for _ in range(30)]
        for stream in streams:
            await stream.aclose()
        assert len(await db.fetch(numbers(db, 10))) == 10

    async def test_a_cancelled_stream_stops_its_statement(self, db: Adapter) -> None:
        async def read() -> None:
            async for _ in db.stream(endless(db)):
                pass

        for _ in range(3):
            task = asyncio.create_task(read())
            finished_tasks, _ = await asyncio.wait((task,), timeout=0.05)
            assert not finished_tasks
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
        await add(db, 1, "one")

    async def test_a_stream_that_fails_raises_ours(self, db: Adapter) -> None:
        with pytest.raises(RequestError):
            await anext(db.stream(Sql("SELECT nothing FROM nowhere")))
        with pytest.raises(RequestError):
            await anext(db.stream(sql(db, "INSERT INTO things (id, name) VALUES (1, 'x') RETURNING id")))
        assert await db.fetch(Sql("SELECT id FROM things")) == []

    async def test_closing_the_adapter_breaks_a_stream_off(self, db: Adapter) -> None:
        stream = db.stream(numbers(db, 100_000), batch=1)
        await anext(stream)
        closing = asyncio.create_task(db.close())
        with pytest.raises(RequestError):
            [rows async for rows in stream]
        await closing
