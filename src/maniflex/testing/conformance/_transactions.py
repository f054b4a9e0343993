"""Transactions: all or nothing, and nothing seen before its time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from maniflex.db.port import Adapter, Isolation
from maniflex.errors import (
    ConstraintViolation,
    DatabaseError,
    RequestError,
    SerializationFailure,
    TransactionError,
)
from maniflex.sql.statement import Sql
from maniflex.testing.conformance._case import Case, add, endless, names, sql


class Transactions(Case):
    """One transaction at a time."""

    async def test_a_block_that_ends_commits(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "one")
            await add(tx, 2, "two")
        assert await names(db) == ["one", "two"]

    async def test_a_block_that_raises_rolls_back_and_lets_the_error_through(self, db: Adapter) -> None:
        async def broken() -> None:
            async with db.transaction() as tx:
                await add(tx, 1, "one")
                raise KeyError

        with pytest.raises(KeyError):
            await broken()
        assert await names(db) == []

    async def test_a_doomed_block_commits_nothing(self, db: Adapter) -> None:
        async def use_doomed_tx() -> None:
            async with db.transaction() as tx:
                await add(tx, 1, "one")
                tx.doom()
                with pytest.raises(DatabaseError):
                    await add(tx, 2, "two")

        with pytest.raises(TransactionError):
            await use_doomed_tx()
        assert await names(db) == []

    async def test_an_empty_block_is_fine(self, db: Adapter) -> None:
        async with db.transaction():
            pass
        assert await names(db) == []

    async def test_its_reads_see_its_writes_and_reads_outside_do_not(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "one")
            assert await names(tx) == ["one"]
            assert await tx.fetch_one(Sql("SELECT id FROM things WHERE id = 2")) is None
            assert await tx.fetch_named(Sql("SELECT id, name FROM things")) == [{"id": 1, "name": "one"}]
            assert await names(db) == []
        assert await names(db) == ["one"]

    async def test_write_and_execute_answer_as_they_do_outside(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            insert = sql(tx, "INSERT INTO things (id, name) VALUES (?, ?) RETURNING id, amount", 1, "one")
            assert [tuple(row) for row in await tx.write(insert)] == [(1, 0)]
            assert await tx.execute(Sql("UPDATE things SET amount = 3")) == 1

    async def test_a_cancelled_block_rolls_back_and_lets_go(self, db: Adapter) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with db.transaction() as tx:
                await add(tx, 1, "one")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await add(db, 2, "two")
        assert await names(db) == ["two"]

    async def test_a_cancelled_statement_rolls_its_transaction_back(self, db: Adapter) -> None:
        async def slow() -> None:
            async with asyncio.timeout(0.05), db.transaction() as tx:
                await add(tx, 1, "one")
                await tx.fetch(endless(tx))

        with pytest.raises(TimeoutError):
            await slow()
        await add(db, 2, "two")
        assert await names(db) == ["two"]

    async def test_after_commit_calls_run_in_order_once_the_rows_are_visible(self, db: Adapter) -> None:
        events: list[object] = []

        async def look() -> None:
            events.append(await names(db))

        async with db.transaction() as tx:
            tx.after_commit(lambda: events.append("first"))
            tx.after_commit(look)
            tx.after_commit(lambda: events.append("last"))
            await add(tx, 1, "one")
            assert events == []
        assert events == ["first", ["one"], "last"]

    async def test_after_commit_calls_do_not_run_when_it_rolls_back(self, db: Adapter) -> None:
        calls: list[str] = []

        async def broken() -> None:
            async with db.transaction() as tx:
                tx.after_commit(lambda: calls.append("ran"))
                raise KeyError

        with pytest.raises(KeyError):
            await broken()
        assert calls == []

    async def test_an_after_commit_call_that_fails_is_logged_and_the_next_one_runs(
        self, db: Adapter, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[str] = []

        def fail() -> None:
            raise KeyError("broken hook")

        with caplog.at_level(logging.ERROR, "maniflex.db"):
            async with db.transaction() as tx:
                tx.after_commit(fail)
                tx.after_commit(lambda: calls.append("ran"))
                await add(tx, 1, "one")
        assert (calls, await names(db)) == (["ran"], ["one"])
        assert "broken hook" in caplog.text

    async def test_a_failed_statement_ends_the_transaction(self, db: Adapter) -> None:
        calls: list[str] = []

        async def careless() -> None:
            async with db.transaction() as tx:
                tx.after_commit(lambda: calls.append("ran"))
                await add(tx, 1, "one")
                with pytest.raises(ConstraintViolation):
                    await add(tx, 1, "again")
                with pytest.raises(DatabaseError, match="has failed"):
                    await names(tx)
                with pytest.raises(DatabaseError, match="has failed"):
                    await add(tx, 2, "two")

        with pytest.raises(TransactionError) as caught:
            await careless()
        assert caught.value.code == "TX_COMMIT_ERROR"
        assert (calls, await names(db)) == ([], [])

    async def test_the_handle_is_useless_once_the_block_is_left(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await add(tx, 1, "one")
        with pytest.raises(DatabaseError):
            await add(tx, 2, "two")
        with pytest.raises(DatabaseError):
            await names(tx)
        assert await names(db) == ["one"]

    async def test_a_statement_cannot_end_the_transaction_from_within(self, db: Adapter) -> None:
        async def sneaky() -> None:
            async with db.transaction() as tx:
                await add(tx, 1, "one")
                await tx.execute(Sql("COMMIT"))

        with pytest.raises(DatabaseError):
            await sneaky()
        assert await names(db) == []

    async def test_tables_made_inside_are_gone_after_a_rollback(self, db: Adapter) -> None:
        async def broken() -> None:
            async with db.transaction() as tx:
                await tx.execute(Sql("CREATE TABLE passing (id BIGINT)"))
                await tx.execute(Sql("INSERT INTO passing VALUES (1)"))
                raise KeyError

        with pytest.raises(KeyError):
            await broken()
        with pytest.raises(DatabaseError):
            await db.fetch(Sql("SELECT id FROM passing"))

    async def test_statements_of_several_tasks_share_one_transaction(self, db: Adapter) -> None:
        async with db.transaction() as tx:
            await asyncio.gather(*(add(tx, number, str(number)) for number in range(10)))
            assert len(await names(tx)) == 10
            assert await names(db) == []
        assert len(await names(db)) == 10

    @pytest.mark.parametrize("isolation", [None, *Isolation])
    async def test_every_isolation_level_works(self, db: Adapter, isolation: Isolation | None) -> None:
        async with db.transaction(isolation=isolation) as tx:
            await add(tx, 1, "one")
        assert await names(db) == ["one"]

    async def test_a_read_only_transaction_looks_at_one_moment(self, db: Adapter) -> None:
        await add(db, 1, "one")
        async with db.transaction(isolation=Isolation.REPEATABLE_READ, read_only=True) as tx:
            assert await names(tx) == ["one"]
            await add(db, 2, "two")
            assert await names(tx) == ["one"]
        assert await names(db) == ["one", "two"]

    async def test_a_read_only_transaction_refuses_writes(self, db: Adapter) -> None:
        with pytest.raises(DatabaseError):
            async with db.transaction(read_only=True) as tx:
                await add(tx, 1, "one")
        assert await names(db) == []

    async def test_a_read_only_transaction_waits_for_no_writer(self, db: Adapter) -> None:
        async with db.transaction() as writing, asyncio.timeout(5):
            await add(writing, 1, "one")
            async with db.transaction(read_only=True) as reading:
                assert await names(reading) == []


class Concurrency(Case):
    """Many at a time: nothing is lost and nothing hangs."""

    async def test_concurrent_increments_all_land(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        step = Sql("UPDATE things SET amount = amount + 1 WHERE id = 1")
        await asyncio.gather(*(db.execute(step) for _ in range(50)))
        assert await self._amount(db) == 50

    async def test_concurrent_increments_in_transactions_all_land(self, db: Adapter) -> None:
        await add(db, 1, "counter")

        async def step() -> None:
            async with db.transaction() as tx:
                await tx.execute(Sql("UPDATE things SET amount = amount + 1 WHERE id = 1"))
                await tx.fetch(Sql("SELECT amount FROM things"))

        await asyncio.gather(*(step() for _ in range(50)))
        assert await self._amount(db) == 50

    async def test_the_second_writer_of_a_row_waits_for_the_first(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        step = Sql("UPDATE things SET amount = amount + 1 WHERE id = 1 RETURNING amount")

        async def second() -> int:
            async with db.transaction() as tx:
                [[amount]] = await tx.write(step)
                return int(amount)

        async with db.transaction() as tx:
            await tx.write(step)
            waiting = asyncio.create_task(second())
            for _ in range(20):
                await tx.fetch(Sql("SELECT 1"))
            assert not waiting.done()
        assert await waiting == 2

    async def test_a_waiting_writer_can_be_cancelled(self, db: Adapter) -> None:
        await add(db, 1, "counter")
        step = Sql("UPDATE things SET amount = amount + 1 WHERE id = 1")
        async with db.transaction() as tx:
            await tx.execute(step)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await db.execute(step)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), db.transaction() as other:
                    await other.execute(step)
        await db.execute(step)
        assert await self._amount(db) == 2

    async def test_serializable_transactions_cannot_both_be_the_first(self, db: Adapter) -> None:
        async def claim(number: int) -> None:
            async with db.transaction(isolation=Isolation.SERIALIZABLE) as tx:
                if not await names(tx):
                    await add(tx, number, "first")

        outcomes = await asyncio.gather(*(claim(number) for number in range(8)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), SerializationFailure}
        assert await names(db) == ["first"]

    async def test_a_storm_of_cancellations_leaves_the_adapter_usable(self, db: Adapter) -> None:
        async def one(number: int) -> None:
            async with db.transaction() as tx:
                await add(tx, number, str(number))
                await tx.fetch(Sql("SELECT count(*) FROM things"))

        tasks = [asyncio.create_task(one(number)) for number in range(60)]
        for turn, task in enumerate(tasks):
            if turn % 2:
                await db.ping()
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        other_outcomes = [
            outcome
            for outcome in outcomes
            if outcome is not None and not isinstance(outcome, asyncio.CancelledError | RequestError)
        ]
        assert other_outcomes == []
        await add(db, 1000, "after")
        assert (await names(db))[-1] == "after"

    async def _amount(self, db: Adapter) -> int:
        [[amount]] = await db.fetch(Sql("SELECT amount FROM things WHERE id = 1"))
        return int(amount)
