"""A transaction that begins with its first statement, and a commit that depends on a last one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from maniflex.db.port import Adapter, CommitRefused
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.errors import Conflict, DatabaseError, RequestError, Timeout, TransactionError
from maniflex.sql.statement import Dialect, Sql, by_dialect
from tests.kit.statements import Counting
from tests.kit.waiting import PATIENCE


def sql(adapter: Adapter, text: str, *params: object) -> Sql:
    """A text with `%` for each value, in the placeholder style of the database."""
    for number in range(len(params)):
        text = text.replace("%", by_dialect(adapter.dialect, sqlite="?", postgres=f"${number + 1}"), 1)
    return Sql(text, params)


@pytest.fixture
async def adapter(database_url: str) -> AsyncIterator[Adapter]:
    adapter = Counting(database_url)
    await adapter.open()
    blob = by_dialect(adapter.dialect, sqlite="BLOB", postgres="BYTEA")
    await adapter.execute(Sql(f"CREATE TABLE item (id TEXT PRIMARY KEY, note {blob}, size BIGINT)"))
    try:
        yield adapter
    finally:
        await adapter.close()


def insert(adapter: Adapter, name: str) -> Sql:
    return sql(adapter, "INSERT INTO item (id, note, size) VALUES (%, %, %) RETURNING id", name, None, 1)


def settle(adapter: Adapter, name: str, note: bytes | None) -> Sql:
    return sql(adapter, "UPDATE item SET note = %, size = % WHERE id = % RETURNING id", note, 2**40, name)


async def write(adapter: Adapter, *statements: Sql, guard: Sql | None = None) -> None:
    """Run these in a late transaction, then its guard."""
    async with adapter.transaction(late=True) as tx:
        for statement in statements:
            await tx.write(statement)
        if guard is not None:
            tx.guard_commit(guard)


async def rows(adapter: Adapter) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await adapter.fetch(Sql("SELECT id, note, size FROM item ORDER BY id"))]


ROUNDS = range(3)  # the first prepares statements, the others send them along


async def test_statements_and_guard_are_committed_together(adapter: Adapter) -> None:
    for number in ROUNDS:
        async with adapter.transaction(late=True) as tx:
            assert [tuple(row) for row in await tx.write(insert(adapter, f"a{number}"))] == [(f"a{number}",)]
            await tx.write(insert(adapter, f"b{number}"))
            tx.guard_commit(settle(adapter, f"a{number}", None if number == 1 else b"\0kept'"))
    notes = [b"\0kept'", None, b"\0kept'"]
    assert await rows(adapter) == [(f"a{n}", notes[n], 2**40) for n in ROUNDS] + [
        (f"b{n}", None, 1) for n in ROUNDS
    ]


async def test_a_guard_that_changes_no_row_refuses_the_commit(adapter: Adapter) -> None:
    for _ in ROUNDS:
        with pytest.raises(CommitRefused):
            await write(adapter, insert(adapter, "a"), guard=settle(adapter, "another", b""))
        assert await rows(adapter) == []
    await write(adapter, insert(adapter, "a"))


async def test_a_guard_that_fails_takes_the_rest_along(adapter: Adapter) -> None:
    await adapter.write(insert(adapter, "old"))
    for _ in ROUNDS:
        with pytest.raises((Conflict, TransactionError)):
            await write(adapter, insert(adapter, "a"), guard=insert(adapter, "old"))
    assert [row[0] for row in await rows(adapter)] == ["old"]


async def test_a_guard_alone_is_a_transaction_too(adapter: Adapter) -> None:
    await adapter.write(insert(adapter, "a"))
    for number in ROUNDS:
        await write(adapter, guard=settle(adapter, "a", b"%d" % number))
        assert await rows(adapter) == [("a", b"%d" % number, 2**40)]


async def test_an_error_in_the_block_rolls_back_and_runs_no_guard(adapter: Adapter) -> None:
    await adapter.write(insert(adapter, "a"))

    async def fail() -> None:
        async with adapter.transaction(late=True) as tx:
            await tx.write(insert(adapter, "b"))
            tx.guard_commit(settle(adapter, "a", b"x"))
            raise ZeroDivisionError

    for _ in ROUNDS:
        with pytest.raises(ZeroDivisionError):
            await fail()
    assert await rows(adapter) == [("a", None, 1)]


async def test_a_first_statement_that_fails_dooms_the_block(adapter: Adapter) -> None:
    await adapter.write(insert(adapter, "a"))

    async def swallow() -> None:
        async with adapter.transaction(late=True) as tx:
            with pytest.raises(Conflict):
                await tx.write(insert(adapter, "a"))
            with pytest.raises(DatabaseError):
                await tx.write(insert(adapter, "b"))

    for _ in ROUNDS:
        with pytest.raises(TransactionError, match="nothing was committed"):
            await swallow()
    assert [row[0] for row in await rows(adapter)] == ["a"]


async def test_a_value_the_driver_refuses_leaves_a_connection_that_works(adapter: Adapter) -> None:
    await adapter.write(insert(adapter, "a"))
    wrong = sql(
        adapter, "INSERT INTO item (id, note, size) VALUES (%, %, %) RETURNING id", "b", None, object()
    )
    for _ in ROUNDS:
        with pytest.raises(RequestError):
            await write(adapter, wrong)
        await write(adapter, settle(adapter, "a", b"x"))
    assert await rows(adapter) == [("a", b"x", 2**40)]


async def test_a_block_without_statements_begins_nothing(adapter: Adapter) -> None:
    async with adapter.transaction(late=True):
        await adapter.write(insert(adapter, "a"))  # on SQLite it would wait for the block
    assert len(await rows(adapter)) == 1


async def test_a_cancelled_first_statement_leaves_nothing(adapter: Adapter) -> None:
    await write(adapter, insert(adapter, "a"))
    async with adapter.transaction() as tx:
        await tx.write(insert(adapter, "b"))
        # It waits for the writer on SQLite, for the row on PostgreSQL.
        waiting = asyncio.create_task(write(adapter, insert(adapter, "b")))
        await asyncio.sleep(0)
        await adapter.fetch(Sql("SELECT 1"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await write(adapter, insert(adapter, "c"))
    assert [row[0] for row in await rows(adapter)] == ["a", "b", "c"]


async def test_a_turn_that_does_not_come_ends_the_first_statement(tmp_path: object) -> None:
    adapter = SqliteAdapter(f"{tmp_path}/x.db", lock_timeout=timedelta(milliseconds=20))
    assert adapter.dialect is Dialect.SQLITE
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE item (id TEXT PRIMARY KEY, note BLOB, size BIGINT)"))
    async with adapter.transaction() as tx:
        await tx.write(insert(adapter, "a"))
        with pytest.raises(Timeout):
            await write(adapter, insert(adapter, "b"))
        with pytest.raises(Timeout):
            await write(adapter, guard=insert(adapter, "b"))
    assert [row[0] for row in await rows(adapter)] == ["a"]
    await adapter.close()


async def test_a_turn_that_does_not_come_ends_every_statement_of_the_block(tmp_path: object) -> None:
    adapter = SqliteAdapter(f"{tmp_path}/x.db", lock_timeout=timedelta(milliseconds=20))
    await adapter.open()
    await adapter.execute(Sql("CREATE TABLE item (id TEXT PRIMARY KEY, note BLOB, size BIGINT)"))

    async def swallow() -> None:
        async with asyncio.timeout(PATIENCE), adapter.transaction(late=True) as tx:
            together = [tx.write(insert(adapter, name)) for name in ("b", "c")]
            errors = await asyncio.gather(*together, return_exceptions=True)
            assert [type(error) for error in errors] == [Timeout, Timeout]
            with pytest.raises(DatabaseError):
                await tx.write(insert(adapter, "d"))

    async with adapter.transaction() as holder:
        await holder.write(insert(adapter, "a"))
        with pytest.raises(TransactionError):
            await swallow()
    assert [row[0] for row in await rows(adapter)] == ["a"]
    await adapter.close()
