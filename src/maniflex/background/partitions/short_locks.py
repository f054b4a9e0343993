"""Changes of tables that others use: a change that waits too long for its lock gives up and tries again.

All statements on a table queue up behind one that waits for a strong lock, so that wait is short.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from maniflex.db.port import Adapter, Tx
from maniflex.errors import SerializationFailure, Timeout, Unavailable
from maniflex.sql.statement import Sql

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5  # seconds between two tries


@dataclass(frozen=True, slots=True)
class LockLimits:
    """How long a change waits for its lock, and how often it tries."""

    lock_timeout: timedelta = timedelta(milliseconds=200)
    tries: int = 100


PATIENCE = LockLimits()
ONCE = LockLimits(tries=1)


_TURN = 0x6D616E69666C657A >> 1  # any fixed number of 63 bits that nobody else locks


class LockNotFree(Unavailable):
    """Others held the lock of a table in all tries; nothing was changed."""


async def change_tables(
    adapter: Adapter, work: Callable[[Tx], Awaitable[None]], patience: LockLimits
) -> None:
    """Run `work` in a transaction that waits for locks only so long, and again when it was too long."""
    milliseconds = max(1, patience.lock_timeout // timedelta(milliseconds=1))
    for attempt in range(1, patience.tries + 1):
        try:
            async with adapter.transaction() as tx:
                await tx.execute(Sql("SET LOCAL statement_timeout = 0"))
                await tx.execute(Sql(f"SET LOCAL lock_timeout = {milliseconds}"))
                await work(tx)
            return
        except (Timeout, SerializationFailure) as error:
            if isinstance(error, Timeout) and error.limit != "lock_timeout":
                raise
            if attempt == patience.tries:
                raise LockNotFree(
                    f"another session held the lock of a table in all {attempt} tries of {milliseconds} ms;"
                    " nothing was changed. Find it in pg_stat_activity, and begin again"
                ) from error
        await asyncio.sleep(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))


async def run_all(adapter: Adapter, statements: Sequence[str], patience: LockLimits) -> None:
    """Run these statements in one such transaction."""

    async def work(tx: Tx) -> None:
        for text in statements:
            await tx.execute(Sql(text))

    await change_tables(adapter, work, patience)


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
