"""The locks that changes of partitions take: for a short time each, and one process at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from maniflex.db.port import Adapter, Tx
from maniflex.db.short_locks import LockLimits, change_tables
from maniflex.sql.statement import Sql

PATIENCE = LockLimits(timedelta(milliseconds=200), tries=100)
ONCE = replace(PATIENCE, tries=1)
_TURN = 0x6D616E69666C657A >> 1  # any fixed number of 63 bits that nobody else locks


async def run_all(adapter: Adapter, statements: Sequence[str], limits: LockLimits) -> None:
    """Run these statements in one such transaction."""

    async def work(tx: Tx) -> None:
        for text in statements:
            await tx.execute(Sql(text))

    await change_tables(adapter, work, limits)


@asynccontextmanager
async def patient_sibling(adapter: Adapter) -> AsyncIterator[Adapter]:
    """An adapter of its own for statements that may take long."""
    sibling = adapter.sibling(patient=True)
    await sibling.open()
    try:
        yield sibling
    finally:
        await sibling.close()


@asynccontextmanager
async def take_turn(adapter: Adapter) -> AsyncIterator[bool]:
    """Keep other processes from changing partitions meanwhile; False when one is at it."""
    async with patient_sibling(adapter) as holder, holder.transaction() as tx:
        # A lock of the transaction, because one of the session would not survive a transaction pooler.
        rows = await tx.fetch(Sql("SELECT pg_try_advisory_xact_lock($1)", (_TURN,)))
        # An index that is built concurrently waits for all older snapshots; this statement has none.
        await tx.execute(Sql("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield bool(rows[0][0])
